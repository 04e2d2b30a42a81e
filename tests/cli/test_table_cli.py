"""Tables of labels on the command line: train, evaluate, and sentences about mistakes."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from cli_result import Run, refused
from patients import PATIENT
from PIL import Image

from sfumato.training import run_folder

QUICK = ("--set", "training.steps=2", "--set", "training.batch=6", "--device", "cpu",
         "--model", "tanh-cnn", "--set", "model.options.filters=2")  # fmt: skip


@pytest.fixture
def table(tmp_path: Path) -> Path:
    """Sixty images of thirty patients, as a hospital's export from Excel names them."""
    random = np.random.default_rng(0)
    lines = ["file;dx;pid"]
    for k in range(60):
        path = tmp_path / "scans" / f"{k}.png"
        path.parent.mkdir(exist_ok=True)
        Image.fromarray(random.integers(0, 256, (12, 12), dtype=np.uint8)).save(path)
        lines.append(f"{path.name};{('benign', 'malignant')[k % 2]};{PATIENT}{k // 2:03d}")
    found = tmp_path / "scans" / "labels.csv"
    found.write_text("\r\n".join(lines), encoding="utf-8-sig")
    return found


def test_from_a_table_to_an_evaluation(sfumato: Run, table: Path) -> None:
    done = sfumato("train", table, "--unit", "patient", *QUICK, "--out", "r")
    assert done.code == 0, done
    assert sfumato("evaluate", "r", "--device", "cpu").code == 0
    files = [p for p in Path("r").rglob("*") if p.is_file()]
    assert len(files) > 5
    assert not [file for file in files if PATIENT.encode() in file.read_bytes()]
    other = table.with_name("other.csv")
    other.write_text(table.read_text("utf-8-sig").replace("file;dx;pid", "where;what;who"))
    given = "path=where,label=what,unit=who"
    done = sfumato("train", "--data", other, "--columns", given, *QUICK, "--out", "s")
    assert done.code == 0, done
    assert 'columns = ["path=where", ' in Path("s", run_folder.RECIPE).read_text()
    assert sfumato("evaluate", "s", "--data", other, "--device", "cpu").code == 0
    assert sfumato("data", "show", other, "--columns", given).code == 0


def test_units_of_one_image_are_said(sfumato: Run, table: Path) -> None:
    lines = table.read_text("utf-8-sig").splitlines()
    each = [f"{line}-{k}" for k, line in enumerate(lines[1:])]
    table.write_text("\n".join([lines[0], *each]))
    done = sfumato("train", table, "--unit", "patient", *QUICK)
    assert done.code == 0
    assert "No patient has more than one training image" in " ".join((done.out + done.err).split())


def test_mistakes_are_sentences(sfumato: Run, table: Path) -> None:
    lines = table.read_text("utf-8-sig").splitlines()

    def trained(*new: str) -> object:
        table.write_text("\n".join(new))
        return sfumato("train", table, "--unit", "patient", *QUICK)

    refused(trained("name;dx;pid", *lines[1:]), "no column for the path", "'name', 'dx', 'pid'")
    refused(trained("file;dx;who", *lines[1:]), "belong to one patient", "'file', 'dx', 'who'")
    refused(trained(lines[0], *(f"x{line}" for line in lines[1:])), "'x0.png'", "55 more")
    refused(trained(*lines, lines[7]), "several rows for '6.png'")
    refused(trained("split;file;dx;pid", *(f"{('test', 'train', 'train')[k % 3]};{line}"
                    for k, line in enumerate(lines[1:]))), "same patient are in train")  # fmt: skip
    refused(trained(lines[0], *(line.replace(";benign;", ";;") for line in lines[1:])), "label")
    refused(trained(*(line.replace("benign", "malignant") for line in lines)), "only one class")
    refused(sfumato("train", table, "--columns", "label"), "ROLE=COLUMN")
    refused(sfumato("train", table.parent, "--columns", "label=dx"), "columns of a table")
