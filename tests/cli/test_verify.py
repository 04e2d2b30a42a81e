"""`sfumato verify` as a user types it."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import NamedTuple

import pytest
import typer

from sfumato.cli import verify as command
from sfumato.errors import UserError

MODELS = """
import torch
from torch import nn


def sound(classes, channels):
    return nn.Sequential(
        nn.Conv2d(channels, 4, 3, padding=1, padding_mode="circular"), nn.ReLU(inplace=True),
        nn.AdaptiveAvgPool2d(2), nn.Flatten(), nn.Linear(16, classes),
    )


class Centred(nn.Module):
    def forward(self, x):
        return x - x.mean(0)


def mixing(classes, channels):
    return nn.Sequential(sound(classes, channels)[:2], Centred(), *sound(classes, channels)[2:])


def batch_norm(classes, channels):
    return nn.Sequential(nn.BatchNorm2d(channels), sound(classes, channels))


def many(classes, channels):
    layers = [nn.Conv2d(4, 4, 1) for _ in range(30)]
    return nn.Sequential(nn.Conv2d(channels, 4, 3), *layers, *sound(classes, 4))


def seven(channels):
    return sound(7, channels)


def broken(classes):
    raise ZeroDivisionError("oh [no]")


def fixed(classes):
    return nn.Sequential(nn.Flatten(), nn.Linear(3 * 8 * 8, classes))
"""


class Result(NamedTuple):
    code: int
    out: str
    err: str


@pytest.fixture
def run(tmp_path, monkeypatch, capsys) -> Callable[..., Result]:
    """The command alone, with the handling of mistakes that the whole command has."""
    name = f"user_models_{tmp_path.name.replace('-', '_')}"
    (tmp_path / f"{name}.py").write_text(MODELS)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "160")
    app = typer.Typer(pretty_exceptions_enable=False)
    app.callback()(lambda: None)
    command.register(app)

    def call(*words: str) -> Result:
        full = [f"{name}:{w[1:]}" if w.startswith(":") else w for w in words]
        monkeypatch.setattr(sys, "argv", ["sfumato", "verify", *full])
        try:
            app()
            code = 0
        except SystemExit as left:
            code = int(left.code or 0)
        except UserError as error:
            code = 2
            print(error, file=sys.stderr)
        return Result(code, *capsys.readouterr())

    return call


def test_sound_model(run) -> None:
    code, out, err = run(":sound", "--input", "3,8,8", "--classes", "5", "--batch", "5")
    assert code == 0, out
    assert "Everything holds." in out and "FAILS" not in out
    assert "Conv2d" in out and "rule" in out and "4×3×3×3" in out
    assert "checking the realised norm" in err


def test_registered_model_in_its_usual_size(run) -> None:
    code, out, _ = run("tanh-cnn", "--batch", "3", "--set", "filters=4")
    assert code == 0, out
    assert "tanh-cnn on 1×28×28 images, 10 classes" in out


def test_mixing_model_fails_and_names_the_layer(run) -> None:
    code, out, _ = run(":mixing", "--input", "3,8,8")
    assert code == 1
    assert "FAILS" in out and "layer '1' (Centred)" in out and "Fix:" in out
    assert "do not train it" in out


def test_refused_model_still_gets_its_table(run) -> None:
    code, out, _ = run(":batch_norm", "--input", "3,8,8")
    assert code == 1
    assert "layer '0': BatchNorm2d" in out and "the realised norm is at most C" in out


def test_long_lists_are_shortened(run) -> None:
    code, out, _ = run(":many", "--input", "3,8,8", "--batch", "3")
    assert code == 0, out
    assert "(32)" in out and "… and 42 more" in out


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["tanh-cn"], "Did you mean 'tanh-cnn'?"),
        (["nowhere.to.be:found"], "cannot be imported"),
        ([":missing"], "has no function 'missing'"),
        ([":broken"], "ZeroDivisionError: oh [no]"),
        ([":seven", "--classes", "10"], "each of 10 classes"),
        ([":fixed", "--input", "3,9,9"], "does not run on inputs of shape (3, 9, 9)"),
        ([":sound", "--input", "3,32"], "as in 3,32,32"),
        ([":sound", "--input", "0,8,8"], "at least 1"),
        ([":sound", "--input", "many"], "as in 3,32,32"),
        ([":sound", "--batch", "1"], "at least 2"),
        ([":sound", "--classes", "0"], "at least 1"),
        (["tanh-cnn", "--set", "filtres=3"], "Did you mean 'filters'?"),
    ],
)
def test_mistakes_are_one_sentence_and_status_2(run, words, sentence: str) -> None:
    code, out, err = run(*words)
    assert code == 2
    assert sentence in err and "Traceback" not in err and "holds" not in out


def test_help(run) -> None:
    code, out, _ = run("--help")
    assert code == 0 and "--input" in out


def test_plan_shows_what_is_kept_of_each_convolution(run) -> None:
    found = run("wrn-10-1", "--plan", "--views", "4")
    assert found.code == 0
    assert "materialise" in found.out and "stage1.0.first" in found.out
    assert "512 examples of 4 views" in found.out
