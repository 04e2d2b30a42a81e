"""`sfumato verify` as a user types it."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from cli_result import Result, Run, refused
from safetensors import safe_open
from safetensors.torch import load_file, save_file

from sfumato.training.classifier import FORMAT
from tiny_run import TINY, train_run

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


@pytest.fixture
def run(sfumato: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Run:
    """`run(":sound")` verifies the function `sound` of a module with the text `MODELS`."""
    name = f"user_models_{tmp_path.name.replace('-', '_')}"
    (tmp_path / f"{name}.py").write_text(MODELS)
    monkeypatch.setenv("COLUMNS", "160")

    def call(*words: str) -> Result:
        return sfumato("verify", *(name + w if w.startswith(":") else w for w in words))

    return call


def test_sound_model(run: Run) -> None:
    code, out, err = run(":sound", "--input", "3,8,8", "--classes", "5", "--batch", "5")
    assert code == 0, out
    assert "Everything holds." in out and "FAILS" not in out
    assert "Conv2d" in out and "rule" in out and "4×3×3×3" in out
    assert "checking the realised norm" in err
    words = " ".join(out.split())
    assert "tested on random inputs (not proved: operator aten.slice_scatter in layer '0'" in words


def test_registered_model_in_its_usual_size(run: Run) -> None:
    code, out, _ = run("tanh-cnn", "--batch", "3", "--set", "filters=4")
    assert code == 0, out
    assert "tanh-cnn on 1×28×28 images, 10 classes" in out
    assert re.search(r"proved on a graph of \d+ operators, for every size of batch", out)


def test_mixing_model_fails_and_names_the_layer(run: Run) -> None:
    code, out, _ = run(":mixing", "--input", "3,8,8")
    assert code == 1
    assert "FAILS" in out and "layer '1' (Centred)" in out and "Fix:" in out
    assert "do not train it" in out


def test_refused_model_still_gets_its_table(run: Run) -> None:
    code, out, _ = run(":batch_norm", "--input", "3,8,8")
    assert code == 1
    assert "layer '0': BatchNorm2d" in out and "the realised norm is at most C" in out


@pytest.mark.slow
def test_long_lists_are_shortened(run: Run) -> None:
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
def test_mistakes_are_one_sentence_and_status_2(run: Run, words: list[str], sentence: str) -> None:
    result = run(*words)
    refused(result, sentence)
    assert "holds" not in result.out


def test_help(run: Run) -> None:
    code, out, _ = run("--help")
    assert code == 0 and "--input" in out


def test_plan_shows_what_is_kept_of_each_convolution(run: Run) -> None:
    found = run("wrn-10-1", "--plan", "--views", "4")
    assert found.code == 0
    assert "materialise" in found.out and "stage1.0.first" in found.out
    assert "512 examples of 4 views" in found.out


def test_plan_keeps_within_its_memory(run: Run) -> None:
    free = run("wrn-16-4", "--plan", "--views", "4", "--memory", "30")
    assert free.code == 0
    usual = run("wrn-16-4", "--plan", "--views", "4")
    assert usual.code == 0 and usual.out.count("norm-only") == free.out.count("norm-only") + 1


def test_a_run_is_what_it_states(sfumato: Run, tmp_path: Path) -> None:
    folder = train_run(tmp_path / "r", TINY)
    result = sfumato("verify", folder)
    assert result.code == 0, result.err
    assert (
        "Ledger, guarantee, statement and weights are consistent." in result.out
        and "as they were" in result.out
    )

    def changed(name: str, change: Callable[[bytes], bytes | None]) -> str:
        other = tmp_path / f"without {name}"
        shutil.copytree(folder, other)
        content = change((other / name).read_bytes())
        (other / name).unlink()
        if content is not None:
            (other / name).write_bytes(content)
        result = sfumato("verify", other)
        assert result.code == 1 and "Do not rely" in result.out
        return result.out

    assert "not those that were written" in changed(
        "model.safetensors", lambda b: b[:-3] + bytes([b[-3] ^ 1]) + b[-2:]
    )
    assert "Cannot read the ledger" in changed("ledger.jsonl", lambda _: None)
    said = changed("statement.md", lambda b: re.sub(rb"\*\*\([\d.]+,", b"**(0.5,", b))
    assert "not the text that follows from guarantee.json" in " ".join(said.split())
    assert "it was removed" in " ".join(changed("guarantee.json", lambda _: None).split())
    for change in (
        lambda b: b.split(b"## Not covered")[0],
        lambda b: b + b"It satisfies (0.1, 1e-9)-differential privacy.",
        lambda b: b.replace(b"one image", b"one million images"),
    ):
        shutil.rmtree(tmp_path / "without statement.md", ignore_errors=True)
        assert "not the text" in " ".join(changed("statement.md", change).split())
    (tmp_path / "empty").mkdir()
    refused(sfumato("verify", tmp_path / "empty"), "is not a run folder")


def test_a_run_of_an_older_version_is_said_to_be_one(sfumato: Run) -> None:
    result = sfumato("verify", Path(__file__).parents[1] / "written_by_0_1_0" / "finished")
    assert result.code == 0, result
    assert "of an older version, which wrote no guarantee.json" in " ".join(result.out.split())


CLAIMS: dict[str, Callable[[dict[str, Any]], object]] = {
    "delta = 1e-09": lambda c: c["guarantee"].update(delta=1e-9),
    "exposures": lambda c: c["guarantee"].update(exposures=[]),
    "other exposures": lambda c: c["guarantee"]["exposures"][0].update(public=True),
    "exposures of data": lambda c: c["guarantee"]["exposures"][0].update(steps=[]),
    "no digest": lambda c: c.pop("tensors"),
    "unit = 'one person'": lambda c: c["guarantee"].update(unit="one person"),
    "the weights state epsilon": lambda c: c["guarantee"]["epsilon"].update(rdp=0.1),
}


def test_weights_that_state_other_numbers_than_the_ledger(sfumato: Run, tmp_path: Path) -> None:
    folder = train_run(tmp_path / "r", TINY)
    path = folder / "model.safetensors"
    with safe_open(path, "pt") as file:
        text = file.metadata()[FORMAT]
    tensors = load_file(path)
    for words, change in CLAIMS.items():
        content = json.loads(text)
        change(content)
        save_file(tensors, path, metadata={FORMAT: json.dumps(content)})
        result = sfumato("verify", folder)
        assert result.code == 1, words
        assert words in " ".join(result.out.split())
