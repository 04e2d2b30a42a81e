"""The part of canaries in the steps of a loop: what they add, and what is seen of them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import torch
import torch.nn.functional as F
from torch import Tensor

from sfumato.memory import BatchSize
from sfumato.privacy.audit.canaries import Canaries
from sfumato.privacy.clipping import ClippingRule
from sfumato.training.canary_plan import CanaryPlan

if TYPE_CHECKING:
    from sfumato.training.loop import Loop

_AT_ONCE = 512


class CanarySteps:
    """Canaries in a loop: none, unless a subclass has some."""

    def images_of(self, draw: Tensor) -> Tensor:
        """The part of a draw whose images are to be fetched and accumulated."""
        return draw

    def accumulate(self, draw: Tensor) -> None:
        """Add the canaries of a draw that have no image, after its images."""

    def see(self) -> None:
        """Look at the gradients that were just released."""

    def result(self) -> tuple[Tensor, Tensor] | None:
        """Scores after the last step, larger for canaries that are likelier in, and the coins."""
        return None

    def state(self) -> dict[str, Tensor]:
        """The part of the scores that is known so far, for a checkpoint."""
        return {}

    def load(self, state: Mapping[str, Tensor]) -> None:
        """Restore a state."""


def begin(plan: CanaryPlan | None, loop: Loop) -> CanarySteps:
    """The canaries of a loop before its first step."""
    if plan is None:
        return CanarySteps()
    return _Gradients(plan, loop) if plan.kind == "gradient" else _Images(plan, loop)


class _Scored(CanarySteps):
    """Canaries with something that their scores are made of, such as values at the start."""

    _total: Tensor

    def state(self) -> dict[str, Tensor]:
        return {"total": self._total}

    def load(self, state: Mapping[str, Tensor]) -> None:
        self._total = state["total"]


class _Gradients(_Scored):
    """Gradient canaries, which rank 0 adds."""

    def __init__(self, plan: CanaryPlan, loop: Loop) -> None:
        self._loop, self._weights = loop, plan.score == "weights"
        self._canaries = Canaries.place(
            self._trained, count=plan.count, examples=loop.dataset.train.examples,
            clipping=loop.private.clipping, randomness=plan.randomness,
        )  # fmt: skip
        start = self._canaries.read(self._trained)
        self._total = start if self._weights else torch.zeros_like(start)
        self._rule: ClippingRule = loop.private.clipping
        self._others = torch.zeros_like(start)

    @property
    def _trained(self) -> dict[str, torch.nn.Parameter]:
        return self._loop.private.per_example.trainable

    def images_of(self, draw: Tensor) -> Tensor:
        return draw[draw < self._canaries.first]

    def accumulate(self, draw: Tensor) -> None:
        private = self._loop.private
        self._rule = private.clipping
        own = draw if self._loop.ranks.leader else draw[:0]
        self._others = private.accumulate_canaries(self._canaries, own)

    def see(self) -> None:
        if self._weights:
            return
        private = self._loop.private
        # All ranks have just released together, so that none can fail before the others here.
        others = self._loop.ranks.total(self._others)
        gradients = {n: p.grad for n, p in self._trained.items() if p.grad is not None}
        self._total += self._canaries.losses(
            gradients, others, step=private.step_event, clipping=self._rule,
            batch=private.sampler.batch,
        )  # fmt: skip

    def result(self) -> tuple[Tensor, Tensor]:
        end = self._canaries.read(self._trained) if self._weights else 0.0
        return self._total - end, self._canaries.included


class _Images(_Scored):
    """Image canaries, which are the last training images."""

    def __init__(self, plan: CanaryPlan, loop: Loop) -> None:
        self._loop, self._first = loop, len(loop.dataset.train) - plan.count
        self._included = plan.randomness.stream(0, "coins").trials(plan.count, 0.5)
        self._total = self._losses()

    def images_of(self, draw: Tensor) -> Tensor:
        canary = draw >= self._first
        there = self._included[(draw - self._first).clamp(min=0)]
        return draw[~canary | there]

    def result(self) -> tuple[Tensor, Tensor]:
        with self._loop.released_weights():
            return self._total - self._losses(), self._included

    @torch.no_grad()
    def _losses(self) -> Tensor:
        """The loss of each canary, of the model in evaluation mode."""
        loop, store = self._loop, self._loop.store
        numbers = torch.arange(self._first, len(store))

        def losses(part: slice) -> Tensor:
            images, labels = store.gather(numbers[part])
            x = store.normalise(images).contiguous(memory_format=loop.memory_format)
            return F.cross_entropy(loop.model(x).float(), labels, reduction="none").cpu().double()

        training = loop.model.training
        loop.model.eval()
        found = list(BatchSize(_AT_ONCE).parts(len(numbers), losses))
        loop.model.train(training)
        return torch.cat(found)
