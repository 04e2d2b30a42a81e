"""Where a run computes, in what precision, and how much at once."""

from __future__ import annotations

import math
import os
from typing import TYPE_CHECKING

import torch
from torch import nn

from sfumato.data import Dataset
from sfumato.data.locate import cache_folder
from sfumato.errors import UserError

if TYPE_CHECKING:
    from sfumato.training.setup import Plan


def keep_compiled() -> None:
    """Keep compiled passes in the user's cache, so that the next run starts sooner."""
    os.environ.setdefault("TORCHINDUCTOR_CACHE_DIR", str(cache_folder() / "compiled"))


def precision(setting: str, device: torch.device) -> str:
    """The precision that `auto` means on a device: bfloat16 where a GPU computes in it."""
    if setting != "auto":
        return setting
    narrow = device.type == "cuda" and torch.cuda.is_bf16_supported(including_emulation=False)
    return "bfloat16" if narrow else "float32"


def pick_device(name: str, precision: str = "auto") -> torch.device:
    """`auto`, `cpu`, `cuda` (or `cuda:1`) or `mps` as a device that is there and computes so."""
    device = _named_device(name)
    if precision == "bfloat16" and device.type != "cuda":
        raise UserError(
            f"training.precision = bfloat16 needs a CUDA device, and this is '{device.type}': use "
            "float32 here."
        )
    return device


def _named_device(name: str) -> torch.device:
    if name == "auto":
        if torch.cuda.is_available():
            return torch.device("cuda")
        return torch.device("mps" if torch.backends.mps.is_available() else "cpu")
    try:
        device = torch.device(name)
    except RuntimeError:
        raise UserError(f"Unknown device '{name}': choose auto, cpu, cuda or mps.") from None
    if device.type not in ("cpu", "cuda", "mps"):
        raise UserError(f"Unknown device '{name}': choose auto, cpu, cuda or mps.")
    if device.type == "cuda" and not (
        torch.cuda.is_available() and (device.index or 0) < torch.cuda.device_count()
    ):
        raise UserError(f"There is no CUDA device '{name}' here: choose --device cpu.")
    if device.type == "mps" and not torch.backends.mps.is_available():
        raise UserError("There is no MPS device here: choose --device cpu.")
    return device


ROWS = 2048
"""Images at once that keep a GPU busy; more would only take memory."""


def physical_batch(
    model: nn.Module,
    plan: Plan,
    dataset: Dataset,
    views: int,
    budget: int,
    *,
    rows: int | None = None,
) -> int:
    """How many examples to process at once within a memory budget in bytes, and `rows` images.

    A draw is rarely larger than its mean and four standard deviations; that many examples are split
    into as few equal parts as fit, so that little is wasted on padding.
    """
    activations = 0

    def count(_module: nn.Module, _args: object, out: object) -> None:
        nonlocal activations
        if isinstance(out, torch.Tensor):
            activations += out.numel() * out.element_size()

    hooks = [m.register_forward_hook(count) for m in model.modules() if not list(m.children())]
    with torch.no_grad():
        model(torch.zeros(1, dataset.channels, *dataset.size))
    for hook in hooks:
        hook.remove()
    gradients = sum(p.numel() for p in model.parameters() if p.requires_grad) * 4
    per_example = 2 * gradients + 3 * views * activations
    q, n = plan.sampler.rate, plan.sampler.examples
    likely = min(n, math.ceil(n * q + 4 * math.sqrt(n * q * (1 - q)) + 1))
    largest = max(1, min(likely, budget // max(1, per_example)))
    if rows is not None:
        largest = min(largest, max(1, rows // views))
    parts = math.ceil(likely / largest)
    return math.ceil(likely / parts)
