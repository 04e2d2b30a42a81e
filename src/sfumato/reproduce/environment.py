"""Where a run ran: device, versions, commit. Whatever cannot be found out is `unknown`."""

from __future__ import annotations

import platform

from sfumato import version
from sfumato.machine import processor
from sfumato.version import commit


def versions() -> dict[str, str]:
    """Of sfumato and of what decides numbers; sfumato may run without being installed."""
    names = ("sfumato", "torch", "dp-accounting")
    return {"python": platform.python_version()} | {name: version.of(name) for name in names}


def hardware(device: str = "auto") -> str:
    """The name of the GPU, or of the processor with its cores."""
    import torch

    from sfumato.training.devices import pick_device

    chosen = pick_device(device)
    if chosen.type == "cuda":
        return str(torch.cuda.get_device_name(chosen))
    if chosen.type == "mps":
        return f"{processor()} (MPS)"
    return f"{processor()}, {torch.get_num_threads()} threads"


__all__ = ["commit", "hardware", "versions"]
