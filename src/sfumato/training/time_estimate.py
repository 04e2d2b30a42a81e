"""The time that a run will take on a CPU, from a few images, before anything is begun."""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable

import torch
from torch import Tensor, nn

from sfumato.data import Dataset, Views
from sfumato.live import working
from sfumato.privacy.numerics.model_state import undisturbed
from sfumato.recipe import Recipe
from sfumato.text import duration
from sfumato.training.initial.frozen_features import features_apply
from sfumato.training.instead import Instead, advice, exchanged
from sfumato.training.reporter import Reporter
from sfumato.training.setup import Plan, views

SHORT = 30.0
"""Seconds below which nothing is said about the time of a run."""

LONG = 3600.0
"""Seconds above which the user is told what takes minutes."""

ENGINE = 1.4
"""Time of per-example gradients over that of an ordinary pass; measured from 1.2 to 1.6."""

_ROWS = (4, 32, 256)
"""Images that are timed at once: more while that takes no time worth mentioning."""

_CALLS = 2
"""Calls that are timed at least; the first takes memory too."""

_REPEATED = 0.3
"""Seconds for which calls are repeated."""

_ENOUGH = 0.1
"""Seconds of a pass from which on the calls of its layers do not count."""


def seconds_on_cpu(model: nn.Module, plan: Plan, dataset: Dataset, seen: Views) -> float:
    """The estimated time of all steps on this CPU, or of fixed layers, if they run only once.

    Images of zeros run through the model.

    Args:
        model: The model.
        plan: The numbers of the run.
        dataset: Its images.
        seen: The views of an image in a step.
    """
    shape = dataset.channels, *dataset.size

    def images(rows: int) -> Tensor:
        return torch.zeros(rows, *shape).contiguous(memory_format=torch.channels_last)

    def both(rows: int) -> None:
        trained = [p for p in model.parameters() if p.requires_grad]
        torch.autograd.grad(model(images(rows)).square().sum(), trained, allow_unused=True)

    with undisturbed(model):
        if features_apply(model, seen):
            with torch.no_grad():
                count = len(dataset.train) + len(dataset.test)
                return seconds_for(lambda rows: model(images(rows)), count)
        return seconds_for(both, plan.steps * plan.sampler.batch * seen.total * ENGINE)


def seconds_for(work: Callable[[int], object], count: float) -> float:
    """Seconds of some work on so many images.

    The fastest of some calls counts: others may have been disturbed.

    Args:
        work: The work on a number of images.
        count: The number of images that is asked about.
    """
    found = float("inf")
    for rows in _ROWS:
        ends = time.monotonic() + _REPEATED
        for call in itertools.count():
            began = time.monotonic()
            if call >= _CALLS and (found < SHORT or began > ends):
                break
            work(rows)
            least = time.monotonic() - began
            found = min(found, least * count / rows)
        if found < SHORT or least > _ENOUGH:
            break
    return found


def about_time(seconds: float) -> str:
    """A sentence about the estimated time of a run."""
    return f"Estimated time on this CPU: {duration(seconds)}."


def in_time(
    recipe: Recipe,
    plan: Plan,
    dataset: Dataset,
    model: nn.Module,
    reporter: Reporter,
    quick: Instead | None,
    *,
    grey: bool,
) -> Recipe | None:
    """Say how long a run will take on this CPU; the recipe to take instead, if that is hours.

    Args:
        recipe: The recipe of the run.
        plan: Its numbers.
        dataset: Its data.
        model: Its model.
        reporter: Told the time, and what takes less.
        quick: The quick recipe for the same data; None if the user has asked for this one.
        grey: Whether the images are grey, as which a network of colour may not see them.
    """
    with working("estimating the time"):
        seconds = seconds_on_cpu(model, plan, dataset, views(recipe))
    if seconds > SHORT:
        reporter.say(about_time(seconds))
    if seconds < LONG or recipe.start.train:
        return None
    say = advice if quick is None else exchanged
    reporter.say(say(recipe, grey=grey))
    return None if quick is None else quick.make(grey)
