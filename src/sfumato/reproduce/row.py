"""A row of a paper's table: the recipe that reproduces it, and the published number."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property, lru_cache
from typing import Any, Literal, get_args

from sfumato import recipes, starts
from sfumato.errors import UserError, nearest
from sfumato.recipe import Recipe

Setting = Literal["published", "best"]
SETTINGS: tuple[Setting, ...] = get_args(Setting)

PLD: dict[str, Any] = {"privacy.accountant": "pld", "privacy.noise_multiplier": None}
"""The least change of `best`: noise calibrated to the whole budget by the tighter accountant."""

_NO_MATTER = (
    "privacy.tuned", "training.seed", "training.precision", "training.physical_batch",
    "training.log_every", "training.checkpoint_every", "training.snapshots",
    "training.train_metrics", "start.source", "data.cache",
)  # fmt: skip
"""Settings that do not distinguish one result from another."""


@dataclass(frozen=True, kw_only=True)
class Row:
    """One published result.

    Attributes:
        paper: The paper's name, or `sfumato` for our own.
        name: A short name, unique within the paper.
        recipe: The packaged recipe.
        source: The place in the paper, such as `table 2`.
        published: The accuracy in per cent; None where the paper shows none that can be read.
        note: A remark that a reader needs to compare the two numbers.
        missed: Sentences on why our runs miss the published number by more than one point: what was
            tried, what the curves say, whose number it is.
        changes: Settings that differ from the recipe.
        best: Settings that `best` changes on top. A row without privacy, where noise by PLD alone
            changes nothing, has no such setting unless there is more.
        needs: The row whose run this one starts from.
        best_needs: The row that `best` starts from, if it is another.
        best_needs_setting: The setting of the run that `best` starts from.
        one_start: Whether every seed starts from that row's seed 0, instead of its own.
        answers: Rows of papers, by id, whose page mentions the result of this one.
        alias: Another name for the row.
        measures: Further measures of the finished model (`sfumato.reproduce.measures`).
    """

    paper: str
    name: str
    recipe: str
    source: str
    published: float | None = None
    note: str = ""
    missed: str = ""
    changes: Mapping[str, Any] = field(default_factory=dict)
    best: Mapping[str, Any] = field(default_factory=lambda: PLD)
    needs: Row | None = None
    best_needs: Row | None = None
    best_needs_setting: Setting = "published"
    one_start: bool = False
    answers: tuple[str, ...] = ()
    alias: str = ""
    measures: tuple[str, ...] = ()

    @property
    def id(self) -> str:
        """The name that the command takes: `PAPER/ROW`."""
        return f"{self.paper}/{self.name}"

    @cached_property
    def settings(self) -> tuple[Setting, ...]:
        """The noise settings in which the row can be run, the usual one first."""
        if not self.recipe_for("published").privacy.enabled and self.best == PLD:
            return ("published",)
        return ("best",) if self.paper == "sfumato" else SETTINGS

    def overrides(self, setting: Setting) -> dict[str, Any]:
        """Every setting in which a run differs from the recipe's file, except its start."""
        own = self.paper == "sfumato"
        return {**self.changes, **(self.best if setting == "best" and not own else {})}

    def recipe_for(self, setting: Setting) -> Recipe:
        """The recipe of a run, without the settings from `needs` and the seed."""
        changes = {
            key: value
            for key, value in self.overrides(setting).items()
            if not key.startswith("start.")
        }
        return _packaged(self.recipe).replace(changes)

    def start_of(self, setting: Setting) -> Row | None:
        """The row whose run this one starts from."""
        return self.best_needs if setting == "best" and self.best_needs else self.needs

    def start_setting(self, setting: Setting) -> Setting:
        """The setting of the run that this one starts from."""
        return self.best_needs_setting if setting == "best" else "published"

    def start_changes(self) -> dict[str, Any]:
        """Settings that apply only together with the run that this one starts from."""
        return {k: v for k, v in self.changes.items() if k.startswith("start.")}

    def fingerprint(self, setting: Setting) -> str:
        """A hash of everything that determines the result, the start included, but not the seed.

        Only settings that differ from their defaults count, so that a setting added to sfumato
        later keeps earlier results valid.
        """
        if setting not in self._known:
            self._known[setting] = self._fingerprint(setting)
        return self._known[setting]

    @cached_property
    def _known(self) -> dict[Setting, str]:
        return {}

    def _fingerprint(self, setting: Setting) -> str:
        recipe = self.recipe_for(setting)
        kept = {
            key: value
            for key, value in recipe.changed().items()
            if key not in (*_NO_MATTER, "name", "about")
        }
        if start := self.start_of(setting):
            before = start.fingerprint(self.start_setting(setting))
            kept |= {"needs": before, **self.start_changes()}
            kept |= {"one_start": True} if self.one_start else {}
        for key in ("source", "beside"):
            if weights := starts.find(getattr(recipe.start, key), recipe.model.name):
                kept[f"start.{key}"] = starts.digest(weights)
        return hashlib.sha256(json.dumps(kept, sort_keys=True).encode()).hexdigest()[:12]


@lru_cache(maxsize=512)
def _packaged(name: str) -> Recipe:
    return recipes.find(name)


@dataclass(frozen=True, kw_only=True)
class Paper:
    """A paper with the rows that can be run again.

    Attributes:
        key: Its name, the first part of every row's and recipe's name.
        title: As printed.
        authors: As cited.
        measured: A sentence about its accuracies.
        rows: In the order of its tables and figures.
    """

    key: str
    title: str
    authors: str
    measured: str
    rows: tuple[Row, ...]

    def row(self, name: str) -> Row:
        """A row by its name or its alias."""
        for row in self.rows:
            if name in (row.name, row.alias):
                return row
        known = [n for row in self.rows for n in (row.name, row.alias) if n]
        raise UserError(
            f"Paper {self.key} has no row '{name}'.{nearest(name, known)} "
            f"`sfumato reproduce {self.key} --list` shows them."
        )

    def sources(self) -> Iterator[tuple[str, list[Row]]]:
        """The rows by their table or figure, in order."""
        groups: dict[str, list[Row]] = {}
        for row in self.rows:
            groups.setdefault(row.source, []).append(row)
        yield from groups.items()
