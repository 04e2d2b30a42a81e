"""Privacy accounting, without PyTorch: epsilon from steps, and the noise that a budget allows."""

from sfumato.privacy.accounting.accountants import Step, epsilon
from sfumato.privacy.accounting.budget import batch_for, noise_multiplier_for, steps_for
from sfumato.privacy.accounting.selection import Selection

__all__ = ["Selection", "Step", "batch_for", "epsilon", "noise_multiplier_for", "steps_for"]
