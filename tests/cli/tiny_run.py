"""A finished run small enough to make in a test: random weights and a recipe."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import torch

from sfumato import models, recipes
from sfumato.training.classifier import Description, save_weights

DIGITS = tuple(str(k) for k in range(10))


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
    torch.manual_seed(0)
    network = models.create(
        "tanh-cnn", classes=len(classes), channels=channels, size=size, filters=4
    )
    half = (0.5,) * channels
    guarantee = {"private": True, "epsilon": {"pld": 3.0}} if private else {"private": False}
    save_weights(
        folder / "model.safetensors",
        network,
        Description(
            "tanh-cnn", {"filters": 4}, tuple(classes), channels, size, half, half, guarantee
        ),
    )
    recipe = recipes.find("digits").replace({"data.name": data, "data.validation": validation})
    (folder / "recipe.toml").write_text(recipe.to_toml(), encoding="utf-8")
    return folder
