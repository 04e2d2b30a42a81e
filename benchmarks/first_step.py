"""The first step of a model on a GPU, split into what takes its time.

    python benchmarks/first_step.py wrn-16-4 --rows 2048
    python benchmarks/first_step.py resnet50 --rows 256 --size 160

For a cold start, give it an empty TORCHINDUCTOR_CACHE_DIR and TRITON_CACHE_DIR. The time of every
part includes the parts that are further in. The import of PyTorch is not in the sum.
"""

from __future__ import annotations

import argparse
import functools
import gc
import time
from typing import Any

import torch

import sfumato.privacy.checks.compiled_pass as compiled_pass
import sfumato.privacy.checks.engine_choice as engine_choice
import sfumato.privacy.checks.memory_format as memory_format
import sfumato.privacy.checks.spot_check as spot_check
import sfumato.privacy.per_example as per_example
from sfumato.bench.cases import Case
from sfumato.bench.contenders import prepare
from sfumato.privacy.engines import cuda_graphs, tracing
from sfumato.privacy.engines.compiled import Compiled

PARTS: tuple[tuple[Any, str], ...] = (
    (memory_format, "difference"), (spot_check, "_checked"), (spot_check, "_among"),
    (per_example, "choose_engine"), (engine_choice, "refuse_mixing_model"),
    (engine_choice, "objection"), (per_example, "compiled_pass"), (compiled_pass, "_compare"),
    (Compiled, "__init__"), (Compiled, "gradients"), (Compiled, "_squared"), (Compiled, "_summed"),
    (tracing, "compile_fx"), (cuda_graphs.Replayed, "_capture"), (torch.autograd, "grad"),
)  # fmt: skip
"""Functions whose calls are timed."""

_SHORTEST = 0.15
"""Seconds of a call that is worth a line."""


class Clock:
    """Times of calls that lie within each other."""

    def __init__(self) -> None:
        self.began, self.depth = time.perf_counter(), 0
        self.calls: list[tuple[float, float, int, str]] = []

    def watch(self, owner: Any, name: str) -> None:
        """Time all calls of a function from now on."""
        function = getattr(owner, name)

        @functools.wraps(function)
        def timed(*given: Any, **named: Any) -> Any:
            self.depth += 1
            place = len(self.calls)
            self.calls.append((0.0, 0.0, 0, name))
            began = time.perf_counter()
            try:
                return function(*given, **named)
            finally:
                self.depth -= 1
                took = time.perf_counter() - began
                self.calls[place] = began - self.began, took, self.depth, name

        setattr(owner, name, timed)


def main() -> None:
    """Measure what the command line names."""
    read = argparse.ArgumentParser(description=__doc__)
    read.add_argument("model")
    read.add_argument("--views", type=int, default=1)
    read.add_argument("--rows", type=int, default=512)
    read.add_argument("--size", type=int)
    read.add_argument("--physical", type=int, default=2)
    given = read.parse_args()
    case = Case(
        model=given.model, views=given.views, rows=given.rows, size=given.size,
        physical=given.physical, precision="bfloat16" if torch.cuda.is_available() else "float32",
        examples=max(2048, given.rows // given.views * given.physical),
        suite="foreign" if ":" in given.model else "main",
    )  # fmt: skip
    clock, device = Clock(), torch.device("cuda" if torch.cuda.is_available() else "cpu")
    torch.zeros(1, device=device)
    for owner, name in PARTS:
        clock.watch(owner, name)
    collections = [0.0]

    def collected(phase: str, info: dict[str, int]) -> None:
        collections[0] += time.perf_counter() * (1 if phase == "stop" else -1)

    gc.callbacks.append(collected)
    began = time.perf_counter()
    contender = prepare("sfumato", case, device)
    contender.step()
    if device.type == "cuda":
        torch.cuda.synchronize()
    whole = time.perf_counter() - began
    print(f"{case.title}: first step {whole:.1f} s, {collections[0]:.1f} s of it collections")
    print("  begins   takes")
    for start, took, depth, name in clock.calls:
        if took >= _SHORTEST:
            print(f"{start:8.2f}{took:8.2f}  {'  ' * depth}{name}")
    print(contender.remark() if contender.remark else "")
    contender.close()


if __name__ == "__main__":
    main()
