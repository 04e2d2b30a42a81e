"""sfumato: train image classifiers with differential privacy.

    import sfumato

    run = sfumato.train("scans/", epsilon=8)
    run.guarantee.epsilon, run.accuracy, run.classifier.predict(images)
    run = sfumato.open("runs/images-001")

The mechanism alone, for an own training loop, is in `sfumato.privacy`. `docs/python.md` is the
reference.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from sfumato._lazy import lazy
from sfumato.errors import UserError

if TYPE_CHECKING:
    from sfumato import analysis, data, export, guide, models, nn, privacy, recipes, report
    from sfumato.api import audit, open, resume, train
    from sfumato.recipe import Recipe
    from sfumato.run import Run
    from sfumato.training.classifier import Classifier, load
    from sfumato.version import __version__

__all__ = [
    "Classifier",
    "Recipe",
    "Run",
    "UserError",
    "__version__",
    "analysis",
    "audit",
    "data",
    "export",
    "guide",
    "load",
    "models",
    "nn",
    "open",
    "privacy",
    "recipes",
    "report",
    "resume",
    "train",
]

__getattr__, __dir__ = lazy(
    __name__,
    {
        "": ("analysis", "data", "export", "guide", "models", "nn", "privacy", "recipes", "report"),
        "api": ("audit", "open", "resume", "train"),
        "errors": ("UserError",),
        "recipe": ("Recipe",),
        "run": ("Run",),
        "training.classifier": ("Classifier", "load"),
        "version": ("__version__",),
    },
)
