"""`sfumato predict` as a user types it."""

from __future__ import annotations

import csv
import io
import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from cli_result import Result, Run, refused
from PIL import Image
from safetensors.torch import save_file

from sfumato.data.decode import decode
from sfumato.training.classifier import load
from tiny_run import make_run


@pytest.fixture
def run(sfumato: Run) -> Run:
    return lambda *words: sfumato("predict", *words, "--device", "cpu")


@pytest.fixture
def scans(tmp_path: Path) -> Path:
    """Ten grey images, in a folder and one below it."""
    rng = np.random.default_rng(0)
    root = tmp_path / "scans"
    (root / "more").mkdir(parents=True)
    for k in range(10):
        pixels = rng.integers(0, 256, (20 + k, 16), dtype=np.uint8)
        Image.fromarray(pixels).save((root / "more" if k % 2 else root) / f"{k}.png")
    return root


def rows_of(result: Result) -> list[dict[str, str]]:
    return list(csv.DictReader(io.StringIO(result.out)))


def expected(folder: Path, file: Path) -> np.ndarray:
    model = load(folder)
    d = model.description
    image = decode(file, size=d.size, channels=d.channels, bits=d.bits)
    return model.predict(torch.tensor(image)[None])[0].numpy()


def test_csv_of_a_folder(run: Run, tmp_path: Path, scans: Path) -> None:
    folder = make_run(tmp_path / "run")
    result = run(folder, scans)
    assert result.code == 0, result.err
    rows = rows_of(result)
    assert list(rows[0]) == ["file", "class", "probability"]
    assert [Path(row["file"]) for row in rows] == sorted(scans.rglob("*.png"))
    for row in rows:
        chances = expected(folder, Path(row["file"]))
        assert row["class"] == str(chances.argmax())
        assert float(row["probability"]) == pytest.approx(chances.max(), rel=1e-4)


def test_top_k_columns(run: Run, tmp_path: Path, scans: Path) -> None:
    folder = make_run(tmp_path / "run")
    (row,) = rows_of(run(folder, scans / "0.png", "--top", 3))
    ranks = np.argsort(-expected(folder, scans / "0.png"))
    assert [row["class"], row["class_2"], row["class_3"]] == [str(k) for k in ranks[:3]]
    assert float(row["probability_2"]) >= float(row["probability_3"])
    refused(run(folder, scans, "--top", 11), "from 1 to 10")


def test_json_to_a_new_file(run: Run, tmp_path: Path, scans: Path) -> None:
    folder, out = make_run(tmp_path / "run"), tmp_path / "p.json"
    args = (folder, scans, "--format", "json", "--top", 2, "--out", out)
    result = run(*args)
    assert result.code == 0 and not result.out and str(out) in result.err
    content = json.loads(out.read_text())
    assert len(content) == 10
    first = content[0]
    assert first["class"] == first["top"][0]["class"] and len(first["top"]) == 2
    assert 0 < first["top"][1]["probability"] <= first["probability"] <= 1
    before = out.read_bytes()
    refused(run(*args), "p.json exists already")
    assert out.read_bytes() == before
    one = json.loads(run(folder, scans / "0.png", "--format", "json").out)
    assert set(one[0]) == {"file", "class", "probability"}


def test_class_and_file_names_with_commas_and_quotes(run: Run, tmp_path: Path, scans: Path) -> None:
    folder = make_run(tmp_path / "run", classes=('a, "b"', 'c,\n"d"'))
    odd = scans / 'x, "y".png'
    (scans / "0.png").rename(odd)
    (row,) = rows_of(run(folder, odd))
    assert row["file"] == str(odd) and row["class"] in ('a, "b"', 'c,\n"d"')
    assert json.loads(run(folder, odd, "--format", "json").out)[0]["file"] == str(odd)


def test_a_file_name_that_is_not_unicode(run: Run, tmp_path: Path, scans: Path) -> None:
    folder = make_run(tmp_path / "run")
    name = b"\xff.png".decode("utf-8", "surrogateescape")
    try:
        (scans / "0.png").rename(scans / name)
    except OSError:
        pytest.skip("the file system takes only Unicode names")
    out = tmp_path / "p.csv"
    assert run(folder, scans / name, "--out", out).code == 0
    assert b"\xff.png" in out.read_bytes()


def test_images_of_any_kind_as_in_training(run: Run, tmp_path: Path) -> None:
    folder = make_run(tmp_path / "run", channels=3, size=(16, 16))
    rng = np.random.default_rng(1)
    pixels = rng.integers(0, 256, (40, 30, 3), dtype=np.uint8)
    image = Image.fromarray(pixels)
    exif = Image.Exif()
    exif[0x0112] = 6
    image.save(tmp_path / "turned.jpg", exif=exif, quality=95)
    image.convert("CMYK").save(tmp_path / "ink.tif")
    image.convert("RGBA").save(tmp_path / "alpha.png")
    image.convert("P").save(tmp_path / "palette.gif")
    Image.fromarray(rng.integers(0, 65536, (9, 9)).astype(np.uint16)).save(tmp_path / "deep.png")
    files = [
        tmp_path / n for n in ("turned.jpg", "ink.tif", "alpha.png", "palette.gif", "deep.png")
    ]
    rows = rows_of(run(folder, *files, "--top", 10))
    assert [row["file"] for row in rows] == [str(file) for file in files]
    for row, file in zip(rows, files, strict=True):
        chances = expected(folder, file)
        assert row["class"] == str(chances.argmax())
        assert float(row["probability"]) == pytest.approx(chances.max(), rel=1e-4)


