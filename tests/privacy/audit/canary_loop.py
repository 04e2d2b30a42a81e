"""An own training loop with canaries, honest or not, and the scores of everything it releases."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from sfumato.privacy import ClippingRule, Flat, PrivateGradients, Randomness, Step
from sfumato.privacy.audit.canaries import Canaries
from sfumato.privacy.audit.pairs import History
from sfumato.privacy.audit.result import AuditResult, judge

DELTA = 1e-5
IMAGES = 100
Draw = Callable[[PrivateGradients, int], Tensor]


@dataclass(frozen=True)
class Trained:
    """A loop that ended.

    Attributes:
        canaries: Its canaries.
        steps: Its releases, as the mechanism recorded them.
        released: `(steps, canaries)`, what each release held in the coordinates of each canary.
        losses: The privacy losses of all releases together.
        moved: The change of the weights.
    """

    canaries: Canaries
    steps: list[Step]
    released: Tensor
    losses: Tensor
    moved: Tensor

    def judged(self, scores: Tensor | None = None) -> AuditResult:
        """The audit by these scores; by the privacy losses if None."""
        found = self.losses if scores is None else scores
        return judge(found.numpy(), self.canaries.included.numpy(), self.steps, delta=DELTA)


def honest_draw(private: PrivateGradients, step: int) -> Tensor:
    """The draw of a step by Poisson sampling."""
    return private.sampler.draw(private.randomness.stream(step, "sample"))


def train(
    *,
    seed: int,
    rule: ClippingRule | None = None,
    draw: Draw = honest_draw,
    count: int = 1000,
    steps: int = 100,
    rate: float = 0.05,
    epsilon: float = 4.0,
    model: nn.Module | None = None,
) -> Trained:
    """Train a small network on random images with canaries, by SGD at one learning rate."""
    torch.manual_seed(seed)
    model = model or nn.Sequential(nn.Linear(64, 32), nn.Tanh(), nn.Linear(32, 10))
    x, y = torch.randn(IMAGES, 64), torch.randint(10, (IMAGES,))
    private = PrivateGradients.for_budget(
        model, examples=IMAGES + count, batch=rate * (IMAGES + count), epsilon=epsilon, delta=DELTA,
        steps=steps, clipping=rule or Flat(0.5), randomness=Randomness.from_seed(seed), check=False,
    )  # fmt: skip
    canaries = Canaries.place(
        private.per_example.trainable, count=count, examples=IMAGES, clipping=private.clipping,
        randomness=Randomness.from_seed(seed).subkey("canaries"),
    )  # fmt: skip
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    start = canaries.read(dict(model.named_parameters()))
    released, losses = [], torch.zeros(count, dtype=torch.float64)
    for step in range(1, steps + 1):
        drawn = draw(private, step)
        images = drawn[drawn < IMAGES]
        private.accumulate(x[images], y[images])
        others = private.accumulate_canaries(canaries, drawn)
        rule = private.clipping
        private.release()
        gradients = {n: p.grad for n, p in model.named_parameters() if p.grad is not None}
        batch = float(private.sampler.batch)
        released.append((canaries.read(gradients) * batch - others) / rule.sensitivity)
        step_event = private.step_event
        losses += canaries.losses(gradients, others, step=step_event, clipping=rule, batch=batch)
        optimizer.step()
    moved = start - canaries.read(dict(model.named_parameters()))
    return Trained(canaries, private.history, torch.stack(released), losses, moved)


def claim(trained: Trained) -> float:
    """The epsilon that the mechanism claims."""
    return History(tuple(trained.steps)).epsilon(DELTA)
