"""Our results beside published numbers: medians, verdicts, and the standing of a row."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass

from sfumato.reproduce import results_file
from sfumato.reproduce.results_file import Entry
from sfumato.reproduce.row import Row, Setting


@dataclass(frozen=True)
class Summary:
    """Statistics of the seeds of one row and setting.

    Attributes:
        accuracies: In per cent, in the order of seeds.
        minutes: The median of their training times.
        epsilon: The largest spent by the accountant that calibrated it; None without privacy.
    """

    accuracies: tuple[float, ...]
    minutes: float
    epsilon: float | None

    @property
    def median(self) -> float:
        """The middle accuracy."""
        return statistics.median(self.accuracies)


def summary(entries: Sequence[Entry]) -> Summary | None:
    """The seeds of one row and setting; None if there are none."""
    if not entries:
        return None
    spent = [e.epsilon[e.accountant] for e in entries if e.epsilon]
    return Summary(
        tuple(100 * e.accuracy for e in entries),
        statistics.median(e.minutes for e in entries),
        max(spent) if spent else None,
    )


def verdict(published: float | None, ours: float) -> str:
    """Compare a median with the published number, to the digits that were printed."""
    if published is None:
        return ""
    difference, digits = _above(published, ours), _digits(published)
    if difference >= 0:
        return f"reached, +{difference:.{digits}f}"
    return f"**missed** by {-difference:.{digits}f}"


def _above(published: float, ours: float) -> float:
    digits = _digits(published)
    return round(round(ours, digits) - published, digits)


def _digits(published: float) -> int:
    return max(1, len(repr(published).partition(".")[2]))


@dataclass(frozen=True)
class Standing:
    """The best that a row has come to, over its settings.

    Attributes:
        setting: The setting whose median is highest.
        median: That median in per cent.
        above: Points above the published number, to the digits printed; None if there is none.
    """

    setting: Setting
    median: float
    above: float | None

    @property
    def reached(self) -> bool:
        """Tell whether the row has a published number that some setting reaches."""
        return self.above is not None and self.above >= 0

    def missed_by_more_than(self, points: float) -> bool:
        """Tell whether every setting is so many points below the published number, or more."""
        return self.above is not None and -self.above > points


def standing(row: Row, entries: Sequence[Entry]) -> Standing | None:
    """The standing of a row; None if it was not run."""
    medians = {
        setting: ours.median
        for setting in row.settings
        if (ours := summary(results_file.of_row(entries, row, setting)))
    }
    if not medians:
        return None
    best = max(medians, key=lambda setting: medians[setting])
    above = None if row.published is None else _above(row.published, medians[best])
    return Standing(best, medians[best], above)
