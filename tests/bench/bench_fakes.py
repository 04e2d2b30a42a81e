"""Contenders that take no time, and a record made of them."""

from __future__ import annotations

import torch

from sfumato.bench.cases import Case
from sfumato.bench.measurement import Measurement
from sfumato.bench.record import Record

CPU, CUDA = torch.device("cpu"), torch.device("cuda")
TINY = Case(model="papernot-1", rows=8, physical=2, examples=64)


def measured(
    who: str, case: Case, speed: float, *, memory: int | None = None, spread: float = 0.0
) -> Measurement:
    step = case.views_per_step / speed
    times = [step * (1 - spread), step, step * (1 + spread)]
    return Measurement(who, case, "somehow", times, first_step=1.5, peak_memory=memory)


def gpu_record(*found: Measurement, gpu: str = "NVIDIA H200") -> Record:
    hardware = {"device": "cuda", "gpu": gpu, "cpu": "a CPU", "threads": 2}
    return Record(hardware, {"torch": "2.11"}, {}, date="2026-01-02T03:04:05+00:00",
                  finished=True, measurements=list(found))  # fmt: skip


class FakeEvent:
    """A CUDA event on a clock that a step moves by ten milliseconds."""

    now = 0.0

    def __init__(self, **_: object) -> None:
        self.at = 0.0

    def record(self) -> None:
        self.at = FakeEvent.now

    def elapsed_time(self, other: FakeEvent) -> float:
        return other.at - self.at


def tick() -> None:
    FakeEvent.now += 10.0


def ignore(_: object) -> None:
    pass
