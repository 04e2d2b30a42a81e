"""Generated text between two marks of a file that people write."""

from __future__ import annotations

from pathlib import Path

from sfumato.io.atomic import write_whole


def has_block(path: Path, begin: str, end: str) -> bool:
    """Tell whether a file has both marks, in this order."""
    _, found, rest = path.read_text(encoding="utf-8").partition(begin)
    return bool(found) and end in rest


def replace_block(path: Path, begin: str, end: str, content: str) -> bool:
    """Put text between two marks; the text around them stays.

    Args:
        path: The file.
        begin: The mark before the text.
        end: The mark after it.
        content: The text, on lines of its own.

    Returns:
        Whether the file has both marks.
    """
    if not has_block(path, begin, end):
        return False
    before, _, rest = path.read_text(encoding="utf-8").partition(begin)
    after = rest.partition(end)[2]
    write_whole(path, f"{before}{begin}\n{content}\n{end}{after}".encode())
    return True
