"""Learning rates over the steps, and decisions from validation results.

Constant, linear, cosine and step schedules depend only on the step's number. *Plateau* and *early
stopping* use validation images, which are not trained on: epsilon does not cover these decisions
towards those images, and the privacy statement says so. Neither may use training images, whose
losses would leak through every decision.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from typing import Any

from sfumato.data import Dataset
from sfumato.errors import UserError
from sfumato.recipe import Recipe
from sfumato.settings import Optimizer


def learning_rate(
    settings: Optimizer, step: int, steps: int, *, epoch: float = math.inf, scale: float = 1.0
) -> float:
    """The learning rate of step `step` (from 1) of `steps`.

    Args:
        settings: The recipe's optimizer settings.
        step: The step's number.
        steps: Total number of steps.
        epoch: Steps in an epoch.
        scale: Factor from reductions on a plateau.
    """
    lr, warmup = settings.lr * scale, settings.warmup
    if step <= warmup:
        return lr * step / warmup
    done = (step - 1 - warmup) / max(1, steps - warmup)
    match settings.schedule:
        case "cosine":
            return lr * 0.5 * (1 + math.cos(math.pi * done))
        case "linear":
            return lr * (1 - done)
        case "step":
            every = settings.decay_steps or max(1.0, settings.decay_epochs * epoch)
            return float(lr * settings.decay ** math.floor((step - 1) / every))
        case _:
            return lr


def noise_scale(settings: Optimizer, noise: float) -> float:
    """Factor of the learning rate for a step whose noise, sigma / B, is `noise`.

    Rates chosen on held-out images fell with the root of the noise where whole networks were
    trained, and with the noise itself where a linear layer was, see docs/methods.md.
    """
    if settings.effective_noise is None or noise == 0:
        return 1.0
    return float((settings.effective_noise / noise) ** settings.noise_power)


@dataclass
class Watch:
    """Detector of a plateau in validation results.

    Attributes:
        patience: Steps without a better result before the learning rate is reduced; None for never.
        stop_after: Steps without a better result before training ends; None for never.
        factor: Factor of a reduction.
        higher: Whether a higher result is better.
        best: The best result so far.
        best_step: The step of the best result.
        reduced_step: The step of the last reduction.
        scale: The product of all reductions so far.
        stopped: Whether training is to end.
    """

    patience: float | None = None
    stop_after: float | None = None
    factor: float = 0.5
    higher: bool = True
    best: float | None = None
    best_step: int = 0
    reduced_step: int = 0
    scale: float = 1.0
    stopped: bool = False

    def see(self, step: int, result: float) -> None:
        """Record a validation result; NaN is never better."""
        if math.isfinite(result) and (
            self.best is None or (result > self.best if self.higher else result < self.best)
        ):
            self.best, self.best_step = result, step
            return
        since = step - max(self.best_step, self.reduced_step)
        if self.patience is not None and since >= self.patience:
            self.scale *= self.factor
            self.reduced_step = step
        if self.stop_after is not None and step - self.best_step >= self.stop_after:
            self.stopped = True

    def state(self) -> dict[str, Any]:
        """The attributes that change, as plain values."""
        kept = ("best", "best_step", "reduced_step", "scale", "stopped")
        return {name: value for name, value in asdict(self).items() if name in kept}

    def load(self, state: Mapping[str, Any]) -> None:
        """Restore a saved state."""
        known = {f.name for f in fields(self)}
        for name, value in state.items():
            if name in known:
                setattr(self, name, value)


def watch(recipe: Recipe, epoch: float) -> Watch:
    """The detector that a recipe asks for, with `epoch` steps in an epoch."""
    o, t = recipe.optimizer, recipe.training
    return Watch(
        patience=o.patience * epoch if o.schedule == "plateau" else None,
        stop_after=None if t.early_stop is None else t.early_stop * epoch,
        factor=o.decay,
        higher=o.monitor == "accuracy",
    )


def check(recipe: Recipe, dataset: Dataset) -> None:
    """Refuse a schedule by validation results if there is no validation set."""
    plateau = recipe.optimizer.schedule == "plateau"
    if (plateau or recipe.training.early_stop is not None) and dataset.validation is None:
        name = "optimizer.schedule = 'plateau'" if plateau else "training.early_stop"
        raise UserError(
            f"{name} watches validation results, and there are no validation images: watching the "
            "training images instead would leak them through every decision. Hold some out with "
            "data.validation = 0.05."
        )


def looks(recipe: Recipe) -> tuple[str, ...]:
    """Decisions that a run makes by looking at images without noise, in sentences."""
    found = []
    o, t = recipe.optimizer, recipe.training
    if o.schedule == "plateau":
        found.append(
            f"The learning rate, which fell when the {o.monitor} on validation images no longer "
            "improved: the weights depend on those images without noise."
        )
    if t.early_stop is not None:
        found.append(
            f"The moment training ended, which was chosen by the {o.monitor} on validation images "
            "without noise. (ε counts every step that was planned, because a number of steps that "
            "depends on results is not covered by the ε of those steps.)"
        )
    if t.diverged is not None:
        found.append(
            f"That training went on to its end: it would have been given up had the loss of a "
            f"training batch, without noise, exceeded {t.diverged:g}."
        )
    return tuple(found)
