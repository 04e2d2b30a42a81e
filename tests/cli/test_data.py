"""`sfumato data` as a user types it."""

from __future__ import annotations

import subprocess
import sys

import numpy as np
import pytest
from cli_result import Result, refused
from PIL import Image

from sfumato.data import locate


@pytest.fixture
def run(sfumato, tmp_path, monkeypatch):
    monkeypatch.setattr(locate, "cache_folder", lambda: tmp_path / "cache")
    monkeypatch.setattr(locate, "SYSTEM_FOLDER", tmp_path / "system")
    monkeypatch.delenv("SFUMATO_DATA", raising=False)
    monkeypatch.setenv("COLUMNS", "200")
    return lambda *words: sfumato("data", *words)


@pytest.fixture
def shown(run):
    """Run and return what is printed; it must succeed."""

    def call(*words: object) -> str:
        result = run(*words)
        assert result.code == 0, result.err
        return result.out

    return call


def one_sentence(result: Result, *words: str) -> None:
    """Refused, and nothing else is said."""
    refused(result, *words)
    assert result.err.startswith("error: ") and result.err.count("\n") == 1, result.err


@pytest.fixture
def folder(tmp_path):
    random = np.random.default_rng(0)
    for name in ("cat", "[dog]"):
        (tmp_path / "pets" / name).mkdir(parents=True)
        for k in range(5):
            pixels = random.integers(0, 256, (9, 9, 3), dtype=np.uint8)
            Image.fromarray(pixels).save(tmp_path / "pets" / name / f"{k}.png")
    return tmp_path / "pets"


def test_list_names_every_set_and_place(shown, tmp_path):
    (tmp_path / "here" / "cifar-10-batches-py").mkdir(parents=True)
    (tmp_path / "here" / "cifar-10-batches-py" / "data_batch_1").touch()
    output = shown("list", "--data-root", tmp_path / "here")
    lines = {line.split()[0]: line for line in output.splitlines() if line.strip()}
    assert lines["digits"].split()[1:4] == ["1,797", "10", "1×8×8"]
    assert str(tmp_path / "here" / "cifar-10-batches-py") in lines["cifar10"]
    assert "not found" in lines["tiny-imagenet"] and "200" in lines["tiny-imagenet"]
    assert str(tmp_path / "cache") in output and str(tmp_path / "system") in output


def test_list_does_not_import_torch():
    code = (
        "import sys; from sfumato.cli.data import list_sets; list_sets(None); "
        "assert 'torch' not in sys.modules and 'sklearn' not in sys.modules"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_show_a_folder(run, shown, folder, tmp_path):
    picture = tmp_path / "sheet.png"
    output = shown("show", folder, "--picture", picture)
    assert "8 train, 2 test" in output and "3×9×9" in output
    assert "[dog]" in output and "cat" in output
    assert "Fingerprint of train: " in output and "set aside" in output
    with Image.open(picture) as image:
        pixels = np.asarray(image)
    assert pixels.ndim == 3 and len(np.unique(pixels)) > 50
    before = picture.read_bytes()
    one_sentence(run("show", folder, "--picture", picture), "sheet.png exists already")
    assert picture.read_bytes() == before
    one_sentence(run("show", folder, "--picture", tmp_path / "sheet.jpg"), "must end in .png")
    one_sentence(run("show", folder, "--picture", tmp_path / "no" / "sheet.png"), "no folder")


def test_show_reports_what_was_skipped(run, shown, folder):
    (folder / "cat" / "3.png").write_text("no image")
    one_sentence(run("show", folder), "cat/3.png cannot be read", "--skip-unreadable")
    output = shown("show", folder, "--skip-unreadable")
    assert "Skipped as unreadable: 1" in output and str(folder / "cat" / "3.png") in output


def test_show_options_reach_the_loader(shown):
    output = shown("show", "digits", "--size", 12, "--channels", 3, "--validation", 0.1)
    assert "3×12×12" in output and "validation" in output and "scaled from 8×8" in output


def test_show_many_classes_and_floats(shown, tmp_path):
    images = np.random.default_rng(0).random((80, 6, 6)).astype(np.float32)
    images[0, 0, 0] = np.nan
    np.savez(tmp_path / "many.npz", images=images, labels=np.arange(80) % 40)
    output = shown("show", tmp_path / "many.npz", "--picture", tmp_path / "many.png")
    assert "40 classes in all, with 1 to 2 training images each" in output
    assert (tmp_path / "many.png").stat().st_size > 1000


def test_show_what_is_not_there(run, tmp_path):
    one_sentence(run("show", "cifer10"), "Did you mean 'cifar10'?")
    one_sentence(run("show", "mnist"), "`sfumato data get mnist`")
    one_sentence(run("show", tmp_path / "nowhere"), "does not exist")


def test_get_without_a_network(run, monkeypatch, tmp_path):
    def unreachable(url, **_):
        raise OSError("Network is unreachable")

    monkeypatch.setattr("pooch.retrieve", unreachable)
    one_sentence(
        run("get", "cifar10", "--to", tmp_path),
        "https://www.cs.toronto.edu/~kriz/cifar-10-python.tar.gz",
        str(tmp_path / "cifar-10-python.tar.gz"),
    )
    one_sentence(run("get", "nothing"), "'nothing'")
