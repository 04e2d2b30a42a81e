"""Measurement: warm-up, then whole steps, timed without synchronising in between.

On CUDA the contenders run one after the other with the memory to themselves, and an event is
recorded after each step; the host synchronises only after the last, so steps may overlap as they do
in training. Elsewhere contenders take turns, one step each, so that a drifting clock or another
process affects all alike.
"""

from __future__ import annotations

import contextlib
import gc
import itertools
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import torch

from sfumato.bench.cases import CONTENDERS, Case
from sfumato.bench.contenders import prepare
from sfumato.bench.feed import Contender, Unsupported
from sfumato.bench.jobs import Alone
from sfumato.bench.measurement import Measurement
from sfumato.memory import out_of_memory
from sfumato.privacy.numerics.precision import any_algorithm

Prepare = Callable[[str, Case, torch.device], Contender]

NOT_BEGUN = "not begun: the time was up"
_SPLITS = (1, 2, 4, 8, 16, 32)
_LONGEST = 6.0
"""Seconds for the timed steps of one contender on CUDA; its warm-up takes half as long."""


@dataclass(frozen=True)
class Method:
    """Duration and place of a measurement.

    Attributes:
        device: The device.
        steps: Timed steps of each contender.
        warmup: Steps before these.
        seconds: Where contenders take turns, take more steps until this time has passed, up to
            eight times as many: a median of short steps needs many.
        deadline: Time by `time.monotonic` after which nothing new is begun.
        alone: A context in which other processes leave the device alone, if several measure.
    """

    device: torch.device
    steps: int
    warmup: int
    seconds: float = 0.0
    deadline: float = float("inf")
    alone: Alone | None = None

    @property
    def late(self) -> bool:
        """Tell whether the deadline has passed."""
        return time.monotonic() >= self.deadline


def takes_turns(device: torch.device) -> bool:
    """Tell whether contenders take turns on a device, so that a case is measured as a whole."""
    return device.type != "cuda"


def settled(measurement: Measurement) -> bool:
    """Tell whether a measurement need not be tried again."""
    return bool(measurement.times) or measurement.unsupported


def not_begun(measurement: Measurement) -> bool:
    """Tell whether a measurement is missing, or was given up, because the time was up."""
    return measurement.reason.endswith(NOT_BEGUN)


def measure(
    case: Case,
    names: Sequence[str],
    method: Method,
    *,
    done: Callable[[Measurement], None],
    tell: Callable[[str], None] = lambda text: None,
    prepare: Prepare = prepare,
) -> list[Measurement]:
    """Measure contenders in one case; a failure is recorded with its reason, and others go on.

    Args:
        case: The case.
        names: The contenders; see `cases.CONTENDERS`.
        method: Duration and place.
        done: Called with each measurement as soon as it exists.
        tell: Called with messages about progress.
        prepare: Prepares a contender.
    """
    if takes_turns(method.device):
        return _in_turns(case, names, method, done, tell, prepare)
    found = []
    for name in names:
        tell(f"  {CONTENDERS[name]} ...")
        result = measure_alone(name, case, method, prepare)
        found.append(result)
        done(result)
    return found


def measure_alone(name: str, case: Case, method: Method, prepare: Prepare) -> Measurement:
    """Measure one contender with the device to itself, in smaller physical batches if needed."""
    result = Measurement(name, case)
    for parts in _SPLITS:
        if method.late:
            words = f"{result.reason}; fewer rows at once {NOT_BEGUN}"
            result.reason = words if result.reason else NOT_BEGUN
            break
        if case.at_once % parts:
            break
        result = Measurement(name, case)
        try:
            with helped(name, method.device):
                _time_alone(result, case.split(parts), method, prepare)
            _add_note(result, parts, case)
            break
        except Exception as error:
            _failed(result, error)
            if not out_of_memory(error):
                break
        finally:
            clean(method.device)
    return result


def _time_alone(result: Measurement, case: Case, method: Method, prepare: Prepare) -> None:
    clean(method.device)
    torch.cuda.reset_peak_memory_stats(method.device)
    started = time.perf_counter()
    contender = prepare(result.contender, case, method.device)
    try:
        _describe(result, contender)
        # Where other processes use the device, the times of cuDNN's algorithms say little. It keeps
        # only those that it has timed, so that later steps search anew.
        with contextlib.nullcontext() if method.alone is None else any_algorithm():
            contender.step()
            wait(method.device, contender)
        if method.alone is None:
            result.first_step = time.perf_counter() - started
        with contextlib.nullcontext() if method.alone is None else method.alone():
            each = _warm_up(contender, method)
            steps = max(min(3, method.steps), min(method.steps, int(_LONGEST / max(each, 1e-6))))
            result.start_memory = torch.cuda.max_memory_reserved(method.device)
            torch.cuda.empty_cache()
            torch.cuda.reset_peak_memory_stats(method.device)
            result.times = _timed(contender, steps, method.device)
            result.peak_memory = torch.cuda.max_memory_reserved(method.device)
        if contender.synchronise is not None:
            result.peak_memory = result.start_memory = None
        _note_afterwards(result, contender, case)
    finally:
        contender.close()


