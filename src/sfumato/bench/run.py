"""A whole run of `sfumato bench`: cases in, a record out, each row told as it is measured."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from pathlib import Path

import torch
import torch._inductor.config

from sfumato.bench import profiling, table
from sfumato.bench.cases import ORDER, Case
from sfumato.bench.contenders import prepare
from sfumato.bench.measure import Method, Prepare, measure
from sfumato.bench.measurement import Measurement
from sfumato.bench.record import Record

Say = Callable[[str], None]


def run(
    cases: Sequence[Case],
    against: Sequence[str],
    *,
    device: torch.device,
    steps: int,
    warmup: int,
    seconds: float = 0.0,
    minutes: float | None = None,
    out: Path | None = None,
    say: Say = print,
    prepare: Prepare = prepare,
) -> Record:
    """Measure every case; the record is on the disk after each row.

    Args:
        cases: What to do.
        against: Whom to measure beside sfumato.
        device: Where.
        steps: Timed steps of each contender.
        warmup: Steps before these.
        seconds: See `Method`.
        minutes: After these nothing new is begun.
        out: A new JSON file for the record.
        say: Told each row.
        prepare: Makes a contender ready.
    """
    settings = {
        "against": list(against),
        "steps": steps,
        "warmup": warmup,
        "seconds": seconds,
        "minutes": minutes,
        "cold": bool(torch._inductor.config.force_disable_caches),
        "interleaved": device.type != "cuda",
    }
    record = Record.begin(device.type, settings, path=out)
    deadline = float("inf") if minutes is None else time.monotonic() + 60 * minutes
    method = Method(device, steps, warmup, seconds, deadline)
    seen: list[Measurement] = []

    def done(m: Measurement) -> None:
        seen.append(m)
        record.add(m)
        say(table.line(m, table.baselines(seen)[id(m)]))

    names = [name for name in ORDER if name == "sfumato" or name in against]
    for case in cases:
        seen.clear()
        say(f"{case.title}: {case.physical} physical batches a step")
        who = ["sfumato"] if case.suite == "large" else names
        measure(case, who, method, done=done, tell=say, prepare=prepare)
    record.finished = True
    record.save()
    return record


def profile(
    case: Case, *, device: torch.device, out: Path | None = None, steps: int = 3
) -> tuple[Record, profiling.Profile]:
    """Profile sfumato in one case, into a record of its own."""
    record = Record.begin(device.type, {"profile": case.to_dict(), "steps": steps}, path=out)
    found = profiling.profile(case, device, steps=steps)
    record.profiles.append(found.to_dict())
    record.finished = True
    record.save()
    return record, found
