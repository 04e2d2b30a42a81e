"""`sfumato init` as a user types it: what is said, asked and written, and nothing else."""

from __future__ import annotations

import io
import os
from pathlib import Path

import numpy as np
import pytest
from cli_result import Run, refused
from dicom_files import SECRET, write_scans
from patients import PATIENT, write_patients
from PIL import Image

from sfumato import recipes

QUICK = ("--device", "cpu", "--minutes", "600")


def state(*folders: Path) -> dict[str, tuple[int, bytes]]:
    """Everything below some folders: times and contents."""
    files = [path for folder in folders for path in folder.rglob("*") if path.is_file()]
    return {str(path): (path.stat().st_mtime_ns, path.read_bytes()) for path in files}


@pytest.fixture
def scans(tmp_path: Path) -> Path:
    return write_patients(tmp_path / "scans", 40, side=8)


def table(tmp_path: Path, *, units: bool) -> Path:
    random = np.random.default_rng(0)
    rows = ["path,label" + (",pid" if units else "")]
    for k in range(90):
        Image.fromarray(random.integers(0, 256, (8, 8), np.uint8)).save(tmp_path / f"{k}.png")
        rows.append(f"{k}.png,{'ab'[k % 2]}" + (f",p{k // 2}" if units else ""))
    (tmp_path / "labels.csv").write_text("\n".join(rows), encoding="utf-8")
    return tmp_path / "labels.csv"


class Typed(io.StringIO):
    """Answers on a terminal."""

    def isatty(self) -> bool:
        return True


def test_a_folder_of_patients(sfumato: Run, scans: Path, tmp_path: Path) -> None:
    cache = Path(os.environ["XDG_CACHE_HOME"])
    before = state(tmp_path, cache)
    done = sfumato("init", "scans", *QUICK)
    assert done.code == 0, done.err
    after = state(tmp_path, cache)
    assert set(after) - set(before) == {str(tmp_path / "recipe.toml")}
    assert {path: after[path] for path in before} == before
    for words in ("Units of privacy (patient)", "benign", "patients were found", "last-layer",
                  "Fashion-MNIST", "no promise", "on this machine",
                  "  sfumato plan recipe.toml\n  sfumato train recipe.toml\n"):  # fmt: skip
        assert words in done.out, words
    recipe = recipes.find("recipe.toml")
    assert recipe.data.unit == "patient" and recipe.data.name == "scans"
    assert recipe.privacy.epsilon == 8 and recipe.name == "scans"
    text = Path("recipe.toml").read_text(encoding="utf-8")
    assert "benign" not in text and PATIENT not in text
    refused(sfumato("init", "scans", *QUICK), "recipe.toml exists already")
    assert Path("recipe.toml").read_text(encoding="utf-8") == text


@pytest.mark.slow
def test_the_recipe_trains(sfumato: Run, scans: Path) -> None:
    assert sfumato("init", "scans", *QUICK).code == 0
    assert sfumato("plan", "recipe.toml", "--accountant", "rdp").code == 0
    done = sfumato("train", "recipe.toml", "--device", "cpu")
    assert done.code == 0 and "files          runs/scans-001" in done.out


def test_what_is_asked_at_a_terminal(
    sfumato: Run, scans: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.stdin", Typed("image\n2\n600\nn\n"))
    done = sfumato("init", "scans")
    assert done.code == 0, done.err
    for question in ("Unit of privacy [patient]", "epsilon [8.0]", "Minutes", "GPU? [y/N]"):
        assert question in done.err, question
    recipe = recipes.find("recipe.toml")
    assert (recipe.data.unit, recipe.privacy.epsilon) == ("image", 2.0)


@pytest.mark.slow
@pytest.mark.parametrize("units", [True, False])
def test_a_table(sfumato: Run, tmp_path: Path, units: bool) -> None:
    done = sfumato("init", table(tmp_path, units=units), "--yes", "--epsilon", "3", *QUICK)
    assert done.code == 0, done.err
    assert ("patients were found" in done.out) == units
    assert ("No patients with several images were found" in done.out) != units
    recipe = recipes.find("recipe.toml")
    assert recipe.data.unit == ("patient" if units else "image")
    assert recipe.name == "labels" and recipe.privacy.epsilon == 3


def test_an_npz_with_two_groups_is_not_one_with_patients(sfumato: Run, tmp_path: Path) -> None:
    random = np.random.default_rng(0)
    pixels = random.integers(0, 256, (80, 8, 8), np.uint8)
    np.savez(tmp_path / "a.npz", images=pixels, labels=np.arange(80) % 2, units=np.arange(80) // 8)
    done = sfumato("init", "a.npz", *QUICK)
    assert done.code == 0 and "groups of training images, too few" in done.out
    assert recipes.find("recipe.toml").data.unit == "image"


@pytest.mark.slow
def test_dicom_files_stay_unnamed(sfumato: Run, tmp_path: Path) -> None:
    pytest.importorskip("pydicom")
    scans = write_scans(tmp_path / "scans", 45)
    done = sfumato("init", scans, "--out", "mine.toml", *QUICK)
    assert done.code == 0 and "patients were found" in done.out
    text = Path("mine.toml").read_text(encoding="utf-8") + done.out + done.err
    assert SECRET not in text and PATIENT not in text


def test_mistakes_are_sentences_and_nothing_is_written(sfumato: Run, scans: Path) -> None:
    for words, said in (
        (("nowhere/",), "does not exist"),
        (("scans", "--unit", "eye", "--unit-pattern", "x"), "no group named unit"),
        (("scans", "--epsilon", "0"), "epsilon must be"),
        (("scans", "--minutes", "-1"), "--minutes -1"),
        (("scans", "--out", "recipe.txt"), "must end in .toml"),
        (("scans", "--out", "scans/recipe.toml"), "among the images"),
        (("scans", "--out", "no/recipe.toml"), "there is no folder"),
        (("scans", "--device", "tpu"), "tpu"),
    ):
        refused(sfumato("init", *words), said)
    assert not list(Path().glob("*.toml")) and not list(scans.rglob("*.toml"))
