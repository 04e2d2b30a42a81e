"""HTML and SVG that are escaped by construction.

Text becomes markup in one place only: `element` escapes every child and attribute that is not
already `Safe`, so a run or a class may be called `<script>` and stays a name.
"""

from __future__ import annotations

import html
import json
import math
import re
from collections.abc import Iterable, Mapping
from typing import Any

from sfumato.text import printable


class Safe(str):
    """Markup that was made here, as against text that came from elsewhere."""

    __slots__ = ()


Child = str | Safe | None
_VOID = frozenset({"br", "hr", "img", "input", "link", "meta"})
_WAITING = 0xF000
_NOT_XML = re.compile("[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")


def escape(text: object) -> Safe:
    """Text as markup that shows it; characters that no document may hold become `�`."""
    if isinstance(text, Safe):
        return text
    return Safe(html.escape(printable(_NOT_XML.sub("\ufffd", str(text)))))


def element(name: str, attributes: Mapping[str, Any] | None = None, *children: Child) -> Safe:
    """One element.

    Args:
        name: The tag.
        attributes: Values are escaped; None and False leave an attribute out, True writes it bare,
            and numbers are written short.
        children: Text is escaped, `Safe` is taken as it is, None is left out.
    """
    written = [name]
    for key, value in (attributes or {}).items():
        if value is None or value is False:
            continue
        written.append(key if value is True else f'{key}="{escape(_short(value))}"')
    opening = f"<{' '.join(written)}>"
    if name in _VOID:
        return Safe(opening)
    return Safe(f"{opening}{join(children)}</{name}>")


def join(children: Iterable[Child]) -> Safe:
    """Several pieces as one."""
    return Safe("".join(escape(child) for child in children if child is not None))


def data_script(identifier: str, content: object) -> Safe:
    """Values for the page's script, as JSON that can neither end its element nor start another."""
    text = json.dumps(_finite(content), separators=(",", ":"), ensure_ascii=True)
    for character in "<>&":
        text = text.replace(character, f"\\u{ord(character):04x}")
    return element("script", {"type": "application/json", "id": identifier}, Safe(text))


def table(
    head: Iterable[Child],
    rows: Iterable[Iterable[Child]],
    *,
    caption: str = "",
    classes: str = "",
    row_heads: bool = True,
) -> Safe:
    """A table in a box that scrolls by itself where the page is narrower than it is.

    Args:
        head: The column titles.
        rows: The cells; the first of each row names it.
        caption: What the table holds, for those who do not see where it stands.
        classes: CSS classes of the table.
        row_heads: Whether the first cell of a row is its title.
    """
    body = []
    for row in rows:
        first, *rest = list(row)
        title = element("th", {"scope": "row"}, first) if row_heads else element("td", None, first)
        body.append(element("tr", None, title, *(element("td", None, cell) for cell in rest)))
    titles = join(element("th", {"scope": "col"}, title) for title in head)
    inner = element(
        "table",
        {"class": classes or None},
        element("caption", {"class": "unseen"}, caption) if caption else None,
        element("thead", None, element("tr", None, titles)) if titles else None,
        element("tbody", None, *body),
    )
    region = {
        "class": "scroll",
        "role": "region",
        "tabindex": "0",
        "aria-label": caption or "Table",
    }
    return element("div", region, inner)


def details(summary: Child, *children: Child, classes: str = "") -> Safe:
    """Something to unfold."""
    return element(
        "details", {"class": classes or None}, element("summary", None, summary), *children
    )


def markdown(text: str, *, level: int = 4) -> Safe:
    """The few forms of Markdown that a privacy statement uses.

    Args:
        text: Headings, paragraphs, lists of `- `, two-column tables, bold and code.
        level: The heading level of `## `.
    """
    blocks: list[Safe] = []
    for block in re.split(r"\n\s*\n", text.strip()):
        lines = block.splitlines()
        if lines[0].startswith("#"):
            depth = len(lines[0]) - len(lines[0].lstrip("#"))
            title = inline(lines[0].lstrip("# "))
            blocks.append(element(f"h{max(1, level + depth - 2)}", None, title))
            lines = lines[1:]
        if not lines:
            continue
        if all(line.startswith("|") for line in lines):
            cells = [[inline(c.strip()) for c in line.strip("|").split("|")] for line in lines]
            rows = [row for row in cells if not all(set(c) <= set("-: ") for c in row)]
            blocks.append(table([], rows, caption="Privacy statement"))
        elif all(line.startswith("- ") or line.startswith("  ") for line in lines):
            items = re.split(r"\n?^- ", "\n".join(lines), flags=re.MULTILINE)
            listed = (element("li", None, inline(i)) for i in items if i.strip())
            blocks.append(element("ul", None, *listed))
        else:
            blocks.append(element("p", None, inline("\n".join(lines))))
    return join(blocks)


def inline(text: str) -> Safe:
    """A line with bold and code, without a paragraph around it."""
    # What is escaped is no markup: it waits in the private use area until markup is found.
    text = re.sub(r"\\([!-/:-@\[-`{-~])", lambda m: chr(_WAITING + ord(m[1])), text)
    safe: str = escape(html.unescape(text))
    safe = re.sub(r"\*\*(.+?)\*\*", r"<strong>\1</strong>", safe, flags=re.DOTALL)
    safe = re.sub(r"`([^`]+)`", r"<code>\1</code>", safe)
    waiting = f"[{chr(_WAITING + 0x21)}-{chr(_WAITING + 0x7E)}]"
    return Safe(re.sub(waiting, lambda m: escape(chr(ord(m[0]) - _WAITING)), safe))


def _short(value: object) -> object:
    if isinstance(value, float):
        return f"{value:.2f}".rstrip("0").rstrip(".")
    return value


def _finite(value: Any) -> Any:
    """JSON has no NaN."""
    if isinstance(value, float):
        return float(f"{value:.6g}") if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {str(key): _finite(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(item) for item in value]
    return value
