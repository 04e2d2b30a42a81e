"""A job: one run that a row asks for."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from sfumato.reproduce.row import Row, Setting


@dataclass(frozen=True)
class Job:
    """One run: a row, in one setting, with one seed."""

    row: Row
    setting: Setting
    seed: int

    @property
    def folder(self) -> Path:
        """The place of the run below the folder of runs; a changed recipe has another place."""
        print_ = self.row.fingerprint(self.setting)
        return Path(self.row.paper, self.row.name, f"{self.setting}-seed{self.seed}-{print_}")

    @property
    def start(self) -> Job | None:
        """The run that this one starts from, if it starts from another row's."""
        start = self.row.start_of(self.setting)
        if start is None:
            return None
        seed = 0 if self.row.one_start else self.seed
        return Job(start, self.row.start_setting(self.setting), seed)

    def __str__(self) -> str:
        return f"{self.row.id}, {self.setting}, seed {self.seed}"
