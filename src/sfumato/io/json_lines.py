"""Files of one JSON object a line that several processes add to, and that a kill may cut short."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from sfumato.io import locks


def parse(text: str | bytes) -> Any:
    """A JSON value from a file that anybody may have written.

    Raises:
        ValueError: If it is not JSON, or nested so deeply that reading it would fail.
    """
    try:
        return json.loads(text)
    except RecursionError:
        raise ValueError("it is nested too deeply") from None


def append(path: Path, line: str) -> None:
    """Add a line, on the disk before this returns.

    Part of a line that a kill left at the end is removed.

    Raises:
        OSError: If it cannot be written.
        UserError: If nothing can be written beside it.
    """
    with locks.alone(path, wait=True), open(path, "a+b") as file:
        file.seek(0)
        content = file.read()
        end = content.rfind(b"\n") + 1
        if _is_whole(content[end:]):
            line = f"\n{line}"
        else:
            file.truncate(end)
        file.write(f"{line}\n".encode())
        file.flush()
        os.fsync(file.fileno())


def read(path: Path) -> list[tuple[int, str]]:
    """The lines that are not empty, with their numbers, but for part of a last one."""
    lines = path.read_text(encoding="utf-8", errors="replace").split("\n")
    whole = lines if _is_whole(lines[-1]) else lines[:-1]
    return [(number, line) for number, line in enumerate(whole, start=1) if line.strip()]


def _is_whole(line: str | bytes) -> bool:
    """Tell whether a last line lacks nothing but its line end."""
    try:
        parse(line)
    except ValueError:
        return False
    return True


def number(record: Mapping[str, Any], key: str) -> float | None:
    """A finite number of a record, if it has it."""
    value = record.get(key)
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    return float(value) if math.isfinite(value) else None
