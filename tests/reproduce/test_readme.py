"""The README's generated table."""

from __future__ import annotations

import re
from pathlib import Path

from sfumato.reproduce import readme, results_file

ROOT = Path(__file__).parents[2]


def test_the_table_is_that_of_the_recorded_results() -> None:
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    between = text.partition(readme.BEGIN)[2].partition(readme.END)[0].strip()
    assert between == readme.table(results_file.read(ROOT / "results"))
    assert between.count("\n") == len(readme.SHOWN) + 1


def test_only_the_text_between_the_marks_is_written(tmp_path: Path) -> None:
    file = tmp_path / "README.md"
    assert readme.update(file, []) == []
    file.write_text("no marks", encoding="utf-8")
    assert readme.update(file, []) == [] and file.read_text() == "no marks"
    file.write_text(f"before {readme.BEGIN}old{readme.END} after", encoding="utf-8")
    assert readme.update(file, []) == [file]
    assert re.fullmatch(r"before .*\| images .* after", file.read_text("utf-8"), flags=re.S)


def test_lines_are_of_one_width() -> None:
    lines = (ROOT / "README.md").read_text(encoding="utf-8").splitlines()
    long = [line for line in lines if len(line) > 132 and not line.startswith(("|", "![", "["))]
    assert not long
