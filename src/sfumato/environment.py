"""Machine and versions that a run used. What cannot be found out is `unknown`."""

from __future__ import annotations

import platform
from pathlib import Path
from typing import TYPE_CHECKING

from sfumato import version

if TYPE_CHECKING:
    import torch

CPUINFO = Path("/proc/cpuinfo")


def processor() -> str:
    """The processor's name, as the system gives it."""
    try:
        for line in CPUINFO.read_text(encoding="utf-8", errors="replace").splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    except OSError:
        pass
    return platform.processor() or platform.machine() or version.UNKNOWN


def hardware(device: torch.device) -> str:
    """The name of a GPU, or of the processor with its number of threads."""
    import torch

    if device.type == "cuda":
        return str(torch.cuda.get_device_name(device))
    if device.type == "mps":
        return f"{processor()} (MPS)"
    return f"{processor()}, {torch.get_num_threads()} threads"


def device_type(name: str) -> str:
    """The type of the device whose `hardware` has this name."""
    if name.endswith(" threads"):
        return "cpu"
    return "mps" if name.endswith("(MPS)") else "cuda"


def versions() -> dict[str, str]:
    """Versions of Python, sfumato and the libraries that decide numbers."""
    names = ("sfumato", "torch", "dp-accounting")
    return {"python": platform.python_version()} | {name: version.of(name) for name in names}
