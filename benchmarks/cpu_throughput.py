"""CPU throughput of a private gradient: sfumato beside Opacus, in one process, as a ratio.

    python benchmarks/cpu_throughput.py [--repeats 7] [--json FILE]

Each repeat times both, one after the other, on the same model and batch: forward pass, per-example
gradients, clipping and the sum, without noise and update, which are alike. The claim is the median
of the ratios. Opacus runs as its users run it: GradSampleModule with hooks, then the clipping
that its DPOptimizer does.
"""

from __future__ import annotations

import argparse
import json
import platform
import statistics
import time
import warnings
from collections.abc import Callable
from pathlib import Path

import torch
from torch import Tensor, nn

from sfumato import models
from sfumato.privacy import Flat, GaussianNoise, PoissonSampler, PrivateGradients

CASES = {
    "tanh CNN, 1x28x28, B = 256": (
        lambda: models.create("papernot-1", channels=1, size=28, activation="tanh"),
        (256, 1, 28, 28),
    ),
    "ResNet-9, 3x32x32, B = 64": (lambda: models.create("resnet9"), (64, 3, 32, 32)),
}


def ours(model: nn.Module, x: Tensor, y: Tensor) -> Callable[[], list[Tensor]]:
    model = model.to(memory_format=torch.channels_last)
    x = x.contiguous(memory_format=torch.channels_last)
    private = PrivateGradients(
        model,
        sampler=PoissonSampler(10 * len(y), len(y)),
        clipping=Flat(1.0),
        noise=GaussianNoise(0.0),
    )

    def step() -> list[Tensor]:
        private.accumulate(x, y)
        private.release()
        return [p.grad for p in model.parameters() if p.grad is not None]

    return step


def opacus(model: nn.Module, x: Tensor, y: Tensor) -> Callable[[], list[Tensor]]:
    from opacus import GradSampleModule
    from opacus.optimizers import DPOptimizer

    wrapped = GradSampleModule(model)
    optimizer = DPOptimizer(
        torch.optim.SGD(wrapped.parameters(), lr=0.0),
        noise_multiplier=0.0,
        max_grad_norm=1.0,
        expected_batch_size=len(y),
    )

    def step() -> list[Tensor]:
        optimizer.zero_grad()
        nn.functional.cross_entropy(wrapped(x), y).backward()
        optimizer.pre_step()
        return [p.grad for p in wrapped.parameters() if p.grad is not None]

    return step


def not_private(model: nn.Module, x: Tensor, y: Tensor) -> Callable[[], list[Tensor]]:
    model = model.to(memory_format=torch.channels_last)
    x = x.contiguous(memory_format=torch.channels_last)

    def step() -> list[Tensor]:
        model.zero_grad()
        nn.functional.cross_entropy(model(x), y).backward()
        return [p.grad for p in model.parameters() if p.grad is not None]

    return step


def seconds(step: Callable[[], object]) -> float:
    start = time.perf_counter()
    step()
    return time.perf_counter() - start


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--repeats", type=int, default=7)
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    warnings.filterwarnings("ignore")
    results = []
    print(f"{torch.get_num_threads()} threads, PyTorch {torch.__version__}, {platform.processor()}")
    print(f"{'':<28}{'sfumato':>10}{'Opacus':>10}{'plain':>10}{'ratio':>8}   spread of the ratio")
    for name, (build, shape) in CASES.items():
        torch.manual_seed(0)
        x, y = torch.randn(shape), torch.randint(0, 10, shape[:1])
        state = build().state_dict()
        steps = {}
        for label, make in (("sfumato", ours), ("opacus", opacus), ("plain", not_private)):
            model = build()
            model.load_state_dict(state)
            steps[label] = make(model, x, y)
        same = [
            bool((a - b).norm() <= 1e-2 * b.norm())  # layouts break ties of max-pooling apart
            for a, b in zip(steps["sfumato"](), steps["opacus"](), strict=True)
        ]
        assert all(same), "sfumato and Opacus disagree"
        steps["plain"]()
        times: dict[str, list[float]] = {label: [] for label in steps}
        for _ in range(args.repeats):
            for label, step in steps.items():
                times[label].append(seconds(step))
        ratios = sorted(b / a for a, b in zip(times["sfumato"], times["opacus"], strict=True))
        speed = {label: shape[0] / statistics.median(t) for label, t in times.items()}
        ratio = statistics.median(ratios)
        print(
            f"{name:<28}"
            + "".join(f"{speed[k]:>8.0f}/s" for k in ("sfumato", "opacus", "plain"))
            + f"{ratio:>8.2f}   {ratios[0]:.2f} to {ratios[-1]:.2f}"
        )
        results.append(
            {"case": name, "examples_per_second": speed, "ratio": ratio, "ratios": ratios}
        )
    if args.json:
        args.json.write_text(json.dumps(results, indent=1))


if __name__ == "__main__":
    main()
