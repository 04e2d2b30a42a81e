"""What a trained classifier does: how good it is, how sure of itself, and on which classes.

`evaluate(probabilities(classifier, data.test), data.test.labels, data.classes)` gives all of it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from sfumato.analysis.classification import (
    Evaluation,
    Reliability,
    brier_score,
    evaluate,
    negative_log_likelihood,
    reliability,
)

if TYPE_CHECKING:
    from sfumato.analysis.inference import Prediction, align_labels, predict_files, probabilities

__all__ = [
    "Evaluation",
    "Prediction",
    "Reliability",
    "align_labels",
    "brier_score",
    "evaluate",
    "negative_log_likelihood",
    "predict_files",
    "probabilities",
    "reliability",
]


def __getattr__(name: str) -> Any:
    """Import what needs PyTorch only when it is asked for."""
    if name in ("Prediction", "align_labels", "predict_files", "probabilities"):
        from sfumato.analysis import inference

        return getattr(inference, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
