"""Runs of a model of timm: trained, resumed, opened and used without naming code again."""

from __future__ import annotations

import json
import os
import signal
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from cli_result import Run, refused

import sfumato as package
from fake_timm import fake_timm
from sfumato import models
from sfumato.cli.trust import again, named
from sfumato.errors import UserError
from sfumato.training import classifier, run_folder
from sfumato.training.classifier import Description

QUICK = (
    "train", "digits", "--model", "timm:tiny_net", "--set", "model.options.width=6",
    "--batchnorm-to", "groupnorm", "--set", "training.steps=3", "--set", "training.batch=64",
    "--set", "training.checkpoint_every=1", "--device", "cpu", "--seed", "0", "--out",
)  # fmt: skip


@pytest.fixture(autouse=True)
def timm(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("SFUMATO_MODELS", raising=False)
    monkeypatch.setitem(sys.modules, "timm", fake_timm())


def test_a_run_is_trained_resumed_and_used(sfumato: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    from sfumato.training.loop import Loop

    assert sfumato(*QUICK, "whole").code == 0
    take = Loop.take_step

    def stop(self: Loop) -> object:
        statistics = take(self)
        if self.step == 2:
            os.kill(os.getpid(), signal.SIGTERM)
        return statistics

    monkeypatch.setattr(Loop, "take_step", stop)
    stopped = sfumato(*QUICK, "r")
    assert stopped.code == 128 + signal.SIGTERM
    assert "--trust-code" not in stopped.out, "the library's name needs none"
    monkeypatch.setattr(Loop, "take_step", take)
    unfinished = package.open("r")
    assert unfinished.step == 2 and type(unfinished.network).__name__ == "Net"
    assert sfumato("train", "--resume", "r", "--device", "cpu").code == 0
    one, other = (package.load(name).network.state_dict() for name in ("whole", "r"))
    assert all(torch.equal(one[name], other[name]) for name in one)
    assert "norm.norm.weight" in one and one["conv.weight"].shape == (6, 1, 3, 3)
    evaluated = sfumato("evaluate", "r", "--device", "cpu")
    assert evaluated.code == 0, evaluated.err
    assert sfumato("verify", "r").code == 0
    opened = package.open("r")
    assert not opened.problems and opened.guarantee is not None
    assert opened.guarantee.batchnorm_to == "groupnorm"
    assert "timm" in json.loads(Path("r", run_folder.GUARANTEE).read_text())["versions"]


def test_from_python_with_predictions(tmp_path: Path) -> None:
    settings = {"model.batchnorm_to": "groupnorm", "training.steps": 2, "training.batch": 64}
    made = package.train(
        "digits", model="timm:tiny_net", out=tmp_path / "r", device="cpu", **settings
    )
    images = torch.zeros(2, 1, 8, 8)
    assert made.classifier.predict(images).shape == (2, 10)
    assert torch.equal(
        made.classifier.predict(images), package.load(tmp_path / "r").predict(images)
    )


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (("--model", "timm:tiny_ned"), "Did you mean 'tiny_net'?"),
        (("--model", "timm:tiny_net"), "--batchnorm-to groupnorm (model.batchnorm_to)"),
        (("--model", "timm:tiny_net", "--set", "model.options.widht=2"), "Did you mean 'width'?"),
    ],
)
def test_mistakes_are_sentences(sfumato: Run, words: tuple[str, ...], sentence: str) -> None:
    refused(sfumato("train", "digits", *words, "--out", "r", "--device", "cpu"), sentence)
    assert not Path("r").exists()


def test_a_missing_library_is_a_sentence(sfumato: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "timm")
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    for words in (("train", "digits", "--model", "timm:a"), ("models", "show", "timm:a")):
        refused(sfumato(*words), "'timm:a' is part of the package timm, which is not installed")


def test_a_typed_name_is_trusted_and_not_asked_for_again() -> None:
    typed = named(["mine"], {"model.name": "timm:tiny_net"}, {"model.name": ["timm:a.b", "b:c"]})
    assert typed == ("mine", "timm:tiny_net", "timm:a.b", "b:c")
    assert again(typed) == " --trust-code mine --trust-code b:c"


def test_options_in_a_weights_file_cannot_ask_for_much_more_than_it_holds(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(classifier, "_SPARE", 1000)
    options = {"width": 6}
    network = models.create("timm:tiny_net", channels=1, size=8, **options)
    described = Description(
        "timm:tiny_net", options, tuple("abcdefghij"), 1, (8, 8), (0.0,), (1.0,)
    )
    classifier.save_weights(tmp_path / "a", network, described)
    assert type(package.load(tmp_path / "a").network).__name__ == "Net"
    classifier.save_weights(tmp_path / "b", network, replace(described, options={"width": 6000}))
    with pytest.raises(UserError, match="far more than the file holds"):
        package.load(tmp_path / "b")
