"""Metrics of a run in `metrics.jsonl`, truncated to the checkpoint when a run resumes."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from sfumato.io import json_lines
from sfumato.io.atomic import write_whole

MANY = 100
"""Number of steps whose total time, to two digits, reveals nothing about any one of them."""

Listener = Callable[[Path, dict[str, Any]], None]
_listeners: ContextVar[tuple[Listener, ...]] = ContextVar("listeners", default=())


@contextmanager
def listening(listener: Listener) -> Iterator[None]:
    """Call a listener with every record that is added inside this block, and its run folder."""
    token = _listeners.set((*_listeners.get(), listener))
    try:
        yield
    finally:
        _listeners.reset(token)


class Metrics:
    """The records of a run, on disk and in memory."""

    def __init__(self, path: Path | None, *, upto: int | None = None, clock: bool = True) -> None:
        """Open a run's metrics.

        Args:
            path: The file; None on ranks that write none.
            upto: Drop the records of later steps.
            clock: Stamp records with the time.
        """
        self.path, self._clock = path, clock
        self.records = [] if path is None else read(path)
        if path is not None and upto is not None:
            self.records = [r for r in self.records if r["step"] <= upto and not r.get("final")]
            write_whole(path, "".join(map(_line, self.records)).encode())

    def add(self, record: dict[str, Any]) -> None:
        """Append a record."""
        if self._clock:
            record = {**record, "time": datetime.now(UTC).isoformat(timespec="seconds")}
        self.records.append(record)
        if self.path is None:
            return
        with open(self.path, "ab") as file:
            file.write(_line(record).encode())
        for listener in _listeners.get():
            listener(self.path.parent, record)

    @property
    def seconds(self) -> float:
        """Training time of the run so far, including before interruptions."""
        return float(self.records[-1].get("seconds", 0.0)) if self.records else 0.0


def coarse(value: float) -> float:
    """A total time or a mean speed, rounded to two digits for a file of a private run.

    *Guarantee:* the total of `MANY` steps or more does not reveal how long one of them took: a
    whole step is at most a hundredth of it, which is the rounding.
    """
    return float(f"{value:.1e}")


def _line(record: dict[str, Any]) -> str:
    plain = {
        key: None if isinstance(value, float) and not math.isfinite(value) else value
        for key, value in record.items()
    }
    return json.dumps(plain) + "\n"


def read(path: Path) -> list[dict[str, Any]]:
    """All whole records of a metrics file; empty if there is no such file.

    A line that is not the record of a step, or whose values are not numbers, is skipped.
    """
    return [record for record in map(_record, _lines(path)) if record is not None]


def damaged(path: Path) -> int:
    """Number of the lines that `read` skips, empty ones not counted."""
    return sum(_record(line) is None for line in _lines(path) if line.strip())


def _lines(path: Path) -> list[str]:
    if not os.path.exists(path):
        return []
    return path.read_text(encoding="utf-8", errors="replace").splitlines()


def _record(line: str) -> dict[str, Any] | None:
    try:
        record = json_lines.parse(line)
    except ValueError:
        return None
    return record if _is_record(record) else None


def _is_record(record: Any) -> bool:
    if not isinstance(record, dict):
        return False
    step = record.get("step")
    if isinstance(step, bool) or not isinstance(step, int) or not 0 <= step < 2**53:
        return False
    values = {key: record[key] for key in record if key not in ("step", "time", "final")}
    return all(
        value is None or (isinstance(value, int | float) and abs(value) < _LARGEST)
        for value in values.values()
    )


_LARGEST = 1e300
