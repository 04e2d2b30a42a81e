"""Runs `sfumato` in this process with so many MiB more of address space than it has now.

Prints how often an allocation failed and the work went on with smaller parts.
"""

from __future__ import annotations

import resource
import sys
from pathlib import Path

import torch

from sfumato import memory
from sfumato.cli import main


def warm_up() -> None:
    """Load what the first passes load: libraries and threads count as address space, too."""
    import numpy as np

    import sfumato.analysis.overview
    import sfumato.privacy.mechanism
    import sfumato.report.page
    import sfumato.training.pipeline  # noqa: F401

    np.ones((64, 64)) @ np.ones((64, 64))
    torch.set_num_threads(1)
    layer = torch.nn.Conv2d(1, 4, 3)
    torch.func.vmap(layer)(torch.zeros(4, 2, 1, 8, 8)).sum().backward()


def limit(mebibytes: int) -> None:
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    most = pages * resource.getpagesize() + mebibytes * 2**20
    resource.setrlimit(resource.RLIMIT_AS, (most, most))


if __name__ == "__main__":
    halved: list[int] = []
    memory.give_back = lambda: halved.append(1)
    warm_up()
    limit(int(sys.argv[1]))
    sys.argv = ["sfumato", *sys.argv[2:]]
    try:
        main()
    finally:
        print(f"halved {len(halved)} times")
