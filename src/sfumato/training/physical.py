"""How many examples of a draw are processed at once."""

from __future__ import annotations

import math
from statistics import NormalDist

import torch
from torch import nn

from sfumato.data import Dataset
from sfumato.privacy.sampling import PoissonSampler

ROWS = 2048
"""Images at once that keep a GPU busy; more would only take memory."""

_OVERHEAD = 128
"""Images that could have been processed in the time that any physical batch costs besides."""

_MANY = 50
"""So many batches that half of the last one is no more than a hundredth."""

_SPREADS = [z / 4 for z in range(17)]


def physical_batch(
    model: nn.Module,
    sampler: PoissonSampler,
    dataset: Dataset,
    views: int,
    budget: int,
    *,
    rows: int | None = None,
) -> int:
    """How many examples to process at once within a memory budget in bytes, and `rows` images."""
    activations = 0

    def count(_module: nn.Module, _args: object, out: object) -> None:
        nonlocal activations
        if isinstance(out, torch.Tensor):
            activations += out.numel() * out.element_size()

    hooks = [m.register_forward_hook(count) for m in model.modules() if not list(m.children())]
    with torch.no_grad():  # Two images: with one, some layers that are refused later fail first.
        model(torch.zeros(2, dataset.channels, *dataset.size))
    for hook in hooks:
        hook.remove()
    activations //= 2
    gradients = sum(p.numel() for p in model.parameters() if p.requires_grad) * 4
    per_example = 2 * gradients + 3 * views * activations
    largest = max(1, budget // max(1, per_example))
    if rows is not None:
        largest = min(largest, max(1, rows // views))
    return least_work(sampler, largest, overhead=_OVERHEAD / views)


def least_work(sampler: PoissonSampler, largest: int, *, overhead: float) -> int:
    """The size of physical batches, `largest` at most, with which a step is expected to cost least.

    Batches are padded to one size, and a draw's size varies: what is processed is the size times
    the number of batches that the draw needs. A size is tried for each number of batches and some
    numbers of standard deviations that they hold beyond the mean draw.

    Args:
        sampler: Whose draws.
        largest: Most examples at once.
        overhead: What a physical batch costs besides, in examples.
    """
    mean = sampler.examples * sampler.rate
    spread = math.sqrt(mean * (1 - sampler.rate))
    largest = min(largest, sampler.examples)
    fewest = math.ceil(mean / largest)
    if fewest > _MANY:
        return largest
    sizes = {
        min(largest, math.ceil((mean + z * spread) / parts))
        for parts in range(fewest, 2 * fewest + 2)
        for z in _SPREADS
    }
    return min(sorted(sizes, reverse=True), key=lambda s: _needed(mean, spread, s) * (s + overhead))


def _needed(mean: float, spread: float, size: int) -> float:
    """The number of physical batches that a draw is expected to need."""
    if not spread:
        return math.ceil(mean / size)
    draw = NormalDist(mean, spread)
    most = math.ceil((mean + 6 * spread) / size)
    return sum(1 - draw.cdf(j * size) for j in range(most))
