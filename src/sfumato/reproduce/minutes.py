"""Estimates of the minutes that runs take, from recorded results and from the cost of networks."""

from __future__ import annotations

import json
import math
import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache

from sfumato import environment, models
from sfumato.reproduce import results_file
from sfumato.reproduce.results_file import Entry
from sfumato.reproduce.row import Row, Setting
from sfumato.reproduce.workload import Workload, workload_of


@dataclass(frozen=True)
class _Pace:
    """Typical times of a kind of device.

    Attributes:
        start: Seconds before the first step and after the last: checks, compilation, tests.
        step: Seconds of a step beside its rows.
        speed: Multiply-accumulates of a forward pass that a second of training takes, gradients and
            all.
    """

    start: float
    step: float
    speed: float


_GPU, _CPU = _Pace(30, 0.015, 1.5e13), _Pace(15, 0.005, 3e9)
"""Rounded numbers with which estimates over `results/` are right in the median. Half of them are
within a factor of 1.6 of the recorded minutes on an H200, and of 1.9 on a processor."""


@dataclass(frozen=True)
class _Recorded:
    """The runs of one row and setting, as recorded.

    Attributes:
        work: What each of them did.
        minutes: The median of their times.
        speed: The median of their views per second; 0 if none states it.
    """

    work: Workload
    minutes: float
    speed: float

    def scaled_to(self, work: Workload) -> float:
        """The minutes of other work of the same network, in proportion to views and pixels.

        What the recorded runs took beside their views, such as compilation, stays the same.
        """
        ratio = work.pixels / self.work.pixels
        views, known = (one.steps * one.rows for one in (work, self.work))
        if not self.speed:
            return self.minutes * ratio * views / known
        beside = max(0.0, self.minutes - known / self.speed / 60)
        return beside + ratio * views / self.speed / 60


class Estimator:
    """Estimated minutes of runs on one kind of device.

    A run takes as long as the recorded runs of its row and setting; else as those of its network
    whose images and steps are most alike, in proportion to views and pixels; else as the
    multiply-accumulates of its network take at a typical speed.
    """

    def __init__(
        self,
        rows: Iterable[Row],
        entries: Sequence[Entry],
        *,
        device: str,
        precision: str | None = None,
    ) -> None:
        """Sum up recorded results.

        Args:
            rows: Rows whose results may be used.
            entries: Recorded results.
            device: Type of the device to estimate for: results of other types do not count.
            precision: The precision instead of the recipes'.
        """
        self._device, self._precision = device, precision
        self._work: dict[tuple[str, Setting], Workload | None] = {}
        self._known: dict[tuple[str, Setting], _Recorded] = {}
        alike = [e for e in entries if e.minutes and environment.device_type(e.hardware) == device]
        recorded = {entry.row for entry in alike}
        for row in rows:
            for setting in row.settings if row.id in recorded else ():
                found, work = results_file.of_row(alike, row, setting), self.work(row, setting)
                if found and work is not None:
                    speeds = [e.views_per_second for e in found if e.views_per_second]
                    self._known[row.id, setting] = _Recorded(
                        work,
                        statistics.median(e.minutes for e in found),
                        statistics.median(speeds) if speeds else 0.0,
                    )

    def work(self, row: Row, setting: Setting) -> Workload | None:
        """The work of a row's run; None if its data set has no known size."""
        key = row.id, setting
        if key not in self._work:
            self._work[key] = workload_of(row.recipe_for(setting), precision=self._precision)
        return self._work[key]

    def minutes(self, row: Row, setting: Setting, *, done: int = 0) -> float:
        """Estimate the minutes of a run, without those of the run that it starts from.

        Args:
            row: The row.
            setting: Its setting.
            done: Steps that need not be taken any more.

        Returns:
            The estimate, or infinity if the size of its data set is not known.
        """
        work = self.work(row, setting)
        if work is None:
            return math.inf
        return self._whole(row, setting, work) * max(0.0, 1 - done / work.steps)

    def _whole(self, row: Row, setting: Setting, work: Workload) -> float:
        if recorded := self._known.get((row.id, setting)):
            return recorded.minutes
        same = [one for one in self._known.values() if one.work.network == work.network]
        if same:
            return min(same, key=lambda one: _distance(one.work, work)).scaled_to(work)
        pace = _GPU if self._device == "cuda" else _CPU
        # Layers that are not trained run once for each image.
        rows = work.steps * work.rows if work.network.trained == "[]" else work.examples
        seconds = pace.start + pace.step * work.steps + rows * _macs(work) / pace.speed
        return seconds / 60


def _distance(one: Workload, other: Workload) -> tuple[float, float]:
    """The factors between the images, and between the steps, of two runs of one network."""
    return abs(math.log(one.pixels / other.pixels)), abs(math.log(one.rows / other.rows))


def _macs(work: Workload) -> int:
    """Multiply-accumulates of one image's forward pass."""
    network = work.network
    return _counted(
        network.name, network.options, network.batchnorm_to, work.channels, work.size, work.classes
    )


@lru_cache(maxsize=256)
def _counted(
    name: str,
    options: str,
    batchnorm_to: str | None,
    channels: int,
    size: tuple[int, int],
    classes: int,
) -> int:
    return models.summary_of(
        name,
        classes=classes,
        channels=channels,
        size=size,
        options=json.loads(options),
        batchnorm_to=batchnorm_to,
    ).macs
