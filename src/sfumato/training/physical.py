"""The physical batch size: the number of examples of a draw that are processed at once."""

from __future__ import annotations

import gc
import math
import os
from statistics import NormalDist

import torch
from torch import nn

from sfumato.data import Dataset
from sfumato.privacy.sampling import PoissonSampler

ROWS = 2048
"""Images at once that keep a GPU busy; more would only take memory."""

_OVERHEAD = 128
"""Fixed cost of a physical batch, as the number of images processed in the same time."""

_MANY = 50
"""Number of batches for which half of the last one is no more than a hundredth of the draw."""

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
    """The largest number of examples that fit a memory budget in bytes, and `rows` images."""
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


def memory_budget(device: torch.device) -> int:
    """Bytes that a physical batch may take."""
    if device.type == "cuda":
        # Memory of an earlier run in the same process is no longer in use.
        gc.collect()
        torch.cuda.empty_cache()
        return int(torch.cuda.mem_get_info(device)[0] * 0.6)
    try:
        free = os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (ValueError, OSError, AttributeError):
        free = 1 << 32
    return min(free // 4, 1 << 30)


def rank_batch(size: int, sampler: PoissonSampler, ranks: int) -> int:
    """A physical batch of `size` examples, or of a rank's share of most draws if that is less."""
    if ranks == 1:
        return size
    most = sampler.batch + 2 * math.sqrt(sampler.batch * (1 - sampler.rate))
    return min(size, math.ceil(most / ranks))


def least_work(sampler: PoissonSampler, largest: int, *, overhead: float) -> int:
    """The size of physical batches, `largest` at most, with the lowest expected cost of a step.

    Batches are padded to one size, and the size of a draw varies: the cost is the size times the
    number of batches that the draw needs. One size is tried for each number of batches and for some
    numbers of standard deviations that they hold beyond the mean draw.

    Args:
        sampler: The sampler of the draws.
        largest: Most examples at once.
        overhead: Fixed cost of a physical batch, in examples.
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
    """The expected number of physical batches of a draw."""
    if not spread:
        return math.ceil(mean / size)
    draw = NormalDist(mean, spread)
    most = math.ceil((mean + 6 * spread) / size)
    return sum(1 - draw.cdf(j * size) for j in range(most))
