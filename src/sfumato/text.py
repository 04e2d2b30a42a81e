"""Text from files and folders, made safe to show: it is somebody else's."""

from __future__ import annotations

import html
import re

_OBEYED = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff\ufeff]"
)
"""Characters that a terminal or a page obeys: controls but tab and newline, turns of direction."""

_MARKDOWN = re.compile(r"([\\`*_{}\[\]#|!$~])")
_ENTITIES = {"&": "&amp;", "<": "&lt;", ">": "&gt;", "[": "&#91;", "]": "&#93;"}


def printable(text: str) -> str:
    """Text with control characters as escapes such as `\\u001b`; newlines and tabs stay."""
    return _OBEYED.sub(lambda found: f"\\u{ord(found[0]):04x}", text)


def one_line(text: str) -> str:
    """Printable text with every run of white space made one space."""
    return " ".join(printable(text).split())


def plain_markdown(text: str) -> str:
    """A name as one line of Markdown that shows it: neither markup, a link, nor HTML."""
    escaped = _MARKDOWN.sub(r"\\\1", one_line(text).replace("&", "&amp;"))
    return escaped.replace("<", "&lt;").replace(">", "&gt;")


def quoted_markdown(text: str) -> str:
    """Markdown of somebody else's with bold, code and lists alone: links and HTML become text."""
    text = re.sub(r"\\([\[\]<>&])", r"\1", printable(html.unescape(text)))
    return re.sub(r"[&<>\[\]]", lambda found: _ENTITIES[found[0]], text)


def words_in_markdown(text: str) -> str:
    """Words of somebody else's for a sentence of Markdown, as one line without markup."""
    return re.sub(r"([*`|])", r"\\\1", quoted_markdown(one_line(html.unescape(text))))


def without_markdown(text: str) -> str:
    """The text that escapes in Markdown, such as `\\*` and `&lt;`, stand for."""
    return re.sub(r"\\([^\w\s])", r"\1", html.unescape(text))
