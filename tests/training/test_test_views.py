"""A run whose final model averages predictions over views of an image."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from sfumato import data
from sfumato.errors import UserError
from sfumato.training import metrics
from sfumato.training.classifier import FORMAT, load
from sfumato.training.evaluation import _scored
from tiny_run import train_run


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    where = tmp_path_factory.mktemp("runs")
    changes = {"training.seed": 0, "training.steps": 12}
    return {
        kind: train_run(where / kind, {**changes, "training.test_views": kind})
        for kind in ("none", "all")
    }


def test_the_weights_are_the_same_and_the_file_says_how_they_are_used(
    folders: dict[str, Path],
) -> None:
    plain, averaged = (load(folder) for folder in folders.values())
    assert (plain.description.test_views, averaged.description.test_views) == ("none", "all")
    for a, b in zip(plain.parameters(), averaged.parameters(), strict=True):
        assert torch.equal(a, b)
    images = torch.from_numpy(data.load("digits").test.images[:50])
    assert not torch.equal(plain.predict(images), averaged.predict(images))


def test_the_accuracy_is_that_of_the_model_in_use(folders: dict[str, Path]) -> None:
    test = data.load("digits").test
    for folder in folders.values():
        predicted = load(folder).predict(torch.from_numpy(test.images)).argmax(1)
        found = float((predicted == torch.from_numpy(test.labels)).double().mean())
        final = [r for r in metrics.read(folder / "metrics.jsonl") if r.get("final")][-1]
        assert final["test_accuracy"] == pytest.approx(found, abs=1e-9)


def test_missing_test_views_mean_none_and_unknown_ones_are_refused(
    folders: dict[str, Path], tmp_path: Path
) -> None:
    path = folders["none"] / "model.safetensors"
    tensors = load_file(path)
    content = json.loads(json.dumps(load(path).description.__dict__))
    del content["test_views"]
    save_file(tensors, tmp_path / "old.safetensors", {FORMAT: json.dumps(content)})
    assert load(tmp_path / "old.safetensors").description.test_views == "none"
    content["test_views"] = "rotate"
    save_file(tensors, tmp_path / "odd.safetensors", {FORMAT: json.dumps(content)})
    with pytest.raises(UserError, match="no test views 'rotate'"):
        load(tmp_path / "odd.safetensors")


def test_outputs_of_nan_count_as_wrong() -> None:
    outputs = torch.tensor([[float("nan"), 1.0], [1.0, 0.0], [0.0, float("nan")]])
    accuracy, _ = _scored(torch.nn.Identity(), [(outputs, torch.tensor([0, 0, 1]))])
    assert accuracy == 1 / 3
