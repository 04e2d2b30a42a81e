"""A proposed recipe as a short TOML file with the reason for every setting."""

from __future__ import annotations

import textwrap

from sfumato import recipes
from sfumato.data.catalogue import canonical
from sfumato.guide.proposal import Proposal
from sfumato.recipe import toml_value
from sfumato.text import one_line

_COLUMN = 32
"""Width of settings, before their comments."""


def recipe_text(proposal: Proposal) -> str:
    """The file that `sfumato init` writes: what differs from a packaged recipe, with comments.

    *Guarantee:* Of the data it has what the statement of a run treats as public and no more: the
    number of training examples, their shape, and batch, steps and delta, which follow from it. It
    has no count of a class.
    """
    p = proposal
    lines = [
        "# A recipe made by `sfumato init`. Change what you like; what is not here is as in the",
        f"# packaged recipe '{p.base}', and `sfumato recipes show FILE` prints all of it.",
        "#",
        "# The number of training examples and the shape of images, from which batch, steps and",
        "# delta follow, were read from the data without noise. A run's statement treats them as",
        "# public; if they are not, replace them by numbers of your own.",
        "",
        *_comment(recipes.find(p.base).about),
        f"extends = {toml_value(p.base)}",
        f"name = {toml_value(p.recipe.name)}",
        *_data(p),
        *_privacy(p),
        *_training(p),
        "",
        *_comment(measured_accuracy(p)),
        *_comment(expected_time(p)),
    ]
    return "\n".join(lines) + "\n"


def _data(p: Proposal) -> list[str]:
    d = p.recipe.data
    where = "known by name" if canonical(d.name) else "relative to where the command is given"
    lines = ["", "[data]", _line("name", d.name, where)]
    if p.square is not None:
        lines.append(_line("size", p.square, "side of images; others are scaled to it"))
    if d.unit == "image":
        lines.append(_line("unit", d.unit, "epsilon is about one image: see docs/patients.md if"))
        lines.append(f"{'':<{_COLUMN}}  # patients have several")
    else:
        lines.append(_line("unit", d.unit, f"epsilon is about all images of one {d.unit}"))
        lines.append(_line("per_unit", d.per_unit, f"most images of a {d.unit} in a step"))
    for key, words in (
        ("unit_pattern", f"finds the {d.unit} in paths"),
        ("columns", "of the table"),
        ("skip_unreadable", "go on without images that cannot be read"),
    ):
        if value := getattr(d, key):
            lines.append(_line(key, value, words))
    return [
        *lines,
        "# window = [40, 400]              # DICOM: centre and width of what is black to white",
        "# validation = 0.1                # part held out, to look at while training",
    ]


def _privacy(p: Proposal) -> list[str]:
    s, most = p.recipe.privacy, f"at most 0.1 / {p.examples:,} training {p.recipe.data.unit}s"
    return [
        "",
        "[privacy]",
        _line("epsilon", s.epsilon, "the budget: below 1 is strong, above 10 promises little"),
        _line("delta", s.delta, most),
    ]


def _training(p: Proposal) -> list[str]:
    c, unit = p.choice, p.recipe.data.unit
    return [
        "",
        "[training]",
        _line("batch", c.batch, f"expected {unit}s in a step, of {p.examples:,}"),
        _line("steps", c.steps, f"{c.epochs:.3g} passes over the {unit}s"),
        f"# The noise multiplier is {c.noise_multiplier:g}, on the mean gradient "
        f"{c.effective_noise:.2g} of C (`sfumato plan FILE`).",
    ]


def measured_accuracy(p: Proposal) -> str:
    """A sentence about the accuracy to expect."""
    if p.expected is None:
        return "Expected accuracy: this recipe was not measured on few images of this kind."
    return f"Expected accuracy: {p.expected.words}"


def expected_time(p: Proposal) -> str:
    """A sentence about the time to expect."""
    if p.seconds is None:
        return "Expected time: not measured, as there is no GPU here."
    return f"Expected time: about {minutes(p.seconds)} on this machine."


def minutes(seconds: float) -> str:
    """A time for people: minutes, or hours from two on."""
    if seconds < 90:
        return "a minute"
    if seconds < 7200:
        return f"{seconds / 60:.0f} minutes"
    return f"{seconds / 3600:.1f} hours"


def _line(key: str, value: object, words: str) -> str:
    return f"{f'{key} = {toml_value(value)}':<{_COLUMN}}  # {one_line(words)}"


def _comment(text: str, width: int = 98) -> list[str]:
    """A text as comment lines."""
    return [f"# {line}" for line in textwrap.wrap(one_line(text), width - 2)]
