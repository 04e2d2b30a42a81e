"""The device of a run, its precision, and the memory format of images."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch
from torch import nn

from sfumato.data.locate import cache_folder
from sfumato.errors import UserError
from sfumato.privacy.checks import memory_format
from sfumato.privacy.numerics.precision import compiled_precision


def keep_compiled() -> None:
    """Cache compiled passes in the user's cache folder, so that the next run starts sooner."""
    os.environ.setdefault("TORCHINDUCTOR_CACHE_DIR", str(cache_folder() / "compiled"))


@contextmanager
def seeded(seed: int, device: torch.device) -> Iterator[None]:
    """Seed PyTorch's global generators within a `with` block, and restore them afterwards."""
    with torch.random.fork_rng(devices=[device] if device.type == "cuda" else []):
        torch.manual_seed(seed)
        yield


def precision(setting: str, device: torch.device) -> str:
    """The precision that `auto` means on a device: bfloat16 on a GPU that computes in it."""
    if setting != "auto":
        return setting
    return "float32" if compiled_precision(device) is None else "bfloat16"


def pick_memory_format(
    model: nn.Module, shape: tuple[int, int, int], device: torch.device, say: Callable[[str], None]
) -> torch.memory_format:
    """Channels_last where it is fast, unless this model's gradients are wrong in it.

    Args:
        model: The model, on the device.
        shape: Channels, height and width of its images.
        device: The device that it runs on.
        say: Called with a sentence if channels_last cannot be used.
    """
    fault = memory_format.fault(model, torch.zeros(1, *shape, device=device))
    if not fault:
        return torch.channels_last
    say(f"{fault} Training in the contiguous memory format, which may be slower.")
    return torch.contiguous_format


def pick_device(name: str, precision: str = "auto") -> torch.device:
    """The device for `auto`, `cpu`, `cuda` (or `cuda:1`) or `mps`, if it exists here."""
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