def _warm_up(contender: Contender, method: Method) -> float:
    """Take a few steps, fewer of slow ones, and return the seconds of one."""
    started, taken = time.perf_counter(), 0
    while taken < max(1, method.warmup) and time.perf_counter() - started < _LONGEST / 2:
        contender.step()
        wait(method.device, contender)
        taken += 1
    return (time.perf_counter() - started) / taken


def _timed(contender: Contender, steps: int, device: torch.device) -> list[float]:
    if contender.synchronise is not None:
        times = []
        for _ in range(steps):
            started = time.perf_counter()
            contender.step()
            contender.synchronise()
            times.append(time.perf_counter() - started)
        return times
    events = [torch.cuda.Event(enable_timing=True) for _ in range(steps + 1)]  # type: ignore[no-untyped-call]
    torch.cuda.synchronize(device)
    events[0].record()
    for event in events[1:]:
        contender.step()
        event.record()
    torch.cuda.synchronize(device)
    return [a.elapsed_time(b) / 1e3 for a, b in itertools.pairwise(events)]


def _in_turns(
    case: Case,
    names: Sequence[str],
    method: Method,
    done: Callable[[Measurement], None],
    tell: Callable[[str], None],
    prepare: Prepare,
) -> list[Measurement]:
    """Prepare and warm up all contenders, then take one step of each in turn."""
    results = {name: Measurement(name, case, paired=True) for name in names}
    ready: dict[str, Contender] = {}

    def fail(name: str, error: Exception) -> None:
        _failed(results[name], error)
        if name in ready:
            ready.pop(name).close()

    try:
        for name, result in results.items():
            if method.late:
                result.reason = NOT_BEGUN
                continue
            tell(f"  preparing {CONTENDERS[name]} ...")
            try:
                started = time.perf_counter()
                ready[name] = contender = prepare(name, case, method.device)
                _describe(result, contender)
                contender.step()
                wait(method.device, contender)
                result.first_step = time.perf_counter() - started
                for _ in range(method.warmup - 1):
                    contender.step()
            except Exception as error:
                fail(name, error)
        began = time.monotonic()
        for turn in range(8 * method.steps):
            enough = time.monotonic() - began >= method.seconds
            if (turn >= method.steps and enough) or (turn >= 3 and method.late):
                break
            tell(f"  turn {turn + 1} ...")
            for name, contender in list(ready.items()):
                try:
                    started = time.perf_counter()
                    contender.step()
                    wait(method.device, contender)
                    results[name].times.append(time.perf_counter() - started)
                except Exception as error:
                    fail(name, error)
        for name, contender in ready.items():
            _note_afterwards(results[name], contender, case)
    finally:
        for contender in ready.values():
            contender.close()
        ready.clear()
        clean(method.device)
    for result in results.values():
        done(result)
    return list(results.values())


def _describe(result: Measurement, contender: Contender) -> None:
    result.how, result.note = contender.how, contender.note


def _failed(result: Measurement, error: Exception) -> None:
    result.times, result.reason = [], reason_of(error)
    result.unsupported = isinstance(error, Unsupported)


def _add_note(result: Measurement, parts: int, case: Case) -> None:
    if parts > 1:
        words = f"{case.rows // parts} rows at once, for lack of memory"
        result.note = f"{result.note}; {words}" if result.note else words


def _note_afterwards(result: Measurement, contender: Contender, case: Case) -> None:
    """Note how the steps were taken, and whether the physical batch was reduced."""
    if words := contender.remark():
        result.how = f"{result.how}, {words}"
    if contender.physical is not None and (now := contender.physical()) < case.at_once:
        _add_note(result, case.at_once // now, case)


def wait(device: torch.device, contender: Contender) -> None:
    """Wait until all steps that were begun are done."""
    if contender.synchronise is not None:
        contender.synchronise()
    elif device.type == "cuda":
        torch.cuda.synchronize(device)
    elif device.type == "mps":
        torch.mps.synchronize()


@contextlib.contextmanager
def helped(name: str, device: torch.device) -> Iterator[None]:
    """Switch on what users of a contender would; sfumato must do so by itself."""
    before = torch.backends.cudnn.benchmark, torch.get_float32_matmul_precision()
    if device.type == "cuda" and name != "sfumato":
        torch.backends.cudnn.benchmark = True
        torch.set_float32_matmul_precision("high")
    try:
        yield
    finally:
        torch.backends.cudnn.benchmark = before[0]
        torch.set_float32_matmul_precision(before[1])


def clean(device: torch.device) -> None:
    """Drop compiled code and free unused memory."""
    torch._dynamo.reset()
    gc.collect()
    if device.type == "cuda":
        torch.cuda.empty_cache()


def reason_of(error: Exception) -> str:
    """The reason for a contender's failure, in one line."""
    if isinstance(error, Unsupported):
        return str(error)
    if out_of_memory(error):
        return "out of memory"
    lines = str(error).strip().splitlines()
    text = f"{type(error).__name__}: {lines[0]}" if lines else type(error).__name__
    return text if len(text) <= 160 else f"{text[:159]}…"
