"""Targets, tables, pictures and the page made of records."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from bench_fakes import gpu_record, measured
from PIL import Image

from sfumato.bench import picture, record_tables, render
from sfumato.bench.cases import Case, scaling
from sfumato.bench.measurement import Measurement
from sfumato.bench.targets import ratio, verdicts
from sfumato.errors import UserError

WRN = Case(model="wrn-16-4", rows=2048, precision="bfloat16")
WRN16 = replace(WRN, views=16)


def test_a_target_that_is_missed_is_said_to_be() -> None:
    record = gpu_record(
        measured("not-private", WRN, 100_000.0),
        measured("sfumato", WRN, 64_000.0),
        measured("opacus", WRN, 9_000.0),
        measured("opacus-ghost", WRN, 12_000.0),
        measured("not-private", WRN16, 100_000.0, memory=4 << 30),
        measured("sfumato", WRN16, 96_000.0, memory=7 << 30),
    )
    large = replace(WRN16, physical=32, suite="large")
    record.add(measured("sfumato", large, 90_000.0, memory=17 << 30))
    found = {v.claim: v for v in verdicts(record)}
    room = found["wrn-16-4, K = 16, B = 4096: peak memory in GiB"]
    assert (room.found, room.word) == (17, "missed")
    assert "| 2048 x 32 |" in record_tables.measurements_markdown(record.measurements)
    assert found["wrn-16-4, K = 1: views/s of not private"].word == "missed"
    assert found["wrn-16-4, K = 16: views/s of not private"].word == "met"
    best = found["wrn-16-4, K = 1: views/s over Opacus ghost"]
    assert (best.found, best.word) == (pytest.approx(64 / 12), "met")
    memory = found["wrn-16-4, K = 16: peak memory of not private"]
    assert (memory.found, memory.word) == (1.75, "missed")
    jax = found["wrn-16-4, K = 16: views/s over JAX-Privacy's (33,900 views/s)"]
    assert jax.found == pytest.approx(96 / 33.9)
    assert "| **missed** |" in record_tables.verdicts_markdown(list(found.values()))


def test_the_fixed_number_of_a_peer_counts_on_its_own_gpu_only() -> None:
    rows = [measured("not-private", WRN16, 2e4), measured("sfumato", WRN16, 1e4)]
    other = verdicts(gpu_record(*rows, gpu="NVIDIA L4"))
    assert not any("JAX" in v.claim for v in other)


def test_what_was_not_measured_is_not_met() -> None:
    failed = Measurement("opacus", WRN, reason="out of memory")
    found = verdicts(gpu_record(measured("sfumato", WRN, 1.0), failed))
    assert {v.word for v in found} == {"not measured"}
    assert not any(v.met for v in found)


def test_on_a_cpu_the_target_is_opacus() -> None:
    case = Case(model="resnet9", rows=32)
    record = gpu_record(measured("sfumato", case, 60.0), measured("opacus", case, 41.0))
    record.hardware["device"] = "cpu"
    [verdict] = verdicts(record)
    assert (verdict.wanted, verdict.word) == (1.5, "missed")


def test_shares_are_of_the_faster_baseline_in_the_same_case() -> None:
    found = [
        measured("not-private", WRN, 50.0),
        measured("not-private-compiled", WRN, 100.0),
        measured("sfumato", WRN, 60.0),
        measured("sfumato", WRN16, 60.0),
        Measurement("vmap", WRN, reason="out of memory"),
    ]
    rows = record_tables.rows(found)
    share = record_tables.COLUMNS.index("of not private")
    assert [row[share] for row in rows] == ["0.50", "1.00", "0.60", record_tables.NONE]
    assert record_tables.missing(found) == ["torch.func vmap not measured on wrn-16-4 (K = 1): "
                                    "out of memory."]  # fmt: skip
    assert "out of memory" in record_tables.line(found[-1], None)
    assert "0.60 of not private" in record_tables.line(found[2], found[1])


def test_steps_that_took_turns_are_compared_turn_by_turn() -> None:
    slowing = [1.0, 2.0, 8.0]
    ours = Measurement("sfumato", WRN, times=slowing, paired=True)
    theirs = Measurement("opacus", WRN, times=[2.0, 3.9, 16.2], paired=True)
    assert ratio(ours, theirs) == pytest.approx(2.0)
    theirs.paired = False
    assert ratio(ours, theirs) == pytest.approx(3.9 / 2.0)


@pytest.mark.usefixtures("real_pictures")
def test_pictures_are_drawn(tmp_path: Path) -> None:
    bars = gpu_record(
        measured("not-private", WRN, 100.0, spread=0.1),
        measured("sfumato", WRN, 60.0),
        Measurement("vmap", WRN, reason="out of memory"),
    )
    assert picture.bars(bars, tmp_path / "bars.png")
    assert not picture.curves(bars, tmp_path / "none.png")
    cases = scaling("cuda", model=None, rows=None, views=None, precision="bfloat16")
    curves = gpu_record(*[measured(n, c, 9.0) for n in ("not-private", "sfumato") for c in cases])
    assert picture.curves(curves, tmp_path / "curves.png")
    assert not picture.bars(curves, tmp_path / "none.png")
    for name in ("bars.png", "curves.png"):
        assert min(Image.open(tmp_path / name).size) > 300
    assert not (tmp_path / "none.png").exists()


def checkout(root: Path, text: str) -> None:
    (root / render.RESULTS).mkdir(parents=True)
    (root / "docs").mkdir()
    (root / render.PAGE).write_text(text)


def test_the_page_is_made_of_records_and_keeps_its_own_text(tmp_path: Path) -> None:
    checkout(tmp_path, f"# Before\n\n{render.BEGIN}\nold\n{render.END}\n\nAfter.\n")
    record = gpu_record(measured("not-private", WRN, 100.0), measured("sfumato", WRN, 60.0))
    record.path = tmp_path / render.RESULTS / "h200.json"
    record.save()
    written = render.render(tmp_path)
    text = (tmp_path / render.PAGE).read_text()
    assert text.startswith("# Before\n") and text.endswith("\n\nAfter.\n")
    assert "old" not in text
    assert "**sfumato**" in text and "missed" in text
    assert "(images/performance-h200.png)" in text
    assert all(path.is_file() for path in written)
    assert len(written) == 2
    render.render(tmp_path)
    assert (tmp_path / render.PAGE).read_text() == text


def test_the_page_says_in_how_many_parts_a_record_was_made(tmp_path: Path) -> None:
    checkout(tmp_path, f"{render.BEGIN}\n{render.END}\n")
    record = gpu_record(measured("sfumato", WRN, 60.0))
    record.path = tmp_path / render.RESULTS / "h200.json"
    record.save()
    render.render(tmp_path)
    assert "parts" not in (tmp_path / render.PAGE).read_text()
    record.settings["resumed"] = ["2026-01-02T06:07:08+00:00"]
    record.save()
    render.render(tmp_path)
    said = "Measured in 2 parts, begun 2026-01-02 03:04 and 2026-01-02 06:07."
    assert said in (tmp_path / render.PAGE).read_text()


def test_a_page_without_markers_is_left_alone(tmp_path: Path) -> None:
    checkout(tmp_path, "# Mine\n")
    with pytest.raises(UserError, match="lacks the lines"):
        render.render(tmp_path)
    assert (tmp_path / render.PAGE).read_text() == "# Mine\n"
    with pytest.raises(UserError, match="checkout"):
        render.render(tmp_path / "elsewhere")


def test_the_page_of_this_checkout_is_up_to_date() -> None:
    root = Path(__file__).resolve().parents[2]
    text = (root / render.PAGE).read_text(encoding="utf-8")
    assert render.BEGIN in text and render.END in text
    for path in (root / render.RESULTS).glob("*.json"):
        assert path.name in text, f"run `sfumato bench --render`: {path.name} is not shown"
