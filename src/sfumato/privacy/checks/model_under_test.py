"""A model under test: random inputs, a copy in float64, and modes in which it repeats itself."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_flatten

from sfumato.errors import UserError
from sfumato.privacy.checks.accepted_targets import accepted_labels, calls_ctc
from sfumato.privacy.checks.isolation import LOOSE, look
from sfumato.privacy.checks.random_inputs import random_counts, random_rows, random_targets
from sfumato.privacy.engines.objective import Loss, Objective, shape_complaint
from sfumato.privacy.engines.one_at_a_time import OneAtATime
from sfumato.privacy.engines.unit_loss import of_images
from sfumato.privacy.engines.unit_targets import joined
from sfumato.privacy.numerics.distance import distance
from sfumato.privacy.numerics.model_state import (
    PROBE_SEED,
    RandomState,
    Still,
    copied,
    undisturbed,
)
from sfumato.privacy.numerics.precision import widened

Comparison = Literal["as it is", "held still", "in evaluation mode", "not at all"]
"""The mode in which a model, which may draw random numbers, can be compared with itself."""


@dataclass
class Draws:
    """Random inputs and targets like a model's real ones.

    Attributes:
        like_x: Real inputs.
        like_y: Real targets; of units with several images those of each image, one by one.
        whole_y: Real targets as engines take them, those of a unit together.
        loss: The loss of single images.
        positive: Whether inputs are positive, because the model is not finite on others.
        labels: What targets are drawn from; None if the loss accepts the real ones alone.
        ctc: Whether the loss calls `ctc_loss`, which reads memory out of bounds at a label that is
            no class.
    """

    like_x: Tensor
    like_y: Tensor
    whole_y: Tensor
    loss: Loss
    positive: bool
    labels: range | None
    ctc: bool

    @classmethod
    def for_objective(cls, objective: Objective, x: Tensor, y: Tensor) -> Draws:
        """Find inputs on which the model is finite, and targets that the loss accepts.

        Raises:
            UserError: The model does not return one row of outputs per example.
        """
        model, (loss, each) = objective.model, of_images(objective.loss, y)
        outputs = look(model, random_rows(x, 3), None).outputs
        if complaint := shape_complaint(outputs, 3):
            raise UserError(f"This model cannot be trained: {complaint}.")
        positive = False
        if not bool(torch.isfinite(outputs).all()):
            other = look(model, random_rows(x, 3, positive=True), None).outputs
            positive = bool(torch.isfinite(other).all())
        ctc = calls_ctc(loss, outputs, each)
        labels = accepted_labels(loss, outputs, each, ctc=ctc)
        return cls(x, each, y, loss, positive, labels, ctc)

    def x(self, rows: int) -> Tensor:
        """Random inputs."""
        return random_rows(self.like_x, rows, positive=self.positive)

    def y(self, examples: int) -> Tensor:
        """Random targets; the given ones, repeated, if the loss does not accept random ones.

        Units with several images have random numbers of these.
        """
        if self.whole_y is self.like_y:
            return self.targets(examples)
        if self.labels is None:
            return _repeated(self.whole_y, examples)
        images = self.whole_y.shape[2]
        there = torch.arange(images) < random_counts(examples, images).unsqueeze(1)
        each = self.targets(examples * images)
        return joined(each.view(examples, images, *each.shape[1:]), there)

    def targets(self, rows: int) -> Tensor:
        """Targets of single images, one for each row."""
        if self.labels is None:
            return _repeated(self.like_y, rows)
        return random_targets(self.like_y, self.labels, rows)


def _repeated(y: Tensor, count: int) -> Tensor:
    """The first `count` targets, which repeat if there are fewer."""
    return y[torch.arange(count, device=y.device) % y.shape[0]]


class _Types(TorchFunctionMode):
    """Mode that records the floating-point types of all results."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: set[torch.dtype] = set()

    def __torch_function__(
        self,
        func: Any,
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        """Run an operation, and record the types that it returns."""
        out = func(*args, **(kwargs or {}))
        leaves = tree_flatten(out)[0]
        self.seen |= {t.dtype for t in leaves if isinstance(t, Tensor) and t.is_floating_point()}
        return out


def narrowest(model: nn.Module, x: Tensor) -> torch.dtype:
    """The least precise floating-point type that the model holds or computes in."""
    with undisturbed(model), torch.no_grad(), _Types() as types:
        model(x.clone())
    found = {*types.seen, *(p.dtype for p in model.parameters() if p.is_floating_point())}
    some: list[torch.dtype] = list(found or {torch.float32})
    return max(some, key=lambda dtype: torch.finfo(dtype).eps)


def is_random(model: nn.Module, x: Tensor) -> bool:
    """Tell whether the model's outputs depend on the random state."""
    return distance(*(look(model, x, None, at=at).outputs for at in (1, 2))) > 0


@contextmanager
def without_zeros(model: nn.Module) -> Iterator[None]:
    """Give parameters that are zero, and hide everything behind them, other values for a while."""
    generator = torch.Generator().manual_seed(PROBE_SEED)
    zeros = [p for p in model.parameters() if p.requires_grad and not bool(p.any())]
    for p in zeros:
        # Through `data`, so that it does not count as a write by the model.
        p.data.copy_(0.1 * torch.randn(p.shape, generator=generator, dtype=torch.float64))
    try:
        yield
    finally:
        for p in zeros:
            p.data.zero_()


def _draws(model: nn.Module, x: Tensor) -> bool:
    """Tell whether a call of the model advances a global random state."""
    with undisturbed(model), torch.no_grad():
        before = RandomState(model)
        model(x.clone())
        return not RandomState(model).same(before)


def how_to_compare(model: nn.Module, x: Tensor) -> Comparison:
    """The mildest mode in which the model repeats itself from different random states.

    Whether it draws at all decides first: behind a small gain, as LayerScale has, what is dropped
    at random hardly shows in the outputs, but does in the gradient of the gain.
    """
    modes: tuple[Comparison, ...] = ("as it is", "held still", "in evaluation mode")
    for mode in modes[1:] if _draws(model, x) else modes:
        with held(model, mode):
            first, second = (look(model, x, None, at=at).outputs for at in (1, 2))
        if distance(first, second) <= LOOSE.get(x.dtype, 1e-2):
            return mode
    return "not at all"


@contextmanager
def held(model: nn.Module, comparison: Comparison) -> Iterator[None]:
    """Hold random numbers constant if needed; where that is not enough, run in evaluation mode."""
    if comparison == "as it is":
        yield
        return
    modes = {module: module.training for module in model.modules()}
    try:
        if comparison == "in evaluation mode":
            model.eval()
        with Still():  # type: ignore[no-untyped-call]
            yield
    finally:
        for module, mode in modes.items():
            module.training = mode


def double_of(objective: Objective, x: Tensor, y: Tensor) -> Objective | None:
    """The objective with a copy of the model in float64, or None where there cannot be one.

    It is tried on one example with its target.
    """
    if all(p.dtype == torch.float64 for p in objective.model.parameters()):
        return None
    try:
        twin = Objective(copied(objective.model).double(), objective.loss, objective.views)
        x, y = widened(x), widened(y)
        OneAtATime(twin).gradients(x, y)
        return twin if narrowest(twin.model, x) == torch.float64 else None
    except Exception:
        return None
