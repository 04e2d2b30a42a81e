"""`sfumato predict` of what `train` takes: tables, shards, DICOM, arrays, with their units."""

from __future__ import annotations

import csv
import io
import json
from pathlib import Path

import numpy as np
import pytest
import torch
from cli_result import Result, Run, refused
from data_layouts import image_bytes, write_shards, write_tar
from dicom_files import SECRET, slices, write_dicom, write_scans
from patients import PATIENT
from PIL import Image

from sfumato import models
from sfumato.data import load as load_data
from sfumato.training.classifier import Description, load, save_weights
from tiny_run import make_run


@pytest.fixture
def run(sfumato: Run) -> Run:
    return lambda *words: sfumato("predict", *words, "--device", "cpu")


def rows_of(result: Result) -> list[dict[str, str]]:
    assert result.code == 0, result.err
    return list(csv.DictReader(io.StringIO(result.out)))


def write_images(folder: Path, count: int) -> None:
    random = np.random.default_rng(0)
    folder.mkdir(exist_ok=True)
    for k in range(count):
        Image.fromarray(random.integers(0, 256, (9, 9), np.uint8)).save(folder / f"{k}.png")


@pytest.mark.parametrize("labels", [True, False])
def test_a_table_is_predicted_row_by_row(run: Run, tmp_path: Path, labels: bool) -> None:
    folder = make_run(tmp_path / "run")
    write_images(tmp_path / "scans", 5)
    lines = ["dx;image;pid" if labels else "image;pid"]
    for k in (3, 1, 4):
        lines.append(f"{'ab'[k % 2]};{k}.png;p{k}" if labels else f"{k}.png;p{k}")
    (tmp_path / "scans" / "t.csv").write_text("\n".join(lines), encoding="utf-8")
    rows = rows_of(run(folder, "scans/t.csv"))
    assert list(rows[0]) == ["file", "unit", "class", "probability"]
    assert [row["file"] for row in rows] == [f"scans/{k}.png" for k in (3, 1, 4)]
    assert [row["unit"] for row in rows] == ["p3", "p1", "p4"]
    alone = {row["file"]: row for row in rows_of(run(folder, "scans"))}
    assert all(alone[row["file"]]["class"] == row["class"] for row in rows)
    assert all(alone[row["file"]]["probability"] == row["probability"] for row in rows)


def test_columns_are_named_and_units_come_from_paths(run: Run, tmp_path: Path) -> None:
    folder = make_run(tmp_path / "run")
    write_images(tmp_path / "scans", 4)
    table = tmp_path / "t.csv"
    table.write_text("where,eye\nscans/0.png,L\nscans/0.png,R\n", encoding="utf-8")
    rows = rows_of(run(folder, table, "--columns", "path=where,unit=eye"))
    assert [row["unit"] for row in rows] == ["L", "R"]
    done = run(folder, "scans", "--unit-pattern", r"(?P<unit>\d)\.png", "--format", "json")
    assert [record["unit"] for record in json.loads(done.out)] == list("0123")
    refused(run(folder, table), "no column for the path")
    refused(run(folder, "scans", "--columns", "path=where"), "none is given")
    refused(run(folder, "scans", "--unit-pattern", "(?P<unit>Z)"), "finds no unit")
    table.write_text("path\nscans/0.png\nscans/nowhere.png\n", encoding="utf-8")
    refused(run(folder, table), "1 of 2 files", "nowhere.png")
    table.write_text("path,b\n,1\n", encoding="utf-8")
    refused(run(folder, table), "Line 2", "no path")
    table.write_text("path\n", encoding="utf-8")
    refused(run(folder, table), "no rows")


def test_units_of_arrays(run: Run, tmp_path: Path) -> None:
    folder = make_run(tmp_path / "run")
    pixels = np.random.default_rng(0).integers(0, 256, (4, 8, 8), np.uint8)
    np.savez(tmp_path / "a.npz", images=pixels, labels=np.arange(4), units=np.array(list("xxyz")))
    np.savez(tmp_path / "b.npz", images=pixels)
    rows = rows_of(run(folder, "a.npz", "b.npz"))
    assert [row["unit"] for row in rows] == [*"xxyz", "", "", "", ""]
    assert "unit" not in rows_of(run(folder, "b.npz"))[0]
    np.savez(tmp_path / "c.npz", images=pixels, units=np.arange(3))
    refused(run(folder, "c.npz"), "units must be one number or name for each of images")


def test_shards_in_a_folder_a_file_or_a_pattern(run: Run, tmp_path: Path) -> None:
    folder = make_run(tmp_path / "run")
    write_shards(tmp_path / "shards" / "train", 7, per_shard=4)
    rows = rows_of(run(folder, "shards"))
    first, second = (f"shards/train/shard-00000{k}.tar" for k in (0, 1))
    names = [f"{first}:0000{k}.png" for k in range(4)]
    assert [row["file"] for row in rows] == names + [f"{second}:0000{k}.png" for k in (4, 5, 6)]
    (tmp_path / "files").mkdir()
    for k in range(7):
        (tmp_path / "files" / f"{k}.png").write_bytes(image_bytes(k))
    alone = rows_of(run(folder, "files"))
    assert [row["probability"] for row in rows] == [row["probability"] for row in alone]
    assert rows_of(run(folder, second)) == rows[4:]
    assert rows_of(run(folder, "shards/train/shard-{000000..000001}.tar")) == rows
    refused(run(folder, "shards/train/shard-{000000..000002}.tar"), "1 of the 3 shards", "000002")
    refused(run(folder, "shards/none.tar"), "no file or folder")


