"""Contenders that take no time, and a record made of them."""

from __future__ import annotations

from sfumato.bench.cases import Case
from sfumato.bench.measurement import Measurement
from sfumato.bench.record import Record

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
