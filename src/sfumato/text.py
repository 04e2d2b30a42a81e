"""Text for people: numbers as they write them, and strangers' text made safe to show."""

from __future__ import annotations

import html
import re

from sfumato.errors import UserError

_OBEYED = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff\ufeff]"
)
"""Characters that a terminal or a page obeys: controls but tab and newline, turns of direction."""

_MARKDOWN = re.compile(r"([\\`*_{}\[\]#|!$~])")
_ENTITIES = {"&": "&amp;", "<": "&lt;", ">": "&gt;", "[": "&#91;", "]": "&#93;"}

NONE = "–"
"""Stands for a number that there is not."""

UNIT = "[a-z]{2,20}( [a-z]{2,20}){0,2}"
"""Pattern of the word for a unit of privacy, such as `patient`."""

DATA_FILES = (".npz", ".tar", ".csv", ".tsv", ".parquet")
"""Endings of files that hold, or name, the images of a data set."""

GIVEN = "python:"
"""Begins the name of data or of a model that was given as an object in Python."""

QUICK, QUICK_GREY = "last-layer", "last-layer-grey"
"""Names of the packaged recipes that take minutes on a CPU, for colour and for grey images."""


def quick_name(*, grey: bool) -> str:
    """The name of the packaged recipe that takes minutes on a CPU, for such images."""
    return QUICK_GREY if grey else QUICK


def check_unit(word: str) -> None:
    """Refuse what is no word for a unit of privacy."""
    if not re.fullmatch(UNIT, word):
        raise UserError(
            f"data.unit = '{word}' is no word for a unit of privacy: give one to three words of "
            "small letters, such as image or patient."
        )


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


def percent(value: float | None, decimals: int = 1) -> str:
    """A share as `92.1 %`; a dash for none and for NaN."""
    return NONE if value is None or value != value else f"{100 * value:.{decimals}f} %"


def count(value: int | None) -> str:
    """A whole number with thin spaces between thousands."""
    return NONE if value is None else f"{value:,}".replace(",", "\u202f")


def duration(seconds: float | None) -> str:
    """A time in seconds, minutes or hours."""
    if seconds is None:
        return NONE
    if seconds < 100:
        return f"{seconds:.0f} s"
    minutes = seconds / 60
    return f"{minutes:.0f} min" if minutes < 100 else f"{minutes / 60:.1f} h"


def power(value: float) -> str:
    """A small number as people write it: 10⁻⁵, 2·10⁻⁶."""
    mantissa, _, exponent = f"{value:.3e}".partition("e")
    if int(exponent) > -3:
        return f"{value:g}"
    raised = str(int(exponent)).translate(str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹"))
    first = float(mantissa)
    return f"10{raised}" if first == 1 else f"{first:g}·10{raised}"
