"""sfumato: train image classifiers with differential privacy.

    import sfumato

    run = sfumato.train(sfumato.recipes.find("digits"))
    run.guarantee.epsilon, run.accuracy, run.classifier.predict(images)

The mechanism alone, for an own training loop, is in `sfumato.privacy`.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from sfumato.errors import UserError

if TYPE_CHECKING:
    from sfumato import data, models, privacy, recipes
    from sfumato.api import open, resume, train
    from sfumato.recipe import Recipe
    from sfumato.run import Run
    from sfumato.training.classifier import Classifier, load

    __version__: str

__all__ = [
    "Classifier",
    "Recipe",
    "Run",
    "UserError",
    "__version__",
    "data",
    "load",
    "models",
    "open",
    "privacy",
    "recipes",
    "resume",
    "train",
]

_HOME = {
    "Classifier": "training.classifier",
    "load": "training.classifier",
    "Recipe": "recipe",
    "Run": "run",
    "open": "api",
    "resume": "api",
    "train": "api",
}


def __getattr__(name: str) -> Any:
    if name == "__version__":
        return importlib.import_module(f"{__name__}.version").of()
    if name in _HOME:
        return getattr(importlib.import_module(f"{__name__}.{_HOME[name]}"), name)
    if name in ("data", "models", "privacy", "recipes"):
        return importlib.import_module(f"{__name__}.{name}")
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
