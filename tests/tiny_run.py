"""Finished runs small enough for a test: with random weights, or trained for a few steps."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from sfumato import models, recipes
from sfumato.training.classifier import Description, save_weights
from sfumato.training.pipeline import train

DIGITS = tuple(str(k) for k in range(10))
TINY: dict[str, Any] = {
    "model.options": {"filters": 4},
    "training.steps": 4,
    "training.batch": 64,
}
"""What makes the recipe for digits a matter of a second."""


def train_run(folder: Path, changes: Mapping[str, Any]) -> Path:
    """Train on digits for a few steps, on the CPU, with changes to the tiny recipe."""
    train(recipes.find("digits").replace({**TINY, **changes}), out=folder, device="cpu")
    return folder


def make_run(
    folder: Path,
    *,
    data: str = "digits",
    classes: Sequence[str] = DIGITS,
    channels: int = 1,
    size: tuple[int, int] = (8, 8),
    private: bool = True,
    validation: float = 0.0,
) -> Path:
    """Write `model.safetensors` and `recipe.toml` into a new folder."""
    folder.mkdir(parents=True)
    guarantee = {"private": True, "epsilon": {"pld": 3.0}} if private else {"private": False}
    write_weights(folder, guarantee, classes=classes, channels=channels, size=size)
    recipe = recipes.find("digits").replace({"data.name": data, "data.validation": validation})
    (folder / "recipe.toml").write_text(recipe.to_toml(), encoding="utf-8")
    return folder


def write_weights(
    folder: Path,
    guarantee: dict[str, Any],
    *,
    classes: Sequence[str] = DIGITS,
    channels: int = 1,
    size: tuple[int, int] = (8, 8),
) -> None:
    """Write `model.safetensors` of a small network as it is initialised."""
    torch.manual_seed(0)
    options = TINY["model.options"]
    network = models.create(
        "tanh-cnn", classes=len(classes), channels=channels, size=size, **options
    )
    half = (0.5,) * channels
    description = Description(
        "tanh-cnn", options, tuple(classes), channels, size, half, half, guarantee
    )
    save_weights(folder / "model.safetensors", network, description)
