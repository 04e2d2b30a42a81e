"""Every module, public class and public function says in its first sentence what it is or does."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

import sfumato

HOUSE = Path(sfumato.__file__).parent
RIDDLE = re.compile(
    r"(What|Whether|How|Where|Which|Who|If|Of|That|With)\b|(True|False)(:| if\b| only\b| unless\b)"
)
"""Beginnings that are neither a noun phrase nor an imperative."""
Documented = ast.Module | ast.ClassDef | ast.FunctionDef


def public(node: Documented, name: str) -> Iterator[tuple[str, Documented]]:
    """A module or class and everything public in it; the inside of functions is private."""
    yield name, node
    if isinstance(node, ast.FunctionDef):
        return
    for child in node.body:
        if isinstance(child, ast.ClassDef | ast.FunctionDef) and not child.name.startswith("_"):
            yield from public(child, f"{name}.{child.name}")


def complaints(source: str) -> list[str]:
    """Public names without a docstring, or whose first sentence is not one."""
    found = []
    for name, node in public(ast.parse(source), "module"):
        text = ast.get_docstring(node)
        if text is None:
            found.append(f"{name} has no docstring")
        elif RIDDLE.match(text):
            found.append(f"{name} begins with no noun phrase or imperative: {text.splitlines()[0]}")
        elif not text.split("\n\n")[0].endswith("."):
            found.append(f"{name} does not begin with a whole sentence: {text.splitlines()[0]}")
    return found


def complaints_below(part: str) -> list[str]:
    """Complaints about a file, or about every file of a folder."""
    paths = sorted((HOUSE / part).rglob("*.py")) or [HOUSE / part]
    return [
        f"{path.relative_to(HOUSE)}: {complaint}"
        for path in paths
        for complaint in complaints(path.read_text(encoding="utf-8"))
    ]


def test_first_sentences_are_noun_phrases_or_imperatives() -> None:
    files = sorted(HOUSE.rglob("*.py"))
    found = [line for path in files for line in complaints_below(str(path.relative_to(HOUSE)))]
    assert not found, "\n".join(found)


@pytest.mark.parametrize(
    ("source", "complaint"),
    [
        ("'''Sums.'''\ndef f():\n    pass", "module.f has no docstring"),
        (
            "'''Sums.'''\nclass A:\n    '''If so.'''",
            "module.A begins with no noun phrase or imperative: If so.",
        ),
        ("'''Sums'''", "module does not begin with a whole sentence: Sums"),
        (
            "'''Sums.'''\ndef f():\n    '''Whether.'''",
            "module.f begins with no noun phrase or imperative: Whether.",
        ),
        *(
            (f"'''{text}'''", f"module begins with no noun phrase or imperative: {text}")
            for text in ("True: it is.", "False: no.", "True if so.", "That it is.", "With it.")
        ),
    ],
)
def test_a_riddle_is_found(source: str, complaint: str) -> None:
    assert complaints(source) == [complaint]
