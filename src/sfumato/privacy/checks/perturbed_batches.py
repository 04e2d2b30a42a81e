"""Batches for the checks of isolation, with the examples to change and their replacements."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from sfumato.privacy.checks.isolation import Change
from sfumato.privacy.checks.random_inputs import (
    CUT,
    IMAGE_KINDS,
    image_rows,
    random_rows,
    replacement,
)


@dataclass(frozen=True)
class Plan:
    """One batch and its changes.

    Attributes:
        x: The batch.
        changes: Rows to change at once, each with a kind of replacement (see `random_inputs`).
    """

    x: Tensor
    changes: list[Change]


def image_plans(like: Tensor) -> list[Plan]:
    """Small batches of inputs that real data may contain and normally distributed ones are not.

    Smooth images between 0 and 1, noise between 0 and 255, an image that is all white, a copy of
    another, examples that are all the same, and series that all end early.
    """
    images = image_rows(like, 3)
    plans = [Plan(images, [{j: kind} for j, kind in enumerate(IMAGE_KINDS)])]
    if like.is_floating_point():
        whole = (255 * random_rows(like, 3, positive=True)).round()
        plans += [Plan(_brightest_first(whole), [{0: "darker"}, {1: "white"}])]
    plans += [Plan(images[:1].expand_as(images).clone(), [{1: "darker"}])]
    short = random_rows(like, 3)
    for row in range(3):
        short = replacement(short, row, CUT)
    return [*plans, Plan(short, [{1: "other"}])]


def _brightest_first(x: Tensor) -> Tensor:
    """The same rows, the first with the largest value of all."""
    x = x.clone()
    x[0] = torch.where(x[0] == x[0].max(), x.max(), x[0])
    x[1:] = (0.9 * x[1:]).round()
    return x


def alike(x: Tensor) -> Tensor:
    """Rows that nearly equal the first."""
    return (x[:1] + 0.1 * x) / 1.1 if x.is_floating_point() else x[:1].expand_as(x).clone()
