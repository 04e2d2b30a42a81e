"""The record of a run as JSON: hardware, versions, command, and the time of every step."""

from __future__ import annotations

import json
import os
import platform
import sys
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from sfumato.bench.cases import ORDER, Case
from sfumato.bench.measurement import Measurement
from sfumato.environment import processor
from sfumato.errors import UserError
from sfumato.io import json_lines
from sfumato.io.atomic import write_whole
from sfumato.version import UNKNOWN, commit, of

VERSION = 1
PACKAGES = ("sfumato", "torch", "triton", "opacus", "jax", "jax_privacy")
OPTIONS = {
    "model": "--models",
    "views": "--views",
    "rows": "--rows",
    "precision": "--precision",
    "physical": "--physical",
}
"""Settings of the command line that a case holds."""


@dataclass
class Record:
    """The results of a run of `sfumato bench`.

    Attributes:
        hardware: Device, GPU, CPU, cores and threads.
        versions: Versions of Python and of the packages that matter.
        settings: The requested settings.
        command: The command line.
        commit: Commit of the source, if it is a checkout; `+` after it means with changes.
        date: Time of the start.
        finished: Whether every requested measurement exists or has a reason.
        measurements: One per case and contender.
        profiles: Results of `--profile`.
        path: The file of the record.
    """

    hardware: dict[str, Any]
    versions: dict[str, str]
    settings: dict[str, Any]
    command: str = ""
    commit: str = UNKNOWN
    date: str = ""
    finished: bool = False
    measurements: list[Measurement] = field(default_factory=list)
    profiles: list[dict[str, Any]] = field(default_factory=list)
    path: Path | None = None

    @classmethod
    def begin(cls, device: str, settings: dict[str, Any], *, path: Path | None = None) -> Record:
        """Start a record; with a path, the file is created at once and must be new."""
        record = cls(
            hardware=hardware(device),
            versions=versions(),
            settings=settings,
            command=" ".join(["sfumato", *sys.argv[1:]]),
            commit=commit(),
            date=now(),
        )
        if path is not None:
            reserve(path)
            record.path = path
            record.save()
        return record

    @classmethod
    def resume(cls, device: str, settings: dict[str, Any], *, path: Path) -> Record:
        """Read a record to continue it; settings and hardware must be unchanged."""
        record = read(path)
        there, here = record.conditions(), cls.begin(device, settings).conditions()
        for what in there | here:
            before, after = there.get(what), here.get(what)
            if json.dumps(before) == json.dumps(after):
                continue
            words = f"{what} {_shown(before)}, not {_shown(after)}"
            if what == "cases":
                words = "other cases"
            raise UserError(f"{path} was begun with {words}: choose another --out.")
        return record

    def conditions(self) -> dict[str, Any]:
        """The values that must be the same throughout a record, by names that a user knows."""
        h, s = self.hardware, self.settings
        machine = {"GPU": "gpu"} if self.cuda else {"CPU": "cpu", "threads": "threads"}
        cases = s.get("cases", [])
        return {
            "device": h.get("device"),
            **{said: h.get(part) for said, part in machine.items()},
            "commit": self.commit,
            **self.versions,
            **{o: list(dict.fromkeys(c.get(part) for c in cases)) for part, o in OPTIONS.items()},
            **{f"--{name}": s.get(name) for name in ("against", "steps", "warmup", "cold", "jobs")},
            "seconds of steps": s.get("seconds"),
            "cases": cases,
        }

    def find(self, case: Case, contender: str) -> Measurement | None:
        """The measurement of a contender in a case, if any."""
        wanted = case.key, contender
        return next((m for m in self.measurements if _key(m) == wanted), None)

    def add(self, *measurements: Measurement) -> None:
        """Add measurements, on disk too, in place of earlier ones and in the cases' order."""
        new = {_key(m) for m in measurements}
        earlier = [m for m in self.measurements if _key(m) not in new]
        order = [Case(**case).key for case in self.settings.get("cases", [])]

        def place(m: Measurement) -> tuple[int, int]:
            known = m.case.key in order
            return (order.index(m.case.key), ORDER.index(m.contender)) if known else (len(order), 0)

        self.measurements = sorted([*earlier, *measurements], key=place)
        self.save()

    def save(self) -> None:
        """Write the file anew, whole or not at all."""
        if self.path is not None:
            try:
                write_whole(self.path, (json.dumps(self.to_dict(), indent=1) + "\n").encode())
            except OSError as error:
                raise UserError(f"Cannot write {self.path}: {error.strerror}.") from None

    def to_dict(self) -> dict[str, Any]:
        """Plain values."""
        return {
            "version": VERSION,
            "date": self.date,
            "command": self.command,
            "commit": self.commit,
            "hardware": self.hardware,
            "versions": self.versions,
            "settings": self.settings,
            "finished": self.finished,
            "measurements": [m.to_dict() for m in self.measurements],
            "profiles": self.profiles,
        }

    @property
    def cuda(self) -> bool:
        """Tell whether it was measured on an NVIDIA GPU."""
        return self.hardware.get("device") == "cuda"

    def where(self) -> str:
        """The hardware and the versions in a short text."""
        h, v = self.hardware, self.versions
        threads = h.get("threads", UNKNOWN)
        cores = f"{threads} thread{'' if threads == 1 else 's'}"
        machine = h["gpu"] if self.cuda else f"{h.get('cpu', UNKNOWN)}, {cores}"
        packages = [f"PyTorch {v.get('torch', UNKNOWN)}"]
        shown = (("opacus", "Opacus"), ("jax_privacy", "JAX-Privacy"), ("triton", "Triton"))
        packages += [f"{name} {v[key]}" for key, name in shown if v.get(key, UNKNOWN) != UNKNOWN]
        return ", ".join([machine, *packages])


