"""The mechanism: usable inside any PyTorch training loop, without the rest of sfumato.

Names are imported on first use, so that accounting alone never loads PyTorch.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from sfumato._lazy import lazy

if TYPE_CHECKING:
    from sfumato.privacy.accounting.accountants import Step, epsilon
    from sfumato.privacy.accounting.budget import batch_for, noise_multiplier_for, steps_for
    from sfumato.privacy.adaptive import AdaptiveQuantile
    from sfumato.privacy.checks.refusals import refuse_mixing_layers
    from sfumato.privacy.clipping import (
        Automatic,
        ClippingRule,
        Flat,
        GroupWise,
        Normalised,
        Unclipped,
    )
    from sfumato.privacy.engines.one_at_a_time import one_at_a_time
    from sfumato.privacy.guarantee import Guarantee
    from sfumato.privacy.mechanism import PrivateGradients
    from sfumato.privacy.noise import GaussianNoise
    from sfumato.privacy.numerics.randomness import Keystream, Randomness
    from sfumato.privacy.per_example import Gradients, PerExample, cross_entropy
    from sfumato.privacy.sampling import PhysicalBatch, PoissonSampler, physical_batches
    from sfumato.privacy.statistics import BatchStatistics

__all__ = [
    "AdaptiveQuantile",
    "Automatic",
    "BatchStatistics",
    "ClippingRule",
    "Flat",
    "GaussianNoise",
    "Gradients",
    "GroupWise",
    "Guarantee",
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

__getattr__, __dir__ = lazy(
    __name__,
    {
        "Step": "accounting",
        "epsilon": "accounting",
        "AdaptiveQuantile": "adaptive",
        "batch_for": "accounting",
        "noise_multiplier_for": "accounting",
        "steps_for": "accounting",
        "Automatic": "clipping",
        "ClippingRule": "clipping",
        "Flat": "clipping",
        "GroupWise": "clipping",
        "Normalised": "clipping",
        "Unclipped": "clipping",
        "Gradients": "per_example",
        "PerExample": "per_example",
        "cross_entropy": "per_example",
        "BatchStatistics": "statistics",
        "PrivateGradients": "mechanism",
        "GaussianNoise": "noise",
        "Guarantee": "guarantee",
        "Keystream": "numerics.randomness",
        "Randomness": "numerics.randomness",
        "one_at_a_time": "engines.one_at_a_time",
        "refuse_mixing_layers": "checks.refusals",
        "PhysicalBatch": "sampling",
        "PoissonSampler": "sampling",
        "physical_batches": "sampling",
    },
)
