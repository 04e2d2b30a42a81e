"""Failures and slowness of a run, and the sentences about them."""

from __future__ import annotations

from torch import nn

from sfumato.errors import UserError
from sfumato.privacy.mechanism import PrivateGradients
from sfumato.privacy.per_example import REPLAY
from sfumato.privacy.statistics import BatchStatistics
from sfumato.recipe import Recipe

_BEYOND = 1e15
"""Weights above this have diverged, if gradients are no longer finite either."""

_HOPELESS = 1e3
"""A mean loss from which no classifier recovers."""

_WORTH_SAYING = 10.0
"""Seconds of the first step above which the user is told the reason."""


class Diverged(UserError):
    """Settings with which the model does not learn: it is worse after some steps than before."""


def check_divergence(recipe: Recipe, statistics: BatchStatistics, step: int, rate: str) -> None:
    """Raise `Diverged` if the mean loss of a step exceeds the recipe's limit.

    Args:
        recipe: The recipe.
        statistics: Those of the step.
        step: Its number.
        rate: The setting of its learning rate, with the value.
    """
    limit = recipe.training.diverged
    if limit is None:
        return
    counted = statistics.examples - statistics.not_finite
    if counted and not statistics.loss / counted <= limit:
        raise Diverged(
            f"Training diverged: the mean loss of step {step} was "
            f"{statistics.loss / counted:.4g}, above training.diverged = {limit:g}. Lower the "
            f"learning rate ({rate}), or add a warm-up."
        )


def about_loss(loss: float | None, rate: str) -> str | None:
    """A sentence about a loss at which nothing is learned, or None."""
    if loss is None or loss <= _HOPELESS:
        return None
    return (
        f"The mean loss of training images is {loss:.3g}: nothing is learnt any more. Stop, and "
        f"lower the learning rate ({rate})."
    )


def explain_not_finite(model: nn.Module, step: int, rate: str) -> None:
    """Raise `Diverged` if gradients are not finite because the weights are not."""
    if not all(bool((p.abs() < _BEYOND).all()) for p in model.parameters()):
        raise Diverged(
            f"The weights grew beyond all bounds before step {step}. Lower the learning "
            f"rate ({rate})."
        )


def about_start(private: PrivateGradients, seconds: float) -> list[str]:
    """The time of the first step, if long, and a warning if later ones are slow."""
    engine = private.per_example
    parts = [f"{taken:.0f} s of {kind}" for kind, taken in engine.durations.items() if taken >= 1]
    remarks = first_step(seconds, " and ".join(parts) or "checks")
    if engine.precision is not None and "compiled" in engine.passed_over:
        remarks.append(
            "This model is not compiled and runs in float32, many times slower than it could: the "
            f"compiled pass does not fit it ({engine.passed_over['compiled']})."
        )
    elif REPLAY in engine.passed_over:
        remarks.append(
            "The host starts each kernel of this model's compiled pass, and a GPU may wait for it: "
            f"the pass cannot be recorded as a CUDA graph ({engine.passed_over[REPLAY]})."
        )
    return remarks


def first_step(seconds: float, why: str) -> list[str]:
    """A sentence about the time of the first step, if long, and what took it."""
    return [f"The first step took {seconds:.0f} s with {why}."] * (seconds > _WORTH_SAYING)
