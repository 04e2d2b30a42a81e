"""DICOM files on the command line, from training to export, without a word about patients."""

from __future__ import annotations

import csv
from pathlib import Path

import pytest
import torch
from cli_result import Run, refused
from dicom_files import SECRET, slices, write_dicom, write_scans
from patients import PATIENT

pytest.importorskip("pydicom")

QUICK = ("--set", "training.steps=2", "--set", "training.batch=6", "--device", "cpu",
         "--model", "tanh-cnn", "--set", "model.options.filters=2")  # fmt: skip


def test_from_slices_to_an_exported_model(
    sfumato: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cache = tmp_path / "cache"
    monkeypatch.setenv("SFUMATO_CACHE", str(cache))
    scans = write_scans(tmp_path / "scans")
    said = []
    for words in (
        ("train", scans, "--unit", "patient", "--set", "data.window=[2000, 3000]", *QUICK,
         "--out", "r"),
        ("evaluate", "r", "--device", "cpu"),
        ("evaluate", "r", "--data", scans, "--device", "cpu", "--out", "other"),
        ("data", "show", scans, "--unit", "patient"),
        ("report", "r"),
        ("predict", "r", scans, "--device", "cpu", "--out", "other/found.csv"),
        ("export", "r", "--to", "torchscript", "--out", "other/model.pt"),
    ):  # fmt: skip
        done = sfumato(*words)
        assert done.code == 0, done
        said.append(done.out + done.err)
    with open("other/found.csv", newline="", encoding="utf-8") as file:
        found = list(csv.DictReader(file))
    assert len(found) == 90 and {row["class"] for row in found} <= {"benign", "malignant"}
    assert set(found[0]) == {"file", "class", "probability"}
    probabilities = torch.jit.load("other/model.pt")(torch.rand(3, 1, 12, 12))
    torch.testing.assert_close(probabilities.sum(1), torch.ones(3))
    written = [path for folder in ("r", "other", cache) for path in Path(folder).rglob("*")]
    texts = [path.read_bytes() for path in written if path.is_file()]
    assert len(texts) > 8 and any(path.suffix == ".npy" for path in written)
    for text in (*texts, *(words.encode() for words in said)):
        assert SECRET.encode() not in text and PATIENT.encode() not in text


def test_mistakes_are_sentences(sfumato: Run, tmp_path: Path) -> None:
    scans = write_scans(tmp_path / "scans", 4)
    train = ("train", scans, "--unit", "patient", *QUICK)
    refused(sfumato("train", scans, "--unit", "eye", *QUICK), "data.unit_field=")
    refused(sfumato(*train, "--set", "data.window=[40]"), "the centre and the width")
    report = write_dicom(scans / "benign" / "report.dcm", None)
    refused(sfumato(*train), "report.dcm cannot be read (a DICOM file without pixels")
    report.unlink()
    write_dicom(scans / "benign" / "w.dcm", slices(1)[0], photometric="MONOCHROME1")
    refused(sfumato(*train), "two photometric interpretations", "data.mixed_photometric=true")
