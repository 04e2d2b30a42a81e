"""The recipe `last-layer`: a linear classifier on a middle block of the packaged start."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import sfumato
from sfumato import export, recipes, starts
from sfumato.recipe import Recipe
from sfumato.training import loop
from sfumato.training.classifier import read_weights
from sfumato.training.initial.frozen_features import Features, entering


def scans(folder: Path, *, channels: int) -> dict[str, np.ndarray]:
    """Images of two classes, three of each unit, as arrays and in a file."""
    rng = np.random.default_rng(0)
    size = (60, 16, 20) if channels == 1 else (60, 16, 20, channels)
    labels = np.arange(60) % 2
    images = rng.integers(0, 200, size, np.uint8)
    images[labels == 1, 4:12] += 50
    held = {"train_images": images[:42], "train_labels": labels[:42]}
    held |= {"test_images": images[42:], "test_labels": labels[42:]}
    np.savez(folder / "scans.npz", **held, train_units=np.arange(42) // 3,
             test_units=np.arange(100, 118) // 3)  # fmt: skip
    return held


def few_steps(folder: Path, **changes: Any) -> Recipe:
    return recipes.find("last-layer").replace(
        {
            "data.name": str(folder / "scans.npz"), "training.steps": 3, "training.batch": 4,
            "training.seed": 1, "privacy.delta": 1e-3, **changes,
        }
    )  # fmt: skip


@pytest.mark.parametrize(
    ("channels", "changes"),
    [(1, {"data.unit": "patient"}), pytest.param(3, {}, marks=pytest.mark.slow)],
)
def test_a_run_keeps_the_layers_and_their_features(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, channels: int, changes: dict[str, Any]
) -> None:
    held, used, real = scans(tmp_path, channels=channels), [], loop.frozen_features

    def keeping(*arguments: Any) -> Features | None:
        used.append(real(*arguments))
        return used[-1]

    monkeypatch.setattr(loop, "frozen_features", keeping)
    run = sfumato.train(few_steps(tmp_path, **changes), out=tmp_path / "run", device="cpu")
    loaded = sfumato.load(tmp_path / "run")

    # The layers are those of the packaged start, and those behind the block are not stored.
    path = starts.find("drawn-mixture", "eq-resnet9-d4")
    assert path is not None
    _, start = read_weights(path)
    parameters = dict(loaded.network.named_parameters())
    assert {n.split(".")[0] for n in parameters} == {"conv1", "conv2", "res1", "conv3", "head"}
    for name, parameter in parameters.items():
        if not name.startswith("head"):
            assert torch.equal(parameter, start[name]), name
    assert parameters["head.weight"].shape == (2, 312 * 4 * 5) and parameters["head.weight"].any()

    # Each training image has the features that the loaded network gives it without the others.
    rows, labels = used[0].gather(torch.arange(42))
    assert labels.tolist() == held["train_labels"].tolist()
    grey = held["train_images"].reshape(42, 16, 20, -1)
    images = torch.from_numpy(np.ascontiguousarray(grey.transpose(0, 3, 1, 2))).expand(
        -1, 3, -1, -1
    )
    for index in (0, 17, 41):
        x = loaded.normalise(images[index : index + 1])
        alone, _ = entering(loaded.network, "head", x)
        torch.testing.assert_close(rows[index : index + 1], alone, rtol=1e-4, atol=1e-4)

    assert run.verify().private
    unit = "patient" if changes else "image"
    assert f"one {unit}" in (tmp_path / "run" / "statement.md").read_text(encoding="utf-8")
    done = export.write(tmp_path / "run", tmp_path / "m.pt", to="torchscript")
    assert done.difference <= 1e-5


def test_features_of_other_images_do_not_change_an_image_s() -> None:
    options = recipes.find("last-layer").model.options
    model = sfumato.models.create("eq-resnet9-d4", classes=2, channels=3, size=(9, 13), **options)
    drawn = torch.Generator().manual_seed(0)
    x = torch.rand(5, 3, 9, 13, generator=drawn)
    other = torch.cat([x[:2], 100 * torch.rand(3, 3, 9, 13, generator=drawn)])
    (rows, _), (among, _) = entering(model.eval(), "head", x), entering(model, "head", other)
    assert rows is not None and among is not None
    torch.testing.assert_close(rows[:2], among[:2], rtol=1e-4, atol=1e-4)
    assert not torch.allclose(rows[2:], among[2:])
