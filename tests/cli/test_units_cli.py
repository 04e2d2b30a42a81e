"""Units of privacy on the command line, from a folder of scans to the statement."""

from __future__ import annotations

import html
import json
import re
from pathlib import Path

import pytest
from cli_result import Run, refused
from patients import PATIENT, write_patients

from sfumato.training import run_folder

QUICK = ("--set", "training.steps=2", "--set", "training.batch=6", "--device", "cpu",
         "--model", "tanh-cnn", "--set", "model.options.filters=2")  # fmt: skip

OF_IMAGES = re.compile(
    r"(?:\b(?:one|that|each|every other|these|same|training|which|what all|about) images?\b|"
    r"the images:).{0,40}",
    re.IGNORECASE,
)
"""Images where a sentence about the guarantee must have its unit."""

ABOUT_PIXELS = (
    "at most 4 images each step", "views per image", "size and channels of the images",
    "images held out for validation, and the test images", "with all of its images",
    "the images of these patients", "the images of the patients", "images of that patient were",
    "all images of every other patient", "which of their images",
    "The images that a temperature was fitted on", "fitted on the images that it names",
)  # fmt: skip
"""Words about images that hold whatever the unit is."""


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


def test_whatever_a_reader_sees_speaks_of_patients(sfumato: Run, scans: Path) -> None:
    done = sfumato("train", scans, "--unit", "patient", "--epsilon", 8, *QUICK, "--out", "r",
                   "--set", "data.validation=0.2")  # fmt: skip
    assert done.code == 0, done
    for verb in ("report", "card"):
        made = sfumato(verb, "r", "--out", f"{verb}.out", "--device", "cpu")
        assert made.code == 0, made
    card, page = (Path(f"{verb}.out").read_text() for verb in ("card", "report"))
    page = re.sub("<(script|style|pre).*?</\\1>", "", page, flags=re.DOTALL)
    texts = {
        "statement": Path("r", run_folder.STATEMENT).read_text(),
        "guarantee": Path("r", run_folder.GUARANTEE).read_text(),
        "card": re.sub("<details>.*?</details>", "", card, flags=re.DOTALL),
        "report": html.unescape(re.sub("<[^>]*>", "", page)),
        "verify": sfumato("verify", "r").out,
        "budget": sfumato("budget", "r").err,
    }
    plain = {name: " ".join(text.split()) for name, text in texts.items()}
    for name, text in plain.items():
        assert not (found := OF_IMAGES.findall(text)), (name, found)
    for name in ("statement", "card", "report"):
        assert "with any one patient in the training set" in plain[name]
        assert "Whoever guesses whether that patient was in it" in plain[name]
        assert "one patient (at most 4 images each step, averaged before clipping)" in plain[name]
        assert "each patient's gradient scaled to norm at most C = 1" in plain[name]
        assert "Whoever trained the model had the images of the patients" in plain[name]
        assert "Patients that were held out" in plain[name] and "Several patients" in plain[name]
    assert "each patient's gradient scaled to norm at most C = 1" in plain["guarantee"]
    for name in ("statement", "guarantee"):
        rest = plain[name].replace("images_per_unit", "")
        for words in ABOUT_PIXELS:
            rest = rest.replace(words, "")
        assert "image" not in rest.lower(), re.findall(r"[^.]*\bimages?\b[^.]*", rest)
    assert "Say how many patients together" in plain["budget"]


def test_the_unit_is_a_word(sfumato: Run, scans: Path) -> None:
    for words in (("data", "show", scans), ("train", scans, *QUICK)):
        refused(sfumato(*words, "--unit", "P[1]"), "is no word for a unit of privacy")


def test_a_single_patient_is_not_advised_to_be_split_otherwise(sfumato: Run, scans: Path) -> None:
    pattern = ("--unit", "patient", "--unit-pattern", f"(?P<unit>{PATIENT})")
    result = sfumato("train", scans, *pattern, *QUICK)
    refused(result, "All images of", "are of one patient", "add images of other patients")
    assert "split_seed" not in result.err
    few = sfumato("train", scans, "--unit", "patient", *QUICK, "--set", "data.test_fraction=0.0001")
    refused(few, "No patient of", "add patients", "data.split_seed=1")


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
