"""What the machine is called."""

from __future__ import annotations

import platform
from pathlib import Path

from sfumato.version import UNKNOWN

CPUINFO = Path("/proc/cpuinfo")


def processor() -> str:
    """The processor's name, as the system gives it."""
    try:
        for line in CPUINFO.read_text(encoding="utf-8", errors="replace").splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    except OSError:
        pass
    return platform.processor() or platform.machine() or UNKNOWN