def reserve(path: Path) -> None:
    """Create a file that must not exist yet."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.open("xb").close()
    except FileExistsError:
        raise UserError(taken(path)) from None
    except OSError as error:
        raise UserError(f"Cannot write {path}: {error.strerror}.") from None


def taken(path: Path) -> str:
    """A sentence that an existing file is not overwritten, with advice."""
    try:
        way = (
            "choose another"
            if read(path).finished
            else "go on with it by --resume, or choose another"
        )
    except UserError:
        way = "choose another"
    return f"{path} already exists and is not overwritten: {way}."


def read(path: Path) -> Record:
    """Read a record back."""
    try:
        content = json_lines.parse(path.read_text(encoding="utf-8"))
        if content["version"] != VERSION:
            raise UserError(f"{path} is a record of version {content['version']}, not {VERSION}.")
        del content["version"]
        measured = [Measurement.from_dict(m) for m in content.pop("measurements")]
        return Record(**content, measurements=measured, path=path)
    except OSError as error:
        raise UserError(f"Cannot read {path}: {error.strerror}.") from None
    except (ValueError, KeyError, TypeError) as error:
        raise UserError(f"{path} is not a record of `sfumato bench`: {error}.") from None


def hardware(device: str) -> dict[str, Any]:
    """The hardware of the measurement."""
    import torch

    found: dict[str, Any] = {
        "device": device,
        "cpu": processor(),
        "cores": os.cpu_count(),
        "threads": torch.get_num_threads(),
        "platform": f"{platform.system()} {platform.machine()}",
    }
    if device == "cuda":
        properties = torch.cuda.get_device_properties(0)
        found |= {
            "gpu": properties.name,
            "gpu_memory": properties.total_memory,
            "compute_capability": f"{properties.major}.{properties.minor}",
            "cuda": torch.version.cuda or UNKNOWN,
        }
    return found


def versions() -> dict[str, str]:
    """Versions of the measured packages; `unknown` for those that are not installed as packages."""
    return {"python": platform.python_version()} | {name: of(name) for name in PACKAGES}


def now() -> str:
    """The current time in the format of records."""
    return datetime.now(UTC).isoformat(timespec="seconds")


def _key(measurement: Measurement) -> tuple[str, str]:
    return measurement.case.key, measurement.contender


def _shown(value: Any) -> str:
    if isinstance(value, list):
        return ", ".join(str(part) for part in value) or "none"
    if isinstance(value, bool):
        return "on" if value else "off"
    return UNKNOWN if value is None else str(value)
