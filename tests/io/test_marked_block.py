"""Generated text between two marks."""

from __future__ import annotations

from pathlib import Path

import pytest

from sfumato.io.marked_block import has_block, replace_block


def test_only_the_text_between_the_marks_changes(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text("Before.\n<begin>\nold\n<end>\nAfter ü.\n", encoding="utf-8")
    assert replace_block(page, "<begin>", "<end>", "new\nlines")
    expected = "Before.\n<begin>\nnew\nlines\n<end>\nAfter ü.\n"
    assert page.read_text(encoding="utf-8") == expected
    assert replace_block(page, "<begin>", "<end>", "new\nlines")
    assert page.read_text(encoding="utf-8") == expected


@pytest.mark.parametrize("text", ["", "<begin>", "<end>", "<end> <begin>"])
def test_a_file_without_both_marks_in_order_stays(tmp_path: Path, text: str) -> None:
    page = tmp_path / "page.md"
    page.write_text(text)
    assert not has_block(page, "<begin>", "<end>")
    assert not replace_block(page, "<begin>", "<end>", "new")
    assert page.read_text() == text
