"""Writes the reference in docs/python.md, below its marker, from the docstrings.

    python docs/make_reference.py [--check]

With `--check` nothing is written; the exit status is 1 if the page is not what would be written.
"""

from __future__ import annotations

import argparse
import importlib
import inspect
import re
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

PAGE = Path(__file__).with_name("python.md")
MARK = "<!-- Below this line: written by make_reference.py. -->\n"
PACKAGES = (
    "sfumato", "sfumato.privacy", "sfumato.privacy.accounting", "sfumato.privacy.verify",
    "sfumato.analysis", "sfumato.data", "sfumato.models", "sfumato.nn", "sfumato.recipes",
    "sfumato.report", "sfumato.export", "sfumato.guide",
)  # fmt: skip
IN_FULL = ("sfumato.train", "sfumato.audit", "sfumato.open", "sfumato.resume", "sfumato.load",
           "sfumato.Run", "sfumato.privacy.PrivateGradients", "sfumato.privacy.verify.verify",
           "sfumato.export.write")  # fmt: skip
"""Names with their whole docstrings; of the others the first sentence is shown."""


def main() -> int:
    """Write or check the page."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true")
    text = PAGE.read_text(encoding="utf-8")
    wanted = text[: text.index(MARK) + len(MARK)] + "\n" + "\n".join(reference()) + "\n"
    if not parser.parse_args().check:
        PAGE.write_text(wanted, encoding="utf-8")
    elif wanted != text:
        print("docs/python.md is not up to date: run docs/make_reference.py", file=sys.stderr)
        return 1
    return 0


def reference() -> Iterator[str]:
    """The lines of the reference."""
    for name in PACKAGES:
        package = importlib.import_module(name)
        yield from (
            f"## `{name}`",
            "",
            first_sentence(package),
            "",
            "| name | what it is |",
            "|---|---|",
        )
        in_full = []
        for public in package.__all__:
            value, dotted = getattr(package, public), f"{name}.{public}"
            yield f"| `{public}` | {about(public, value)} |"
            if dotted in IN_FULL:
                in_full.append((dotted, value))
        yield ""
        for dotted, value in in_full:
            yield from described(dotted, value)


def about(name: str, value: object) -> str:
    """One line about a public name."""
    if inspect.ismodule(value) or inspect.isclass(value) or inspect.isfunction(value):
        return first_sentence(value).replace("|", "\\|")
    if name == "__version__":
        return "The version of the package."
    return "A constant." if isinstance(value, str | tuple | dict) else "A type."


def first_sentence(value: object) -> str:
    """The first sentence of a docstring, on one line; a dataclass without one has none."""
    text = " ".join((inspect.getdoc(value) or "").split("\n\n")[0].split())
    return text if not text.startswith(f"{getattr(value, '__name__', '')}(") else ""


def described(name: str, value: Any) -> Iterator[str]:
    """A function or class in full, with the public methods and properties of a class."""
    yield from (f"### `{name}`", "", "```text", *signature(name, value), "```", "")
    yield from ("```text", inspect.getdoc(value) or "", "```", "")
    if inspect.isclass(value):
        yield from ("| member | what it is |", "|---|---|")
        for member, found in vars(value).items():
            target = getattr(found, "func", None) or getattr(found, "fget", None) or found
            target = getattr(target, "__func__", target)
            if not member.startswith("_") and inspect.getdoc(target):
                call = "()" if inspect.isfunction(getattr(value, member, None)) else ""
                yield f"| `{member}{call}` | {first_sentence(target).replace('|', chr(92) + '|')} |"
        yield ""


def signature(name: str, value: Callable[..., object]) -> list[str]:
    """The call, an argument to a line."""
    lines, keywords = [f"{name}("], False
    public = [p for p in inspect.signature(value).parameters.values() if p.name[0] != "_"]
    for parameter in public:
        if parameter.kind is parameter.KEYWORD_ONLY and not keywords:
            lines, keywords = [*lines, "    *,"], True
        text = re.sub(r": '([^']*)'", r": \1", str(parameter))
        lines.append(f"    {re.sub('<.*>', '...', text)},")
    return [*lines, ")"]


if __name__ == "__main__":
    sys.exit(main())