def test_unreadable_images(run: Run, tmp_path: Path, scans: Path) -> None:
    folder, out = make_run(tmp_path / "run"), tmp_path / "p.csv"
    broken = scans / "4.png"
    broken.write_bytes(broken.read_bytes()[:50])
    refused(run(folder, scans, "--out", out), "4.png cannot be read", "--skip-unreadable")
    assert sorted(p.name for p in tmp_path.iterdir()) == ["run", "scans"]
    for format in ("csv", "json"):
        result = run(folder, scans, "--format", format)
        refused(result, "4.png cannot be read")
        assert not result.out
    result = run(folder, scans, "--skip-unreadable")
    assert result.code == 0 and len(rows_of(result)) == 9
    assert f"Skipped: {broken}" in result.err and "1 of 10 images" in result.err
    for format in ("csv", "json"):
        only = run(folder, broken, "--skip-unreadable", "--format", format)
        refused(only, "none of the 1 files could be read")
        assert not only.out
    refused(run(folder, broken, "--skip-unreadable", "--out", out), "Nothing is predicted")
    assert not out.exists()


def test_what_is_not_there(run: Run, tmp_path: Path, scans: Path) -> None:
    folder = make_run(tmp_path / "run")
    refused(run(folder, tmp_path / "nowhere.png"), "There is no file or folder", "nowhere.png")
    (tmp_path / "empty").mkdir()
    refused(run(folder, tmp_path / "empty"), "empty holds no images")
    refused(run(tmp_path / "norun", scans), "There is no run folder")
    refused(run(scans, scans), "holds no model.safetensors")
    refused(run(folder, scans, "--out", tmp_path / "no" / "p.csv"), "there is no folder")


def test_weights_that_are_damaged_or_foreign(run: Run, tmp_path: Path, scans: Path) -> None:
    weights = make_run(tmp_path / "run") / "model.safetensors"
    assert len(rows_of(run(weights, scans))) == 10
    whole = weights.read_bytes()
    weights.write_bytes(whole[: len(whole) // 2])
    refused(run(tmp_path / "run", scans), "cannot be read as weights")
    save_file({"w": torch.zeros(3)}, weights)
    refused(run(weights, scans), "not written by sfumato")


@pytest.mark.slow
def test_into_a_pipe_that_closes(tmp_path: Path, scans: Path) -> None:
    folder = make_run(tmp_path / "run")
    command = (
        "import sys; from sfumato.cli import main; "
        f"sys.argv = ['sfumato', 'predict', {str(folder)!r}, *([{str(scans)!r}] * 400)]; main()"
    )
    producer = subprocess.Popen(
        [sys.executable, "-c", command], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    assert producer.stdout is not None and producer.stderr is not None
    assert producer.stdout.readline() == "file,class,probability\n"
    producer.stdout.close()
    assert "Traceback" not in producer.stderr.read()
    assert producer.wait(timeout=60) == 1


def test_arrays_that_train_takes(run: Run, tmp_path: Path, scans: Path) -> None:
    folder = make_run(tmp_path / "run")
    pixels = np.random.default_rng(2).integers(0, 256, (5, 8, 8), dtype=np.uint8)
    np.savez(tmp_path / "a.npz", images=pixels, labels=np.arange(5))
    result = run(folder, scans / "0.png", tmp_path / "a.npz", scans / "2.png")
    assert result.code == 0, result.err
    rows = rows_of(result)
    names = [f"{tmp_path / 'a.npz'}:images:{k}" for k in range(5)]
    assert [row["file"] for row in rows] == [
        str(scans / "0.png"), *names, str(scans / "2.png")
    ]  # fmt: skip
    chances = load(folder).predict(pixels).numpy()
    assert [row["class"] for row in rows[1:6]] == [str(k) for k in chances.argmax(1)]
    np.testing.assert_allclose(
        [float(row["probability"]) for row in rows[1:6]], chances.max(1), rtol=1e-4
    )


def test_arrays_of_parts_in_colour_and_of_another_size(run: Run, tmp_path: Path) -> None:
    folder, rng = make_run(tmp_path / "run"), np.random.default_rng(3)
    parts = {
        f"{part}_images": rng.integers(0, 256, (n, 16, 16, 3), dtype=np.uint8)
        for part, n in (("train", 300), ("test", 2))
    }
    np.savez(tmp_path / "m.npz", **parts)
    rows = rows_of(run(folder, tmp_path / "m.npz"))
    assert len(rows) == 302 and rows[299]["file"].endswith("m.npz:train_images:299")
    assert rows[301]["file"].endswith("m.npz:test_images:1")
    np.savez(tmp_path / "none.npz", numbers=np.arange(3))
    refused(run(folder, tmp_path / "none.npz"), "holds numbers", "it needs images")
    (tmp_path / "text.npz").write_text("not an archive")
    refused(run(folder, tmp_path / "text.npz"), "text.npz")


def test_decisions_by_threshold(run: Run, tmp_path: Path, scans: Path) -> None:
    folder = make_run(tmp_path / "run", classes=("ill", "well"))
    chances = [expected(folder, file)[0] for file in sorted(scans.rglob("*.png"))]
    between = float(np.median(chances))
    rows = rows_of(run(folder, scans, "--threshold", f"ill={between}"))
    assert [row["decision"] for row in rows] == [
        "ill" if chance >= between else "well" for chance in chances
    ]
    assert {row["decision"] for row in rows} == {"ill", "well"}
    assert list(rows[0]) == ["file", "class", "probability", "decision"]
    records = json.loads(run(folder, scans, "--threshold", 1, "--format", "json").out)
    assert [record["decision"] for record in records] == [None] * 10
    refused(run(folder, scans, "--threshold", "il=0.3"), "no class 'il'", "Did you mean 'ill'")
    for wrong in ("1.5", "ill=", "nan", "ill=-1"):
        refused(run(folder, scans, "--threshold", wrong), "a probability from 0 to 1")
