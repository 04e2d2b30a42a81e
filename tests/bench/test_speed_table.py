"""The README's table of speeds."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from bench_fakes import gpu_record, measured

from sfumato.bench import render, speed_table
from sfumato.bench.cases import Case

WRN = Case(model="wrn-16-4", views=1, precision="bfloat16")


def test_the_newest_measurement_beside_not_private_is_shown() -> None:
    four = replace(WRN, views=4)
    old = gpu_record(
        measured("not-private", WRN, 100_000.0), measured("sfumato", WRN, 50_000.0),
        measured("opacus", WRN, 10_000.0), measured("opacus-ghost", WRN, 12_340.0),
        measured("not-private", four, 100_000.0), measured("sfumato", four, 60_000.0),
    )  # fmt: skip
    new = gpu_record(
        measured("not-private", WRN, 100_000.0), measured("sfumato", WRN, 87_654.0),
        measured("sfumato", four, 99_000.0),
    )  # fmt: skip
    new.date = "2026-02-02T03:04:05+00:00"
    lines = speed_table.table([old, new]).splitlines()
    assert len(lines) == 3
    shown = "| WRN-16-4 | 87 700 (0.88) | 60 000 (0.60) | – | 12 300 |"
    assert lines[2].replace("\u202f", " ") == shown


def test_rendering_writes_the_table_into_a_readme_with_marks(tmp_path: Path) -> None:
    (tmp_path / render.RESULTS).mkdir(parents=True)
    (tmp_path / "docs").mkdir()
    (tmp_path / render.PAGE).write_text(f"{render.BEGIN}\n{render.END}\n")
    record = gpu_record(measured("not-private", WRN, 1e5), measured("sfumato", WRN, 9e4))
    record.path = tmp_path / render.RESULTS / "h200.json"
    record.save()
    front = tmp_path / render.README
    front.write_text("# Mine\n")
    assert front not in render.render(tmp_path)
    assert front.read_text() == "# Mine\n"
    front.write_text(f"# Mine\n{render.BEGIN}\n{render.END}\nMore.\n")
    assert front in render.render(tmp_path)
    assert "| WRN-16-4 | 90" in front.read_text() and front.read_text().endswith("More.\n")


def test_the_committed_readme_shows_the_committed_records() -> None:
    from sfumato.bench import record

    root = Path(__file__).parents[2]
    records = [record.read(path) for path in sorted((root / render.RESULTS).glob("*.json"))]
    assert speed_table.table(records) in (root / render.README).read_text(encoding="utf-8")
