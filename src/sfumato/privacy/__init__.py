"""The mechanism: usable inside any PyTorch training loop, without the rest of sfumato.

Names are imported on first use, so that accounting alone never loads PyTorch.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from sfumato._lazy import lazy

if TYPE_CHECKING:
    from sfumato.privacy import accounting, verify
    from sfumato.privacy.accounting.accountants import Step, epsilon
    from sfumato.privacy.accounting.budget import batch_for, noise_multiplier_for, steps_for
    from sfumato.privacy.adaptive import AdaptiveQuantile
    from sfumato.privacy.audit.canaries import Canaries
    from sfumato.privacy.audit.result import AuditResult, judge
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
    "AuditResult",
    "Automatic",
    "BatchStatistics",
    "Canaries",
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
    "accounting",
    "batch_for",
    "cross_entropy",
    "epsilon",
    "judge",
    "noise_multiplier_for",
    "one_at_a_time",
    "physical_batches",
    "refuse_mixing_layers",
    "steps_for",
    "verify",
]

__getattr__, __dir__ = lazy(
    __name__,
    {
        "": ("accounting", "verify"),
        "accounting": ("Step", "batch_for", "epsilon", "noise_multiplier_for", "steps_for"),
        "adaptive": ("AdaptiveQuantile",),
        "audit.canaries": ("Canaries",),
        "audit.result": ("AuditResult", "judge"),
        "checks.refusals": ("refuse_mixing_layers",),
        "clipping": ("Automatic", "ClippingRule", "Flat", "GroupWise", "Normalised", "Unclipped"),
        "engines.one_at_a_time": ("one_at_a_time",),
        "guarantee": ("Guarantee",),
        "mechanism": ("PrivateGradients",),
        "noise": ("GaussianNoise",),
        "numerics.randomness": ("Keystream", "Randomness"),
        "per_example": ("Gradients", "PerExample", "cross_entropy"),
        "sampling": ("PhysicalBatch", "PoissonSampler", "physical_batches"),
        "statistics": ("BatchStatistics",),
    },
)
