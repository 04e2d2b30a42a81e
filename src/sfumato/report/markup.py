"""HTML that is escaped by construction, and the Markdown of statements.

Text becomes markup in one place only: `element`, the templates and `markdown` escape everything
that is not already `Safe`, so a run or a class may be called `<script>` and stays a name.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import jinja2
from markdown_it import MarkdownIt
from markdown_it.renderer import RendererHTML
from markdown_it.token import Token
from markupsafe import Markup, escape

from sfumato.text import printable

Safe = Markup
"""Markup that was made here, as against text that came from elsewhere."""
Child = str | Safe | None


def _shown(value: Any) -> Any:
    """Text without the characters that a page would obey; nothing for None."""
    if value is None:
        return ""
    return printable(value) if isinstance(value, str) and not isinstance(value, Safe) else value


TEMPLATES = jinja2.Environment(
    loader=jinja2.PackageLoader("sfumato.report", "assets"),
    autoescape=True,
    finalize=_shown,
    undefined=jinja2.StrictUndefined,
    keep_trailing_newline=True,
    trim_blocks=True,
    lstrip_blocks=True,
)


def element(name: str, attributes: Mapping[str, Any] | None = None, *children: Child) -> Safe:
    """One element; attributes and children that are None are left out."""
    written = Safe("").join(
        Safe(' {}="{}"').format(key, _shown(f"{value:g}" if isinstance(value, float) else value))
        for key, value in (attributes or {}).items()
        if value is not None
    )
    opening = Safe("<{}{}>").format(name, written)
    return opening if name == "img" else Safe("{}{}</{}>").format(opening, join(children), name)


def join(children: Iterable[Child]) -> Safe:
    """Several pieces as one."""
    return Safe("").join(escape(_shown(child)) for child in children if child is not None)


def table(
    head: Iterable[Child],
    rows: Iterable[Iterable[Child]],
    *,
    caption: str = "",
    classes: str = "",
) -> Safe:
    """A table in a box that scrolls by itself where the page is narrower than it is.

    Args:
        head: The column titles.
        rows: The cells; the first of each row names it.
        caption: What the table holds, for those who do not see where it stands.
        classes: CSS classes of the table.
    """
    cells = {"head": list(head), "rows": [list(row) for row in rows]}
    made = TEMPLATES.get_template("table.html").render(**cells, caption=caption, classes=classes)
    return Safe(made)


def details(summary: Child, *children: Child, classes: str = "") -> Safe:
    """Something to unfold."""
    return element(
        "details", {"class": classes or None}, element("summary", None, summary), *children
    )


def markdown(text: str) -> Safe:
    """The forms of Markdown that a privacy statement uses, with headings two levels down.

    Headings, paragraphs, lists, tables, bold and code are known. HTML, links, pictures and
    emphasis by single marks, as in the name `_x_`, stay text.
    """
    tokens = _MARKDOWN.parse(printable(text))
    for token in tokens:
        if token.type.startswith("heading"):
            token.tag = f"h{min(6, int(token.tag[1]) + 2)}"
    return Safe(_MARKDOWN.renderer.render(tokens, _MARKDOWN.options, {}))


def inline(text: str) -> Safe:
    """A line with bold and code, without a paragraph around it."""
    return Safe(_MARKDOWN.renderInline(printable(text)))


def _emphasis(
    self: RendererHTML, tokens: Sequence[Token], index: int, options: Any, env: Any
) -> str:
    token = tokens[index]
    return self.renderToken(tokens, index, options, env) if token.markup == "**" else token.markup


_SCROLLS = 'class="scroll" role="region" tabindex="0" aria-label="Privacy statement"'
_MARKDOWN = MarkdownIt("zero").enable(
    ["heading", "list", "table", "emphasis", "backticks", "escape", "entity"]
)
_MARKDOWN.add_render_rule("table_open", lambda *_: f"<div {_SCROLLS}><table>")
_MARKDOWN.add_render_rule("table_close", lambda *_: "</table></div>")
for _kind in ("em_open", "em_close", "strong_open", "strong_close"):
    _MARKDOWN.add_render_rule(_kind, _emphasis)
