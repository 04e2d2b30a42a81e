"""A whole run of `sfumato bench`: from cases to a record, reported row by row."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import torch
import torch._inductor.config

from sfumato.bench import profiling, record_tables
from sfumato.bench.cases import ORDER, Case
from sfumato.bench.contenders import prepare
from sfumato.bench.jobs import Alone, in_processes
from sfumato.bench.measurement import Measurement
from sfumato.bench.record import Record, now
from sfumato.bench.timing import (
    Method,
    Prepare,
    measure,
    measure_alone,
    not_begun,
    settled,
    takes_turns,
)

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
    jobs: int = 1,
    out: Path | None = None,
    resume: bool = False,
    say: Say = print,
    prepare: Prepare = prepare,
) -> Record:
    """Measure every case once; the record is on disk after each row.

    Args:
        cases: The cases.
        against: The contenders beside sfumato.
        device: The device.
        steps: Timed steps of each contender.
        warmup: Steps before these.
        seconds: See `Method`.
        minutes: Time after which nothing new is begun.
        jobs: Processes that prepare contenders on a GPU at the same time; steps are timed in one
            with the others stopped.
        out: A JSON file for the record; a new one, unless `resume`.
        resume: Continue `out` if it exists: contenders that have no times in it and are not
            unsupported are tried again; where contenders take turns, with all others of the case.
        say: Called with each row.
        prepare: Prepares a contender.
    """
    cases = list({case.key: case for case in cases}.values())
    names = [name for name in ORDER if name == "sfumato" or name in against]
    settings = {
        "against": [name for name in names if name != "sfumato"],
        "steps": steps,
        "warmup": warmup,
        "seconds": seconds,
        "minutes": minutes,
        "jobs": jobs,
        "cold": bool(torch._inductor.config.force_disable_caches),
        "interleaved": takes_turns(device),
        "cases": [case.to_dict() for case in cases],
    }
    if resume and out is not None and out.exists():
        record = Record.resume(device.type, settings, path=out)
        plan = _plan(record, cases, names, device)
        if record.finished and not plan:
            say(f"{out}: everything is measured already.")
            return record
        record.settings.setdefault("resumed", []).append(now())
        record.save()
        say(f"Going on with {out}, begun {record.date}.")
    else:
        record = Record.begin(device.type, settings, path=out)
        plan = _plan(record, cases, names, device)
    deadline = float("inf") if minutes is None else time.monotonic() + 60 * minutes
    method = Method(device, steps, warmup, seconds, deadline)
    if jobs > 1:
        _measure_in_jobs(record, plan, method, jobs, say, prepare)
    else:
        for case, who in plan:
            say(f"{case.title}: {case.physical} physical batches a step")
            _measure(record, case, who, method, say, prepare)
    record.finished = not any(not_begun(m) for m in record.measurements)
    record.save()
    return record


def _plan(
    record: Record, cases: Sequence[Case], names: Sequence[str], device: torch.device
) -> list[tuple[Case, list[str]]]:
    """The contenders to measure in each case, given the record."""
    plan = []
    for case in cases:
        who = ["sfumato"] if case.suite == "large" else list(names)
        known = {name: record.find(case, name) for name in who}
        left = [name for name, m in known.items() if m is None or not settled(m)]
        if left:
            plan.append((case, who if takes_turns(device) else left))
    return plan


def _measure(
    record: Record, case: Case, names: Sequence[str], method: Method, say: Say, prepare: Prepare
) -> None:
    """Measure one case into the record: row by row, or all at once where contenders take turns."""
    turns = takes_turns(method.device)
    found: list[Measurement] = []

    def done(m: Measurement) -> None:
        found.append(m)
        if not turns:
            _keep(record, [m])
        beside = found if turns else [*record.measurements, m]
        say(record_tables.line(m, record_tables.baselines(beside)[id(m)]))

    measure(case, names, method, done=done, tell=say, prepare=prepare)
    if turns and not _keep(record, found):
        say("  more had been measured before, which is kept")


def _measure_in_jobs(
    record: Record,
    plan: Sequence[tuple[Case, list[str]]],
    method: Method,
    jobs: int,
    say: Say,
    prepare: Prepare,
) -> None:
    """Measure contenders in several processes."""
    tasks = [(name, case, method, prepare) for case, names in plan for name in names]
    for m in in_processes(tasks, _task, jobs, ended=_ended):
        _keep(record, [m])
        say(record_tables.line(m, record_tables.baselines(record.measurements)[id(m)]))


def _task(task: tuple[str, Case, Method, Prepare], alone: Alone) -> Measurement:
    name, case, method, prepare = task
    return measure_alone(name, case, replace(method, alone=alone), prepare)


def _ended(task: tuple[str, Case, Method, Prepare]) -> Measurement:
    return Measurement(task[0], task[1], reason="its process ended unexpectedly")


def _keep(record: Record, found: list[Measurement]) -> bool:
    """Add measurements to the record, unless it has better ones of the same."""
    known = [record.find(m.case, m.contender) for m in found]
    better = _worth(found) >= _worth([m for m in known if m is not None])
    if better:
        record.add(*found)
    return better


def _worth(found: Sequence[Measurement]) -> tuple[int, int]:
    """The number of settled measurements, and of those that were begun."""
    return sum(settled(m) for m in found), sum(not not_begun(m) for m in found)


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
