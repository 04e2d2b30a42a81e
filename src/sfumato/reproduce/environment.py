"""Where a run ran: device, versions, commit. Whatever cannot be found out is `unknown`."""

from __future__ import annotations

import platform
import subprocess
from pathlib import Path

from sfumato import version
from sfumato.version import UNKNOWN


def versions() -> dict[str, str]:
    """Of sfumato and of what decides numbers; sfumato may run without being installed."""
    names = ("sfumato", "torch", "dp-accounting")
    return {"python": platform.python_version()} | {name: version.of(name) for name in names}


def commit() -> str:
    """The commit of the source tree that this package lies in, with `-dirty` if it was changed."""
    here = Path(__file__).resolve().parent
    try:
        done = subprocess.run(
            ["git", "-C", str(here), "describe", "--always", "--dirty", "--abbrev=12"],
            capture_output=True,
            text=True,
            timeout=10,
            check=True,
        )
    except (OSError, subprocess.SubprocessError):
        return UNKNOWN
    return done.stdout.strip() or UNKNOWN


def hardware(device: str = "auto") -> str:
    """The name of the GPU, or of the processor with its cores."""
    import torch

    from sfumato.training.devices import pick_device

    chosen = pick_device(device)
    if chosen.type == "cuda":
        return str(torch.cuda.get_device_name(chosen))
    if chosen.type == "mps":
        return f"{platform.processor() or platform.machine()} (MPS)"
    return f"{_processor()}, {torch.get_num_threads()} threads"


def _processor() -> str:
    try:
        for line in Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    except OSError:
        pass
    return platform.processor() or platform.machine() or UNKNOWN
