"""GPU throughput of a private gradient beside a non-private one, both compiled, in bfloat16.

    python benchmarks/gpu_throughput.py [--models wrn-16-4 resnet9] [--views 16 1] [--rows 2048]

Timed for one physical batch of CIFAR shape: forward and backward pass, and for the private one
norms, clipping and the weighted sum. Not timed: augmentation, noise and the update. CUDA events,
four warm-up steps, the median of nine. `graphed` replays the same step as a captured CUDA graph.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable

import torch
import torch.nn.functional as F

from sfumato import models
from sfumato.privacy import Flat, PerExample
from sfumato.privacy.compiled import Compiled

LAST = torch.channels_last


def milliseconds(step: Callable[[], object], repeats: int = 9) -> float:
    for _ in range(4):
        step()
    times = []
    for _ in range(repeats):
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        step()
        end.record()
        torch.cuda.synchronize()
        times.append(start.elapsed_time(end))
    return statistics.median(times)


def graphed(step: Callable[[], object]) -> Callable[[], object]:
    aside = torch.cuda.Stream()
    aside.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(aside):
        for _ in range(3):
            step()
    torch.cuda.current_stream().wait_stream(aside)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        step()
    return graph.replay


def inputs(rows: int, examples: int) -> tuple[torch.Tensor, torch.Tensor]:
    x = torch.randn(rows, 3, 32, 32, device="cuda").contiguous(memory_format=LAST)
    return x, torch.randint(0, 10, (examples,), device="cuda")


def not_private(name: str, rows: int) -> Callable[[], object]:
    model = models.create(name).to("cuda", memory_format=LAST)
    x, y = inputs(rows, rows)

    def loss(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        with torch.autocast("cuda", torch.bfloat16):
            return F.cross_entropy(model(x), y)

    compiled = torch.compile(loss)

    def step() -> None:
        model.zero_grad(set_to_none=True)
        compiled(x, y).backward()

    return step


def private(name: str, rows: int, views: int) -> Callable[[], object]:
    model = models.create(name).to("cuda", memory_format=LAST)
    examples = rows // views
    passes = Compiled(PerExample(model, views=views, check=False), examples, torch.bfloat16)
    x, y = inputs(rows, examples)
    rule = Flat(1.0)

    def step() -> object:
        passes._fresh = ()
        gradients = passes(x, y)
        return gradients.weighted_sum(rule.weights(gradients.squared_norms()))

    return step


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--models", nargs="+", default=["wrn-16-4", "resnet9"])
    parser.add_argument("--views", nargs="+", type=int, default=[16, 1])
    parser.add_argument("--rows", type=int, default=2048)
    args = parser.parse_args()
    torch.backends.cudnn.benchmark = True
    print(
        f"{torch.cuda.get_device_name()}, PyTorch {torch.__version__}, {args.rows} rows, bfloat16"
    )
    print(f"{'':<24}{'views/s':>10}{'graphed':>10}{'ratio':>8}{'graphed':>9}{'GiB':>7}{'start':>8}")
    for name in args.models:
        base = 0.0
        cases = [("not private", 0)] + [(f"K = {k}", k) for k in args.views]
        for label, views in cases:
            torch._dynamo.reset()
            torch.manual_seed(0)
            torch.cuda.reset_peak_memory_stats()
            began = time.monotonic()
            step = private(name, args.rows, views) if views else not_private(name, args.rows)
            step()
            torch.cuda.synchronize()
            start = time.monotonic() - began
            speed = args.rows / milliseconds(step) * 1e3
            fast = args.rows / milliseconds(graphed(step)) * 1e3
            base = base or speed
            memory = torch.cuda.max_memory_allocated() / 2**30
            print(
                f"{name + ', ' + label:<24}{speed:>10,.0f}{fast:>10,.0f}{speed / base:>8.2f}"
                f"{fast / base:>9.2f}{memory:>7.2f}{start:>6.0f} s",
                flush=True,
            )


if __name__ == "__main__":
    main()
