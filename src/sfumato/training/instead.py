"""Recipes that are taken instead of one that nobody asked for by name."""

from __future__ import annotations

import shlex
from collections.abc import Callable
from typing import Protocol

from sfumato.data import Dataset
from sfumato.recipe import Recipe, setting_text
from sfumato.settings import Data
from sfumato.text import GIVEN, quick_name
from sfumato.training.reporter import Reporter

_OPTIONS = {"unit": "--unit", "unit_pattern": "--unit-pattern", "size": "--size"}
"""Options of the command for settings of the data."""


class Instead(Protocol):
    """The quick recipe for the user's data (`sfumato.recipes.choice.Quick`)."""

    @property
    def make(self) -> Callable[[bool], Recipe]:
        """Make the recipe, for grey images or for colour."""

    @property
    def better(self) -> Callable[[int, float, bool], bool]:
        """Tell from examples, epsilon and grey whether it is to be expected more accurate."""


def command(recipe: Recipe, name: str) -> str:
    """The command, or the call, that trains on a recipe's data with a packaged recipe instead."""
    if recipe.data.name.startswith(GIVEN):
        return f"sfumato.train(data, recipe='{name}', ...)"
    words = ["sfumato", "train", name, "--data", recipe.data.name]
    if recipe.privacy.enabled:
        words += ["--epsilon", f"{recipe.privacy.epsilon:g}"]
    usual = vars(Data())
    for key, value in vars(recipe.data).items():
        # The name stands above; channels may be those of the weights to start from.
        if key in _OPTIONS and value != usual[key]:
            words += [_OPTIONS[key], str(value)]
        elif key not in ("name", "channels") and value != usual[key]:
            words += ["--set", f"data.{key}={setting_text(value)}"]
    return shlex.join(words)


def advice(recipe: Recipe, *, grey: bool) -> str:
    """Words about what takes minutes instead of hours."""
    return (
        "If only the last layer is trained, a few thousand images take minutes:\n"
        f"  {command(recipe, quick_name(grey=grey))}"
    )


def exchanged(recipe: Recipe, *, grey: bool) -> str:
    """Words about the recipe that is taken where the whole network would take hours."""
    words = f"Without a GPU the recipe '{quick_name(grey=grey)}' is taken, which takes minutes."
    return f"{words} {_nevertheless(recipe)}"


def _nevertheless(recipe: Recipe) -> str:
    return (
        "To train the whole network nevertheless, name its recipe:\n"
        f"  {command(recipe, recipe.name)}"
    )


def better_with_few(
    recipe: Recipe, dataset: Dataset, reporter: Reporter, quick: Instead | None
) -> Recipe | None:
    """The recipe to take instead because of few examples; says so.

    Their number and epsilon are public, so the choice costs nothing.

    Args:
        recipe: The recipe of the run.
        dataset: Its data.
        reporter: Told what is taken, and how to train the other.
        quick: The quick recipe for the same data; None if the user has asked for this one.
    """
    examples, epsilon = dataset.train.examples, recipe.privacy.epsilon
    grey = dataset.channels == 1
    if quick is None or not recipe.privacy.enabled:
        return None
    if not quick.better(examples, epsilon, grey):
        return None
    reporter.say(
        f"With {examples:,} training examples at epsilon {epsilon:g} the recipe "
        f"'{quick_name(grey=grey)}' is taken: in our measurements with so few the whole network "
        f"was less accurate. {_nevertheless(recipe)}"
    )
    return quick.make(grey)
