"""Profile of a step: kernels by time, beside the least time that the hardware needs."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import torch
from torch import Tensor, nn

from sfumato.bench.cases import Case
from sfumato.bench.contenders import prepare
from sfumato.bench.feed import build_model
from sfumato.bench.record_tables import duration, markdown
from sfumato.bench.timing import clean, wait

PEAKS = {
    "H200": (989e12, 494e12, 4.8e12),
    "H100": (989e12, 494e12, 3.35e12),
    "A100": (312e12, 156e12, 2.0e12),
    "L40S": (362e12, 183e12, 0.864e12),
    "L4": (121e12, 60e12, 0.3e12),
}
"""Peak rates by part of the GPU's name: bfloat16 and TF32 operations, and bytes, per second."""


@dataclass(frozen=True)
class Kernel:
    """Time of one kernel.

    Attributes:
        name: Name of the kernel, or of the operator on a CPU.
        calls: Calls per step.
        seconds: Seconds per step.
        share: Fraction of all kernels' time.
    """

    name: str
    calls: float
    seconds: float
    share: float


@dataclass(frozen=True)
class Floor:
    """The least work of a step: forward, backward and weight gradients of all rows, once each.

    Attributes:
        operations: Floating-point operations of convolutions and matrix products.
        bytes: Their inputs, outputs and gradients, each counted as often as it must be read or
            written.
        compute_seconds: The operations at the device's peak, if that is known.
        memory_seconds: The bytes at its bandwidth, if that is known.
    """

    operations: int
    bytes: int
    compute_seconds: float | None
    memory_seconds: float | None


@dataclass(frozen=True)
class Profile:
    """The profile of one contender's step.

    Attributes:
        contender: The contender.
        case: The case.
        steps: Number of profiled steps.
        seconds: Seconds of a step that is not profiled.
        busy: Seconds of all kernels in a profiled step.
        kernels: The kernels that take longest.
        floor: The least that a step needs.
    """

    contender: str
    case: Case
    steps: int
    seconds: float
    busy: float
    kernels: tuple[Kernel, ...]
    floor: Floor

    def to_dict(self) -> dict[str, Any]:
        """Plain values for the record."""
        return asdict(self)


def profile(
    case: Case, device: torch.device, *, contender: str = "sfumato", steps: int = 3, top: int = 15
) -> Profile:
    """Profile a few steps after warming up.

    Args:
        case: The case.
        device: The device.
        contender: The contender.
        steps: Number of steps to profile.
        top: Number of kernels to keep, by time.
    """
    from torch.autograd.profiler_util import FunctionEventAvg
    from torch.profiler import ProfilerActivity

    on_gpu = device.type == "cuda"
    kinds = [ProfilerActivity.CPU] + ([ProfilerActivity.CUDA] if on_gpu else [])
    ready = prepare(contender, case, device)
    try:
        for _ in range(3 if on_gpu else 1):
            ready.step()
        wait(device, ready)
        started = time.perf_counter()
        for _ in range(steps):
            ready.step()
        wait(device, ready)
        seconds = (time.perf_counter() - started) / steps
        with torch.profiler.profile(activities=kinds) as watched:
            for _ in range(steps):
                with torch.profiler.record_function(_STEP):
                    ready.step()
            wait(device, ready)
        averages: Sequence[FunctionEventAvg] = watched.key_averages()
    finally:
        ready.close()
        del ready
        clean(device)

    def own(average: FunctionEventAvg) -> float:
        if not on_gpu:
            return float(average.self_cpu_time_total)
        is_kernel = str(average.device_type).endswith("CUDA") and not average.is_user_annotation
        return float(average.self_device_time_total) if is_kernel else 0.0

    times = [(a, own(a)) for a in averages]
    total = sum(t for _, t in times) or 1.0
    ranked = sorted(times, key=lambda pair: -pair[1])[:top]
    kernels = tuple(
        Kernel(
            "(Python and launches)" if a.key == _STEP else str(a.key),
            a.count / steps,
            t / 1e6 / steps,
            t / total,
        )
        for a, t in ranked
        if t > 0
    )
    return Profile(
        contender=contender,
        case=case,
        steps=steps,
        seconds=seconds,
        busy=total / 1e6 / steps,
        kernels=kernels,
        floor=floor_of(case, torch.cuda.get_device_name(device) if on_gpu else ""),
    )


_STEP = "sfumato step"


def floor_of(case: Case, gpu: str) -> Floor:
    """The least time and traffic of a step of a case on a device.

    A product y = xW of the forward pass has two more of the same size in the backward pass, those
    for the gradients of x and of W. In the three, x, y and their gradients are read or written
    three times each; weights are small beside them.
    """
    numbers = [0, 0]

    def count(module: nn.Module, inputs: tuple[Any, ...], output: object) -> None:
        if not isinstance(output, Tensor):
            return
        if isinstance(module, nn.Conv2d):
            each = module.in_channels // module.groups
            each *= module.kernel_size[0] * module.kernel_size[1]
        elif isinstance(module, nn.Linear):
            each = module.in_features
        else:
            return
        numbers[0] += 6 * each * output.numel()
        numbers[1] += 3 * (inputs[0].numel() + output.numel())

    model = build_model(case)
    hooks = [module.register_forward_hook(count) for module in model.modules()]
    with torch.no_grad():
        model(torch.zeros(1, *case.image))
    for hook in hooks:
        hook.remove()
    narrow = case.precision == "bfloat16"
    operations = numbers[0] * case.views_per_step
    size = numbers[1] * case.views_per_step * (2 if narrow else 4)
    known = next((peak for part, peak in PEAKS.items() if part in gpu), None)
    if known is None:
        return Floor(operations, size, None, None)
    return Floor(operations, size, operations / known[0 if narrow else 1], size / known[2])


def lines(p: Profile) -> list[str]:
    """The totals of a profile in sentences."""
    f = p.floor
    found = [
        f"{p.case.title}: a step of {p.case.views_per_step:,} views takes {duration(p.seconds)}, "
        f"and its kernels {duration(p.busy)} in all.",
        f"The least work is {f.operations / 1e12:.3g} T operations and {f.bytes / 2**30:.3g} GiB.",
    ]
    if f.compute_seconds is not None and f.memory_seconds is not None:
        found.append(
            f"At the device's peak the operations take {duration(f.compute_seconds)}, and the "
            f"bytes {duration(f.memory_seconds)} at its bandwidth: "
            f"{max(f.compute_seconds, f.memory_seconds) / p.seconds:.0%} of the step."
        )
    else:
        found.append("What this device could do at best is not known here.")
    return found


COLUMNS = ("kernel", "calls", "time a step", "share")


def rows(p: Profile, longest: int = 90) -> list[list[str]]:
    """A row per kernel."""
    return [
        [
            k.name if len(k.name) <= longest else f"{k.name[: longest - 1]}…",
            f"{k.calls:g}",
            duration(k.seconds),
            f"{k.share:.1%}",
        ]
        for k in p.kernels
    ]


def read(content: dict[str, Any]) -> Profile:
    """Read a profile from a record's plain values."""
    return Profile(
        **content
        | {
            "case": Case(**content["case"]),
            "kernels": tuple(Kernel(**k) for k in content["kernels"]),
            "floor": Floor(**content["floor"]),
        }
    )


def to_markdown(p: Profile) -> str:
    """A profile as Markdown."""
    return "\n".join([" ".join(lines(p)), "", markdown(COLUMNS, rows(p, 70), (0,))])
