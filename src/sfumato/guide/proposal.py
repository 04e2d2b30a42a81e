"""A recipe that suits a data set, a budget, a machine and the time that one is willing to wait."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch

from sfumato import recipes
from sfumato.data import Dataset
from sfumato.errors import UserError
from sfumato.guide.pace import Pace, measure_pace, views_of
from sfumato.privacy.accounting.budget import check_epsilon
from sfumato.privacy.accounting.plan_grid import Choice, choice
from sfumato.recipe import Recipe
from sfumato.recipes.measured import Expectation, better_last_layer, expected_accuracy
from sfumato.settings import Data
from sfumato.text import quick_name
from sfumato.training.setup import asked_steps, expected_batch

_DELTA = 1e-5
_MANY = 0.1
"""Delta times the number of examples stays below this, as the statement advises."""

Measure = Callable[[Recipe, Dataset, torch.device], Pace]


@dataclass(frozen=True)
class Proposal:
    """A recipe with the reasons for it.

    Attributes:
        recipe: Complete, with batch, steps, epsilon and delta stated.
        base: The packaged recipe that it extends.
        choice: Batch and steps with their noise, as `sfumato plan` shows them.
        seconds: Estimated time on this machine; None for a GPU elsewhere.
        within: Whether that is within the time that was asked for.
        expected: Accuracy that was measured on another data set, if any was.
        examples: Training examples: images, or units of several images.
        square: Side of the images, if they are square.
    """

    recipe: Recipe
    base: str
    choice: Choice
    seconds: float | None
    within: bool
    expected: Expectation | None
    examples: int
    square: int | None


def propose(
    dataset: Dataset,
    data: Data,
    *,
    epsilon: float,
    minutes: float,
    device: torch.device | None,
    measure: Measure = measure_pace,
) -> Proposal:
    """Choose among the general recipes, and a batch and steps that the budget and the time allow.

    Recipes are tried in the order of the accuracy that was measured with so many images. A recipe
    may take half of its batch or of its steps, if `minutes` do not allow all; then the largest
    signal-to-noise of the whole run decides. If no recipe is quick enough, the quickest is taken.

    Args:
        dataset: The images.
        data: Settings that name them.
        epsilon: The budget.
        minutes: Time that training may take.
        device: Where it will train; None for a GPU that is not here, whose time is not known.
        measure: Measures the speed of a recipe's network.

    Raises:
        UserError: If the numbers are impossible, or there are too few examples.
    """
    check_epsilon(epsilon)
    if not 0 < minutes < math.inf:
        raise UserError(f"--minutes {minutes:g}: give a number above 0.")
    slow: list[_Work] = []
    for base in _in_order(dataset, epsilon):
        pace = None if device is None else measure(_recipe(base, data), dataset, device)
        works = _works(base, data, dataset, pace)
        quick = [w for w in works if w.seconds is None or w.seconds <= 60 * minutes]
        if quick:
            if quick[0] is works[0]:  # As the recipe was measured.
                quick = quick[:1]
            made = [_proposal(work, dataset, epsilon, within=True) for work in quick]
            return max(made, key=lambda p: p.choice.signal_to_noise_run)
        slow += works
    return _proposal(min(slow, key=lambda w: w.seconds or 0.0), dataset, epsilon, within=False)


def delta_for(examples: int) -> float:
    """1e-5, or the power of ten that stays a tenth below one over the number of examples."""
    return min(_DELTA, 10.0 ** math.floor(math.log10(_MANY / examples)))


def _in_order(dataset: Dataset, epsilon: float) -> tuple[str, str]:
    """A whole network and a last layer on fixed ones, the better one with so many images first."""
    grey = dataset.channels == 1
    last = quick_name(grey=grey)
    few = better_last_layer(dataset.train.examples, epsilon, grey=grey)
    return (last, "images") if few else ("images", last)


def _recipe(base: str, data: Data) -> Recipe:
    """A general recipe for the data."""
    usual = vars(Data())
    stated = {f"data.{key}": value for key, value in vars(data).items() if value != usual[key]}
    stated |= {"name": Path(data.name).stem or base, "data.name": data.name}
    return recipes.find(base).replace(stated)


@dataclass(frozen=True)
class _Work:
    """A recipe with a batch and a number of steps, and the time that they take."""

    base: str
    recipe: Recipe
    batch: int
    steps: int
    seconds: float | None


def _works(base: str, data: Data, dataset: Dataset, pace: Pace | None) -> list[_Work]:
    """A recipe as it is, and with half of its batch or steps where that saves time."""
    recipe, n = _recipe(base, data), dataset.train.examples
    batch = expected_batch(recipe.training, n)
    steps = asked_steps(recipe.training, n, batch)
    held_out = sum(len(part) for name, part in dataset.parts().items() if name != "train")

    def work(b: int, t: int) -> _Work:
        seconds = None
        if pace is not None:
            seconds = pace.seconds(
                steps=t,
                views=views_of(recipe, dataset, b, t),
                images=len(dataset.train),
                held_out=held_out,
            )
        return _Work(base, recipe, b, t, seconds)

    if pace is None or pace.fixed:
        return [work(batch, steps)]
    halves = [(b, t) for b in (batch, max(1, batch // 2)) for t in (steps, max(1, steps // 2))]
    return [work(b, t) for b, t in dict.fromkeys(halves)]


def _proposal(work: _Work, dataset: Dataset, epsilon: float, *, within: bool) -> Proposal:
    """The proposal of some work, with the noise that the budget asks for."""
    n = dataset.train.examples
    delta = delta_for(n)
    stated = {
        "privacy.epsilon": epsilon,
        "privacy.delta": delta,
        "training.batch": work.batch,
        "training.steps": work.steps,
    }
    height, width = dataset.size
    return Proposal(
        recipe=work.recipe.replace(stated),
        base=work.base,
        choice=choice(
            work.batch, work.steps, n, epsilon=epsilon, delta=delta,
            views=work.recipe.training.views,
        ),
        seconds=work.seconds,
        within=within,
        expected=expected_accuracy(work.base, n, epsilon, grey=dataset.channels == 1),
        examples=n,
        square=height if height == width else None,
    )  # fmt: skip
