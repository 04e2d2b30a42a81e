"""Units of privacy on the command line, from a folder of scans to the statement."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from cli_result import Run, refused
from patients import PATIENT, write_patients

from sfumato.training import run_folder

QUICK = ("--set", "training.steps=2", "--set", "training.batch=6", "--device", "cpu",
         "--model", "tanh-cnn", "--set", "model.options.filters=2")  # fmt: skip


@pytest.fixture
def scans(tmp_path: Path) -> Path:
    return write_patients(tmp_path / "scans")


def test_training_by_patient_on_a_folder(sfumato: Run, scans: Path) -> None:
    shown = sfumato("data", "show", scans, "--unit", "patient")
    assert shown.code == 0 and "Units of privacy (patient):" in shown.out
    done = sfumato("train", scans, "--unit", "patient", "--epsilon", 8, *QUICK, "--out", "r")
    assert done.code == 0, done
    ledger = [json.loads(line) for line in Path("r", run_folder.LEDGER).read_text().splitlines()]
    train = next(line for line in shown.out.splitlines() if line.startswith("Units"))
    assert f" {ledger[0]['examples']} train" in train
    assert "patient" in Path("r", run_folder.STATEMENT).read_text()
    assert sfumato("evaluate", "r", "--device", "cpu").code == 0
    group = sfumato("budget", "r", "--group", 3).out
    assert "ε of one patient" in group and "ε of 3 patients together" in group
    files = [p for p in Path("r").rglob("*") if p.is_file()]
    assert len(files) > 5
    assert not [file for file in files if PATIENT.encode() in file.read_bytes()]


def test_the_unit_is_a_word(sfumato: Run, scans: Path) -> None:
    for words in (("data", "show", scans), ("train", scans, *QUICK)):
        refused(sfumato(*words, "--unit", "P[1]"), "is no word for a unit of privacy")


def test_a_patient_in_two_parts_is_refused_by_name(sfumato: Run, scans: Path) -> None:
    whole = scans.with_name("divided")
    for part in ("train", "test"):
        (whole / part).mkdir(parents=True)
    scans.rename(whole / "train" / "x")
    for name in ("benign", "malignant"):
        (whole / "train" / "x" / name).rename(whole / "train" / name)
    (whole / "train" / "x").rmdir()
    copied = whole / "test" / "benign" / f"{PATIENT}004"
    copied.mkdir(parents=True)
    (copied / "9.png").write_bytes(
        (whole / "train" / "benign" / f"{PATIENT}004" / "0.png").read_bytes()
    )
    result = sfumato("train", whole, "--unit", "patient", *QUICK)
    refused(result, f"images of the same patient are in train and in test ('{PATIENT}004')")
    refused(sfumato("train", whole, "--unit-pattern", "(?P<unit>P)"), "--unit patient")
