"""Recipes of a few steps of a tiny network, on files of scikit-learn's digits."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from sfumato import data
from sfumato.recipe import Recipe
from sfumato.training.pipeline import train


def halves(folder: Path) -> None:
    """Two halves of the digits as files, `open.npz` and `scans.npz`."""
    digits = data.load("digits").train
    for name, part in (("open", slice(0, 600)), ("scans", slice(600, 1200))):
        np.savez(folder / f"{name}.npz", images=digits.images[part, 0], labels=digits.labels[part])


def recipe(place: Path, name: str, changes: dict[str, Any]) -> Recipe:
    """Three steps of a tiny network on one of the halves."""
    settings = {
        "data.name": str(place / f"{name}.npz"),
        "model.options.filters": 4,
        "privacy.delta": 1e-4,
        "privacy.epsilon": 4.0,
        "privacy.accountant": "rdp",
        "training.batch": 100,
        "training.steps": 3,
    }
    return Recipe().replace(settings | changes)


def halves_and_public_run(folder: Path) -> Path:
    """The two halves, and a run without privacy on the first in `public`; the folder."""
    halves(folder)
    public = {"data.public": True, "privacy.enabled": False, "training.seed": 1}
    train(recipe(folder, "open", public), out=folder / "public", device="cpu")
    return folder
