"""Results in `results/PAPER.jsonl`: one line per finished run, the only source of results.

Lines of version 0.1 name papers by numbers; they are read as results of the papers' present names.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from sfumato.errors import UserError
from sfumato.io import json_lines
from sfumato.recipes import current_name
from sfumato.reproduce.row import Row, Setting


@dataclass(frozen=True, kw_only=True)
class Entry:
    """A finished run.

    Attributes:
        row: `PAPER/ROW`.
        recipe: The packaged recipe.
        recipe_hash: Hash of the settings that determined the result (`Row.fingerprint`).
        setting: `published` or `best`.
        overrides: Settings that differed from the recipe's file.
        seed: The seed of the run.
        accuracy: On the test set, of the released weights (averaged, if there is an average).
        accuracy_averaged: Of the averaged weights; None without an average.
        accuracy_last: Of the weights after the last step.
        epsilon: Spent, by accountant; empty without privacy.
        delta: As in (epsilon, delta); None without privacy.
        accountant: The accountant that calibrated the noise.
        sigma: Noise multiplier of the first step.
        steps: Steps taken.
        examples: Training images.
        minutes: Training time; 0 if the run does not state it.
        views_per_second: Median over the run.
        parameters: Number of trainable parameters.
        measures: Further measures of the row.
        curve: Steps, epsilons and accuracies over training.
        hardware: The device.
        versions: Versions of sfumato, torch, Python and dp-accounting.
        commit: Commit of the source, or `unknown`.
        date: Time of the end of the run.
    """

    row: str
    recipe: str
    recipe_hash: str
    setting: str
    seed: int
    accuracy: float
    accuracy_last: float
    accuracy_averaged: float | None = None
    overrides: dict[str, Any] = field(default_factory=dict)
    epsilon: dict[str, float] = field(default_factory=dict)
    delta: float | None = None
    accountant: str = ""
    sigma: float = 0.0
    steps: int = 0
    examples: int = 0
    minutes: float = 0.0
    views_per_second: float = 0.0
    parameters: int = 0
    measures: dict[str, float] = field(default_factory=dict)
    curve: dict[str, Any] = field(default_factory=dict)
    hardware: str = "unknown"
    versions: dict[str, str] = field(default_factory=dict)
    commit: str = "unknown"
    date: str = ""

    @property
    def paper(self) -> str:
        """The first part of the row's name."""
        return self.row.partition("/")[0]


_FIELDS = {f.name for f in dataclasses.fields(Entry)}
_NEEDED = {
    "row", "recipe", "recipe_hash", "setting", "seed", "accuracy", "accuracy_last",
}  # fmt: skip


def read(folder: Path) -> list[Entry]:
    """Every entry of a results folder, in the order of files and lines.

    Raises:
        UserError: If a line is not an entry. Part of a last line, left by a kill, is skipped.
    """
    entries: list[Entry] = []
    for path in sorted(folder.glob("*.jsonl")) if folder.is_dir() else ():
        entries += [
            _entry(line, f"{path}, line {number}") for number, line in json_lines.read(path)
        ]
    return entries


def _entry(line: str, where: str) -> Entry:
    try:
        content = json_lines.parse(line)
    except ValueError as error:
        raise UserError(f"{where} is not a result: {error}. Remove the line.") from None
    missing = _NEEDED - set(content) if isinstance(content, Mapping) else _NEEDED
    if missing:
        raise UserError(f"{where} is not a result: it lacks {', '.join(sorted(missing))}.")
    for key in ("accuracy", "accuracy_last"):
        value = content[key]
        if not isinstance(value, int | float) or not 0 <= value <= 1:
            raise UserError(
                f"{where} is not a result: its {key} is {value!r}, not a number from 0 to 1."
            )
    names = {key: content[key] for key in ("row", "recipe")}
    for key, value in names.items():
        if not isinstance(value, str):
            raise UserError(f"{where} is not a result: its {key} is {value!r}, not a name.")
        names[key] = current_name(value)
    return Entry(**{key: value for key, value in (content | names).items() if key in _FIELDS})


def append(folder: Path, entry: Entry) -> Path:
    """Append an entry to its paper's file, on disk before this returns.

    Part of a line that a kill left at the end is removed: its run folder still holds the result.
    """
    path = folder / f"{entry.paper}.jsonl"
    line = json.dumps(dataclasses.asdict(entry), sort_keys=False, ensure_ascii=False)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        json_lines.append(path, line)
    except OSError as error:
        raise UserError(f"Cannot write the result to {path}: {error.strerror}.") from None
    return path


def of_row(entries: Iterable[Entry], row: Row, setting: Setting) -> list[Entry]:
    """The results of a row's present recipe, the last one of each seed, in the order of seeds."""
    wanted = row.fingerprint(setting)
    by_seed = {
        entry.seed: entry
        for entry in entries
        if (entry.row, entry.setting, entry.recipe_hash) == (row.id, setting, wanted)
    }
    return [by_seed[seed] for seed in sorted(by_seed)]