def test_shards_of_new_images_have_no_labels(run: Run, tmp_path: Path) -> None:
    folder = make_run(tmp_path / "run")
    write_tar(tmp_path / "new.tar", {"./P1/a.png": image_bytes(0), "P2/a.b.png": image_bytes(1),
                                     "P2/notes.txt": b"-"})  # fmt: skip
    rows = rows_of(run(folder, "new.tar", "--unit-pattern", r"^(?P<unit>P\d)/"))
    assert [row["file"] for row in rows] == ["new.tar:P1/a.png", "new.tar:P2/a.b.png"]
    assert [row["unit"] for row in rows] == ["P1", "P2"]
    labelled = {"a.png": image_bytes(0), "a.mask.png": image_bytes(1), "a.cls": b"0",
                "b.png": b"no image"}  # fmt: skip
    write_tar(tmp_path / "mixed" / "x.tar", labelled)
    (tmp_path / "mixed" / "beside.png").write_bytes(image_bytes(2))
    refused(run(folder, "mixed"), "mixed/x.tar:b.png cannot be read")
    done = run(folder, "mixed", "--skip-unreadable")
    assert [row["file"] for row in rows_of(done)] == ["mixed/beside.png", "mixed/x.tar:a.png"]
    write_tar(tmp_path / "empty.tar", {"notes.txt": b"-"})
    refused(run(folder, "empty.tar"), "hold no images")
    (tmp_path / "cut.tar").write_bytes((tmp_path / "new.tar").read_bytes()[:700])
    refused(run(folder, "cut.tar"), "cut short")


@pytest.fixture
def windowed(tmp_path: Path) -> Path:
    """A model of 12×12 grey images with a window of values."""
    torch.manual_seed(0)
    options = {"filters": 4}
    network = models.create("tanh-cnn", classes=2, channels=1, size=(12, 12), **options)
    description = Description(
        "tanh-cnn", options, ("benign", "malignant"), 1, (12, 12), (0.5,), (0.5,),
        window=(2000.0, 3000.0),
    )  # fmt: skip
    save_weights(tmp_path / "w.safetensors", network, description)
    return tmp_path / "w.safetensors"


def test_dicom_frames_as_they_are_for_training(run: Run, tmp_path: Path, windowed: Path) -> None:
    pytest.importorskip("pydicom")
    scans = write_scans(tmp_path / "scans", 6)
    assert load(windowed).description.window == (2000.0, 3000.0)
    done = run(windowed, "scans")
    rows = rows_of(done)
    assert list(rows[0]) == ["file", "class", "probability"]
    names = [row["file"] for row in rows]
    assert names[:3] == [f"scans/benign/{n}" for n in ("0a.dcm:1", "0a.dcm:2", "0b.dcm")]
    assert len(names) == 18
    assert SECRET not in done.out + done.err and PATIENT not in done.out + done.err
    whole = load_data(scans, window=(2000, 3000), cache=False)
    chances = np.concatenate(
        [load(windowed).predict(part.images).numpy() for part in whole.parts().values()]
    )
    found = sorted(float(row["probability"]) for row in rows)
    assert found == pytest.approx(sorted(chances.max(1).tolist()), rel=1e-5)
    (tmp_path / "t.csv").write_text("path,pid\nscans/benign/0a.dcm,mine\n", encoding="utf-8")
    rows = rows_of(run(windowed, "t.csv"))
    assert [row["unit"] for row in rows] == ["mine", "mine"]


def test_dicom_files_that_cannot_be_read(run: Run, tmp_path: Path, windowed: Path) -> None:
    pytest.importorskip("pydicom")
    good = write_dicom(tmp_path / "d" / "a.dcm", slices(1)[0])
    (tmp_path / "d" / "b.dcm").write_bytes(b"no file of DICOM's")
    refused(run(windowed, "d"), "b.dcm cannot be read", "--skip-unreadable")
    done = run(windowed, "d", "--skip-unreadable")
    assert [row["file"] for row in rows_of(done)] == ["d/a.dcm"] and "Skipped: d/b.dcm" in done.err
    colour = np.zeros((12, 12, 3), np.uint8)
    write_dicom(tmp_path / "d" / "c.dcm", colour, bits=8, photometric="RGB")
    refused(run(windowed, "d"), "in colour (RGB)")
    assert rows_of(run(windowed, good))[0]["class"] in ("benign", "malignant")


@pytest.mark.slow
def test_a_run_keeps_its_window_with_the_weights(sfumato: Run, tmp_path: Path) -> None:
    pytest.importorskip("pydicom")
    write_scans(tmp_path / "scans")
    quick = ("--set", "training.steps=2", "--set", "training.batch=6", "--model", "tanh-cnn",
             "--set", "model.options.filters=2", "--device", "cpu", "--out", "r")  # fmt: skip
    done = sfumato("train", "scans", "--set", "data.window=[2000, 3000]", *quick)
    assert done.code == 0, done.err
    assert load("r").description.window == (2000.0, 3000.0)
    done = sfumato("evaluate", "r/model.safetensors", "--data", "scans", "--device", "cpu")
    assert done.code == 0, done.err


@pytest.mark.parametrize("window", [(), (1.0,), (0.0, 1.0), (0.0, float("nan")), (0.0, "3")])
def test_a_description_with_an_impossible_window_is_refused(window: tuple[object, ...]) -> None:
    with pytest.raises(ValueError, match="window"):
        Description("m", {}, ("a",), 1, (8, 8), (0.5,), (0.5,), window=window)
