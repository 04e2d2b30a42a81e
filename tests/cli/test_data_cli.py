"""`sfumato data` as a user types it."""

from __future__ import annotations

import numpy as np
import pytest
import typer
from PIL import Image
from typer.testing import CliRunner

from sfumato.cli import data as verb
from sfumato.data import locate
from sfumato.errors import UserError


@pytest.fixture
def run(tmp_path, monkeypatch):
    monkeypatch.setattr(locate, "cache_folder", lambda: tmp_path / "cache")
    monkeypatch.setattr(locate, "SYSTEM_FOLDER", tmp_path / "system")
    monkeypatch.delenv("SFUMATO_DATA", raising=False)
    monkeypatch.setenv("COLUMNS", "200")
    app = typer.Typer()
    app.callback()(lambda: None)
    verb.register(app)

    def call(*words: object) -> str:
        result = CliRunner().invoke(app, ["data", *map(str, words)])
        if result.exception and not isinstance(result.exception, SystemExit):
            raise result.exception
        assert result.exit_code == 0, result.output
        return result.output

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


def test_list_names_every_set_and_place(run, tmp_path):
    (tmp_path / "here" / "cifar-10-batches-py").mkdir(parents=True)
    (tmp_path / "here" / "cifar-10-batches-py" / "data_batch_1").touch()
    output = run("list", "--data-root", tmp_path / "here")
    lines = {line.split()[0]: line for line in output.splitlines() if line.strip()}
    assert lines["digits"].split()[1:4] == ["1,797", "10", "1×8×8"]
    assert str(tmp_path / "here" / "cifar-10-batches-py") in lines["cifar10"]
    assert "not found" in lines["tiny-imagenet"] and "200" in lines["tiny-imagenet"]
    assert str(tmp_path / "cache") in output and str(tmp_path / "system") in output


def test_list_does_not_import_torch(tmp_path):
    import subprocess
    import sys

    code = (
        "import sys; from sfumato.cli import data; data.list_sets(None); "
        "assert 'torch' not in sys.modules and 'sklearn' not in sys.modules"
    )
    code = code.replace("from sfumato.cli import data", _STANDALONE)
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


_STANDALONE = (
    "import importlib.util as u, pathlib, sfumato.errors as e; "
    "p = pathlib.Path(e.__file__).parent / 'cli' / 'data.py'; "
    "s = u.spec_from_file_location('verb', p); data = u.module_from_spec(s); "
    "s.loader.exec_module(data)"
)


def test_show_a_folder(run, folder, tmp_path):
    picture = tmp_path / "sheet.png"
    output = run("show", folder, "--picture", picture)
    assert "8 train, 2 test" in output and "3×9×9" in output
    assert "[dog]" in output and "cat" in output
    assert "Fingerprint of train: " in output and "set aside" in output
    with Image.open(picture) as image:
        pixels = np.asarray(image)
    assert pixels.ndim == 3 and len(np.unique(pixels)) > 50
    before = picture.read_bytes()
    with pytest.raises(UserError, match=r"sheet\.png exists already"):
        run("show", folder, "--picture", picture)
    assert picture.read_bytes() == before
    with pytest.raises(UserError, match=r"must be a \.png"):
        run("show", folder, "--picture", tmp_path / "sheet.jpg")
    with pytest.raises(UserError, match="does not exist"):
        run("show", folder, "--picture", tmp_path / "no" / "sheet.png")


def test_show_reports_what_was_skipped(run, folder):
    (folder / "cat" / "3.png").write_text("no image")
    with pytest.raises(UserError, match=r"cat/3\.png cannot be read .*--skip-unreadable"):
        run("show", folder)
    output = run("show", folder, "--skip-unreadable")
    assert "Skipped as unreadable: 1" in output and str(folder / "cat" / "3.png") in output


def test_show_options_reach_the_loader(run):
    output = run("show", "digits", "--size", 12, "--channels", 3, "--validation", 0.1)
    assert "3×12×12" in output and "validation" in output and "scaled from 8×8" in output


def test_show_many_classes_and_floats(run, tmp_path):
    images = np.random.default_rng(0).random((80, 6, 6)).astype(np.float32)
    images[0, 0, 0] = np.nan
    np.savez(tmp_path / "many.npz", images=images, labels=np.arange(80) % 40)
    output = run("show", tmp_path / "many.npz", "--picture", tmp_path / "many.png")
    assert "40 classes in all, with 1 to 1 training images each" in output
    assert (tmp_path / "many.png").stat().st_size > 1000


def test_get_without_a_network(run, monkeypatch, tmp_path):
    def unreachable(url, **_):
        raise OSError("Network is unreachable")

    monkeypatch.setattr("pooch.retrieve", unreachable)
    with pytest.raises(UserError, match=r"put each in its place here: https://www\.cs\.toronto"):
        run("get", "cifar10", "--to", tmp_path)
    with pytest.raises(UserError, match="'nothing'"):
        run("get", "nothing")
