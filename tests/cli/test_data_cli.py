"""`sfumato data` as a user types it."""

from __future__ import annotations

import subprocess
import sys
from typing import NamedTuple

import numpy as np
import pytest
from PIL import Image

from sfumato import cli
from sfumato.data import locate


class Result(NamedTuple):
    code: int
    out: str
    err: str


@pytest.fixture
def run(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(locate, "cache_folder", lambda: tmp_path / "cache")
    monkeypatch.setattr(locate, "SYSTEM_FOLDER", tmp_path / "system")
    monkeypatch.delenv("SFUMATO_DATA", raising=False)
    monkeypatch.setenv("COLUMNS", "200")

    def call(*words: object) -> Result:
        monkeypatch.setattr(sys, "argv", ["sfumato", "data", *map(str, words)])
        with pytest.raises(SystemExit) as left:
            cli.main()
        out, err = capsys.readouterr()
        return Result(left.value.code or 0, out, err)

    return call


@pytest.fixture
def shown(run):
    """Run and return what is printed; it must succeed."""

    def call(*words: object) -> str:
        result = run(*words)
        assert result.code == 0, result.err
        return result.out

    return call


@pytest.fixture
def refused(run):
    """Run and return the one sentence of the error."""

    def call(*words: object) -> str:
        result = run(*words)
        assert result.code == 2 and "Traceback" not in result.err
        assert result.err.startswith("error: ") and result.err.count("\n") == 1
        return result.err

    return call


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


def test_show_a_folder(shown, refused, folder, tmp_path):
    picture = tmp_path / "sheet.png"
    output = shown("show", folder, "--picture", picture)
    assert "8 train, 2 test" in output and "3×9×9" in output
    assert "[dog]" in output and "cat" in output
    assert "Fingerprint of train: " in output and "set aside" in output
    with Image.open(picture) as image:
        pixels = np.asarray(image)
    assert pixels.ndim == 3 and len(np.unique(pixels)) > 50
    before = picture.read_bytes()
    assert "sheet.png exists already" in refused("show", folder, "--picture", picture)
    assert picture.read_bytes() == before
    assert "must be a .png" in refused("show", folder, "--picture", tmp_path / "sheet.jpg")
    assert "does not exist" in refused("show", folder, "--picture", tmp_path / "no" / "sheet.png")


def test_show_reports_what_was_skipped(shown, refused, folder):
    (folder / "cat" / "3.png").write_text("no image")
    error = refused("show", folder)
    assert "cat/3.png cannot be read" in error and "--skip-unreadable" in error
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
    assert "40 classes in all, with 1 to 1 training images each" in output
    assert (tmp_path / "many.png").stat().st_size > 1000


def test_show_what_is_not_there(refused, tmp_path):
    assert "Did you mean 'cifar10'?" in refused("show", "cifer10")
    assert "`sfumato data get mnist`" in refused("show", "mnist")
    assert "does not exist" in refused("show", tmp_path / "nowhere")


def test_get_without_a_network(refused, monkeypatch, tmp_path):
    def unreachable(url, **_):
        raise OSError("Network is unreachable")

    monkeypatch.setattr("pooch.retrieve", unreachable)
    error = refused("get", "cifar10", "--to", tmp_path)
    assert "https://www.cs.toronto.edu/~kriz/cifar-10-python.tar.gz" in error
    assert str(tmp_path / "cifar-10-python.tar.gz") in error
    assert "'nothing'" in refused("get", "nothing")
