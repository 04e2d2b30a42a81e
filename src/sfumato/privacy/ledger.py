"""The ledger: a record of releases that is on disk before anything that depends on them.

`ledger.jsonl` starts with a line that states the mechanism and the data it ran on, followed by one
line per released step. Each line carries a hash of the line before it, so that a ledger with a line
changed, missing or damaged is not consistent. The chain has no secret: whoever rewrites every line
after a change makes it consistent again, and lines cut off at the end leave a shorter ledger that
is. It shows accidents, not forgery; `sfumato.training.signature` shows who vouches for a ledger. It
holds no number computed from the data: not even how many examples a step happened to draw.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable, Iterable, Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any, cast

from sfumato.errors import UserError
from sfumato.io import json_lines, locks
from sfumato.privacy.accounting.accountants import Step, merge


def _line(content: Mapping[str, Any], previous: str) -> bytes:
    body = json.dumps({**content, "previous": previous}, sort_keys=True, ensure_ascii=False)
    return body.encode() + b"\n"


def _hash(line: bytes) -> str:
    return hashlib.sha256(line).hexdigest()[:16]


class Ledger:
    """An append-only record of releases.

    Guarantee: When `record` returns, the event is with the operating system, and when `sync`
    returns it is on the disk. Recording a step that is already there is allowed if it is the
    same event (an interrupted run repeats its last steps with the same random numbers) and an
    error otherwise, so no step is ever counted less than it was released. One process at a time
    has a ledger open (where the file system has locks).
    """

    def __init__(self, path: Path, header: dict[str, Any], steps: list[Step], last: str) -> None:
        self.path, self.header, self._steps, self._last = path, header, steps, last
        with ExitStack() as held:
            held.enter_context(locks.alone(path))
            self._file = os.open(path, os.O_WRONLY | os.O_APPEND)
            held.callback(os.close, self._file)
            self._held = held.pop_all()

    @classmethod
    def create(cls, path: Path, header: Mapping[str, Any]) -> Ledger:
        """Start a ledger; the file must not exist."""
        content = {"kind": "start", **header}
        line = _line(content, "")
        with open(path, "xb") as file:
            file.write(line)
            file.flush()
            os.fsync(file.fileno())
        return cls(path, json.loads(line), [], _hash(line))

    @classmethod
    def open(cls, path: Path) -> Ledger:
        """Read a ledger back to continue it; a last line torn by a kill is dropped."""
        ledger = cls(path, {}, [], "")
        try:
            ledger.header, ledger._steps, ledger._last, good = _read(path)
            if good != path.stat().st_size:
                os.truncate(path, good)
        except BaseException:
            ledger.close()
            raise
        return ledger

    @property
    def steps(self) -> int:
        """The number of recorded releases."""
        return len(self._steps)

    def history(self, upto: int | None = None) -> list[Step]:
        """The recorded events, equal ones counted together."""
        return list(merge(self._steps[:upto]))

    def record(self, number: int, step: Step) -> None:
        """Record release `number` (from 1) before it happens."""
        if number <= self.steps:
            if self._steps[number - 1] != step:
                raise UserError(
                    f"{self.path} says that step {number} was {self._steps[number - 1]}, but the "
                    f"run is about to make it {step}; going on would not be accounted for."
                )
            return
        if number != self.steps + 1:
            raise ValueError(f"step {number} cannot follow step {self.steps}")
        content = {"kind": "step", "step": number, "q": step.q, "sigma": step.noise_multiplier}
        line = _line(content, self._last)
        if os.write(self._file, line) != len(line):
            raise OSError(28, "No space left on device", str(self.path))
        self._last = _hash(line)
        self._steps.append(step)

    def sync(self) -> None:
        """Return once everything recorded is on the disk."""
        os.fsync(self._file)

    def check(self) -> None:
        """Raise if the file differs from what was recorded."""
        if _read(self.path)[1] != self._steps:
            raise UserError(
                f"The ledger {self.path} was changed while the run was under way; what the run has "
                "spent can no longer be established from it."
            )

    def close(self) -> None:
        """Close the file."""
        self._held.close()
        self._file = -1

    def __enter__(self) -> Ledger:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def read(path: Path, *, needs: Iterable[str] = ()) -> tuple[dict[str, Any], list[Step]]:
    """The header and the events of a ledger, checked line by line.

    Args:
        path: The file.
        needs: Keys that the header must have.

    Raises:
        UserError: If it cannot be read, is damaged, or lacks a key.
    """
    header, steps, _, _ = _read(path)
    if lacking := [key for key in needs if key not in header]:
        raise UserError(
            f"The ledger {path} is not that of a run: its first line has no {lacking[0]}."
        )
    return header, steps


def _is_count(value: object) -> bool:
    return type(value) is int and 0 <= value < 2**53


def _is_number(value: object) -> bool:
    return type(value) in (int, float) and 0 <= cast(float, value) < 1e300


def _is_text(value: object) -> bool:
    return isinstance(value, str)


def _is_table(value: object) -> bool:
    return isinstance(value, dict)


_FIELDS: dict[str, Callable[[object], bool]] = {
    "examples": _is_count,
    "steps": _is_count,
    "physical_batch": _is_count,
    "rate": _is_number,
    "sigma": _is_number,
    "clip": _is_number,
    "delta": _is_number,
    "budget": _is_number,
    "mechanism": _is_text,
    "relation": _is_text,
    "accountant": _is_text,
    "data": _is_text,
    "recipe": _is_table,
    "start": _is_table,
    "noise": _is_table,
    "selection": _is_table,
    "canaries": _is_table,
}


def _is_header(content: object) -> bool:
    """Tell whether a first line is an object whose known fields have the type that they should."""
    return isinstance(content, dict) and all(
        fits(content[key]) for key, fits in _FIELDS.items() if key in content
    )


def _read(path: Path) -> tuple[dict[str, Any], list[Step], str, int]:
    try:
        data = path.read_bytes()
    except OSError as error:
        raise UserError(f"Cannot read the ledger {path}: {error.strerror}.") from None
    lines = data.splitlines(keepends=True)
    if lines and not lines[-1].endswith(b"\n"):
        lines.pop()
    header: dict[str, Any] | None = None
    steps: list[Step] = []
    last = ""
    for number, line in enumerate(lines):
        try:
            content = json_lines.parse(line)
            sound = content["previous"] == last
            if number == 0:
                header, sound = content, sound and _is_header(content)
            else:
                sound = sound and content["step"] == number
                steps.append(Step(float(content["q"]), float(content["sigma"])))
        except (ValueError, KeyError, TypeError, OverflowError, UserError):
            sound = False
        if not sound:
            raise UserError(
                f"The ledger {path} is not consistent: line {number + 1} is damaged or was edited. "
                "What the run has spent can no longer be established from it."
            )
        last = _hash(line)
    if header is None:
        raise UserError(f"The ledger {path} is empty; the run never started. Start it anew.")
    return header, steps, last, sum(map(len, lines))
