"""Costs of what holds the guarantee against an adversary, as shares of whole training steps.

    python benchmarks/guarantee_overheads.py MODEL [--views 1] [--rows 2048] [--device cuda]

Measured in one process, on generated images, with the parts of a real run:

- noise: ChaCha20 and the grid, beside `torch.randn` in float64 on the same device;
- totals: adding a physical batch up in float64, beside float32;
- checks while training: one batch that is checked in one way, times its rate.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable

import torch
from torch import Tensor

from sfumato.bench.cases import Case
from sfumato.bench.contenders import real_loop
from sfumato.bench.feed import drawn
from sfumato.privacy.checks import spot_check
from sfumato.privacy.noise import GaussianNoise
from sfumato.privacy.numerics.randomness import Randomness
from sfumato.privacy.numerics.totals import Totals


def seconds(work: Callable[[], object], device: torch.device, repeats: int) -> float:
    """The median time of a piece of work, after two that are not timed."""
    times = []
    for turn in range(repeats + 2):
        if device.type == "cuda":
            torch.cuda.synchronize(device)
        began = time.perf_counter()
        work()
        if device.type == "cuda":
            torch.cuda.synchronize(device)
        if turn >= 2:
            times.append(time.perf_counter() - began)
    return statistics.median(times)


def added_in_float32(totals: list[Tensor], parts: list[Tensor]) -> None:
    torch._foreach_add_(totals, parts)


def main() -> None:
    arguments = argparse.ArgumentParser()
    arguments.add_argument("model")
    arguments.add_argument("--views", type=int, default=1)
    arguments.add_argument("--rows", type=int, default=2048)
    arguments.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    arguments.add_argument("--repeats", type=int, default=20)
    a = arguments.parse_args()
    device = torch.device(a.device)
    precision = "bfloat16" if device.type == "cuda" else "float32"
    case = Case(model=a.model, views=a.views, rows=a.rows, precision=precision)
    loop, close = real_loop(case, device)
    every = spot_check.EVERY
    spot_check.EVERY = 10**9  # Whole steps are timed without checks, and checks by themselves.
    draw = drawn(case, torch.Generator().manual_seed(0))
    step = seconds(lambda: loop.take_step(draw), device, a.repeats)

    trained = loop.private.per_example.trainable
    parameters = [p.detach() for p in trained.values()]
    sums = Totals(trained)
    totals = [torch.zeros_like(p, dtype=torch.float64) for p in parameters]
    stream = Randomness.from_seed(0).stream(0, "noise")
    count = sum(p.numel() for p in parameters)
    noise = GaussianNoise(1.0)
    ours = seconds(
        lambda: noise.add(sums.vector(), sensitivity=1.0, stream=stream), device, a.repeats
    )
    plain = seconds(
        lambda: torch.randn(count, device=device, dtype=torch.float64).float(), device, a.repeats
    )
    names = list(trained)
    wide = seconds(lambda: sums.add(names, parameters), device, a.repeats) * case.physical
    narrow = [t.float() for t in totals]
    before = seconds(lambda: added_in_float32(narrow, parameters), device, a.repeats)
    before *= case.physical

    feed = loop.feed
    images = feed.units.of(draw[: case.at_once], 0)
    views = feed.views.draw(images.images.numel(), feed.randomness.generator(0, "augment"))
    x, y = feed.fetch(images.to(device), views.to(device))
    engine, rate = loop.private.per_example, case.physical / every
    one = seconds(lambda: engine(x, y), device, a.repeats)
    checked = [
        seconds(lambda k=kind: spot_check._checked(engine, x, y, (k,)), device, 5) - one
        for kind in spot_check.KINDS
    ]
    checks = rate * statistics.mean(checked)
    close()
    print(f"{a.model}, K = {a.views}, {case.physical} physical batches of {a.rows} rows, {device}")
    print(f"{'a whole step':32} {1e3 * step:9.2f} ms")
    for name, now, was in (
        ("noise (torch.randn)", ours, plain),
        ("totals in float64 (float32)", wide, before),
        (f"checks, 1 in {every} batches", checks, 0.0),
    ):
        share = 100 * (now - was) / step
        print(f"{name:32} {1e3 * now:9.3f} ms ({1e3 * was:.3f}): {share:+.2f} % of a step")


if __name__ == "__main__":
    main()
