"""sfumato: train image classifiers with differential privacy.

    import sfumato

    result = sfumato.train(sfumato.recipes.find("digits"))
    classifier = sfumato.load(result.folder)

The mechanism alone, for an own training loop, is in `sfumato.privacy`.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from sfumato.errors import UserError

if TYPE_CHECKING:
    from sfumato import data, models, privacy, recipes
    from sfumato.recipe import Recipe
    from sfumato.training.classifier import Classifier, load
    from sfumato.training.release import Result
    from sfumato.training.run import resume, train

    __version__: str

__all__ = [
    "Classifier",
    "Recipe",
    "Result",
    "UserError",
    "__version__",
    "data",
    "load",
    "models",
    "privacy",
    "recipes",
    "resume",
    "train",
]

_HOME = {
    "Classifier": "training.classifier",
    "load": "training.classifier",
    "Recipe": "recipe",
    "Result": "training.release",
    "resume": "training.run",
    "train": "training.run",
}


def __getattr__(name: str) -> Any:
    if name == "__version__":
        return importlib.import_module(f"{__name__}.version").of()
    if name in _HOME:
        return getattr(importlib.import_module(f"{__name__}.{_HOME[name]}"), name)
    if name in ("data", "models", "privacy", "recipes"):
        return importlib.import_module(f"{__name__}.{name}")
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
