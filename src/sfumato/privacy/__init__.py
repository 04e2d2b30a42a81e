"""The mechanism: usable inside any PyTorch training loop, without the rest of sfumato.

Names are imported on first use, so that accounting alone never loads PyTorch.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from sfumato.privacy.accounting import Step, epsilon
    from sfumato.privacy.adaptive import AdaptiveQuantile
    from sfumato.privacy.calibration import batch_for, noise_multiplier_for, steps_for
    from sfumato.privacy.clipping import (
        Automatic,
        ClippingRule,
        Flat,
        GroupWise,
        Normalised,
        Unclipped,
    )
    from sfumato.privacy.gradients import Gradients, PerExample, cross_entropy
    from sfumato.privacy.mechanism import PrivateGradients
    from sfumato.privacy.noise import GaussianNoise
    from sfumato.privacy.randomness import Keystream, Randomness
    from sfumato.privacy.reference import one_at_a_time
    from sfumato.privacy.refuse import refuse_mixing_layers
    from sfumato.privacy.sampling import PhysicalBatch, PoissonSampler, physical_batches
    from sfumato.privacy.statistics import BatchStatistics

_HOME = {
    "Step": "accounting",
    "epsilon": "accounting",
    "AdaptiveQuantile": "adaptive",
    "batch_for": "calibration",
    "noise_multiplier_for": "calibration",
    "steps_for": "calibration",
    "Automatic": "clipping",
    "ClippingRule": "clipping",
    "Flat": "clipping",
    "GroupWise": "clipping",
    "Normalised": "clipping",
    "Unclipped": "clipping",
    "Gradients": "gradients",
    "PerExample": "gradients",
    "cross_entropy": "gradients",
    "BatchStatistics": "statistics",
    "PrivateGradients": "mechanism",
    "GaussianNoise": "noise",
    "Keystream": "randomness",
    "Randomness": "randomness",
    "one_at_a_time": "reference",
    "refuse_mixing_layers": "refuse",
    "PhysicalBatch": "sampling",
    "PoissonSampler": "sampling",
    "physical_batches": "sampling",
}

__all__ = [
    "AdaptiveQuantile",
    "Automatic",
    "BatchStatistics",
    "ClippingRule",
    "Flat",
    "GaussianNoise",
    "Gradients",
    "GroupWise",
    "Keystream",
    "Normalised",
    "PerExample",
    "PhysicalBatch",
    "PoissonSampler",
    "PrivateGradients",
    "Randomness",
    "Step",
    "Unclipped",
    "batch_for",
    "cross_entropy",
    "epsilon",
    "noise_multiplier_for",
    "one_at_a_time",
    "physical_batches",
    "refuse_mixing_layers",
    "steps_for",
]


def __getattr__(name: str) -> Any:
    if name in _HOME:
        return getattr(importlib.import_module(f"{__name__}.{_HOME[name]}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return __all__
