"""Targets of sfumato's speed and memory, and their comparison with a record."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from sfumato.bench.cases import CONTENDERS
from sfumato.bench.measurement import Measurement
from sfumato.bench.record import Record

OF_NOT_PRIVATE = {
    "wrn-16-4": {1: 0.65, 4: 0.85, 16: 0.95},
    "resnet9": {1: 0.70, 4: 0.85, 16: 0.95},
    "scale-resnet9": {1: 0.70, 4: 0.85, 16: 0.95},
    "eq-resnet9-d4": {1: 0.60, 4: 0.85, 16: 0.95},
    "smoothnet": {1: 0.60, 4: 0.80},
}
"""On a GPU in bfloat16: views/s over those of training without privacy, by model and K."""

OVER_OPACUS = {"wrn-16-4": 5.0, "resnet9": 5.0}
"""On a GPU in bfloat16 at K = 1: views/s over those of the faster mode of Opacus."""

OVER_OPACUS_CPU = {"resnet9": 1.5}
"""On a CPU; other models must not be slower than Opacus."""

FOREIGN = {1: 0.60, 8: 0.85}
FOREIGN_CPU = 0.4
"""Views/s over those of training without privacy for networks from outside: by K, and on a CPU."""

FOREIGN_OVER_OPACUS = 5.0
"""On a GPU at K = 1: views/s over those of the faster mode of Opacus."""

FOREIGN_MEMORY = {1: 2.0, 8: 1.5}
"""Peak memory over that of training without privacy at equal physical rows, by K."""

JAX_PRIVACY_H200 = 33_900
OVER_JAX = 2.0
"""WRN-16-4 at K = 16 on an H200: the views/s of JAX-Privacy 2.0."""

MEMORY = 1.5
"""Peak memory over that of training without privacy at equal physical rows, for K of at least 4."""

LARGE = 16.0
"""GiB that an update of 4096 examples with 16 views may take, WRN-16-4, in physical batches."""


@dataclass(frozen=True)
class Verdict:
    """A target and its measurement.

    Attributes:
        claim: The target in words.
        wanted: The number to reach (or not to exceed).
        found: The measured number; None if it was not measured.
        most: Whether `wanted` is an upper limit.
    """

    claim: str
    wanted: float
    found: float | None
    most: bool = False

    @property
    def met(self) -> bool:
        """Tell whether the target is reached; one that was not measured is not."""
        if self.found is None:
            return False
        return self.found <= self.wanted if self.most else self.found >= self.wanted

    @property
    def word(self) -> str:
        """`met`, `missed` or `not measured`."""
        if self.found is None:
            return "not measured"
        return "met" if self.met else "missed"


class Index:
    """Measurements of the main suite, by model, K and contender, those of most rows."""

    def __init__(self, measurements: Iterable[Measurement], precision: str) -> None:
        self._by: dict[tuple[str, int], dict[str, Measurement]] = {}
        rows: dict[tuple[str, int], int] = {}
        for m in measurements:
            c, key = m.case, (m.case.model, m.case.views)
            if c.suite != "main" or c.precision != precision or c.options:
                continue
            if c.rows > rows.get(key, 0):
                rows[key], self._by[key] = c.rows, {}
            if c.rows == rows[key]:
                self._by[key][m.contender] = m

    def models(self) -> list[str]:
        """The models measured, in order."""
        return list(dict.fromkeys(model for model, _ in self._by))

    def views(self, model: str) -> list[int]:
        """The values of K measured for a model."""
        return sorted(k for name, k in self._by if name == model)

    def get(self, model: str, views: int, contender: str) -> Measurement | None:
        """A measurement that has times, or None."""
        found = self._by.get((model, views), {}).get(contender)
        return found if found is not None and found.times else None

    def fastest(self, model: str, views: int, contenders: Iterable[str]) -> Measurement | None:
        """The fastest of some contenders."""
        found = [m for name in contenders if (m := self.get(model, views, name))]
        return max(found, key=lambda m: m.speed or 0.0, default=None)


NOT_PRIVATE = ("not-private", "not-private-compiled")
OPACUS = ("opacus", "opacus-ghost")


def ratio(ours: Measurement | None, theirs: Measurement | None) -> float | None:
    """Ratio of speeds, if both were measured; for steps that took turns, the median of ratios."""
    if ours is None or theirs is None or not ours.speed or not theirs.speed:
        return None
    if ours.paired and theirs.paired and ours.case == theirs.case:
        turns = zip(ours.times, theirs.times, strict=False)
        return statistics.median(their / our for our, their in turns)
    return ours.speed / theirs.speed


def verdicts(record: Record) -> list[Verdict]:
    """Every target that concerns the models of a record."""
    return [*(_on_cuda(record) if record.cuda else _on_cpu(record)), *_foreign(record)]


def _on_cuda(record: Record) -> Iterator[Verdict]:
    index = Index(record.measurements, "bfloat16")
    for model in index.models():
        for k, wanted in OF_NOT_PRIVATE.get(model, {}).items():
            if k not in index.views(model):
                continue
            ours, plain = index.get(model, k, "sfumato"), index.fastest(model, k, NOT_PRIVATE)
            claim = f"{model}, K = {k}: views/s of not private"
            yield Verdict(claim, wanted, ratio(ours, plain))
        if model in OVER_OPACUS and 1 in index.views(model):
            yield _over_opacus(index, model, OVER_OPACUS[model])
    if 16 in index.views("wrn-16-4") and "H200" in record.hardware.get("gpu", ""):
        ours = index.get("wrn-16-4", 16, "sfumato")
        beside = index.get("wrn-16-4", 16, "jax-privacy")
        theirs = beside.speed if beside and beside.speed else JAX_PRIVACY_H200
        source = "in this run" if beside else f"{JAX_PRIVACY_H200:,} views/s"
        claim = f"wrn-16-4, K = 16: views/s over JAX-Privacy's ({source})"
        yield Verdict(claim, OVER_JAX, ours.speed / theirs if ours and ours.speed else None)
    for model in index.models():
        for k in (k for k in index.views(model) if k >= 4):
            ours, plain = index.get(model, k, "sfumato"), index.get(model, k, "not-private")
            found = None
            if ours and plain and ours.peak_memory and plain.peak_memory:
                found = ours.peak_memory / plain.peak_memory
            claim = f"{model}, K = {k}: peak memory of not private"
            yield Verdict(claim, MEMORY, found, most=True)
    for m in record.measurements:
        c = m.case
        if c.suite == "large" and m.contender == "sfumato":
            claim = f"{c.model}, K = {c.views}, B = {c.batch}: peak memory in GiB"
            found = None if m.peak_memory is None else m.peak_memory / 2**30
            yield Verdict(claim, LARGE, found, most=True)


def _foreign(record: Record) -> Iterator[Verdict]:
    """The targets for networks from outside, each case by itself."""
    found: dict[str, dict[str, Measurement]] = {}
    for m in record.measurements:
        if m.case.suite in ("foreign", "unusual"):
            found.setdefault(m.case.key, {})[m.contender] = m
    for every in found.values():
        case = next(iter(every.values())).case
        timed = {name: m for name, m in every.items() if m.times}
        ours = timed.get("sfumato")
        plain, opacus = (
            max((timed[n] for n in names if n in timed), key=lambda m: m.speed or 0, default=None)
            for names in (NOT_PRIVATE, OPACUS)
        )
        title = f"{case.name}, K = {case.views}"
        if case.suite == "foreign":
            wanted = FOREIGN.get(case.views, 0.0) if record.cuda else FOREIGN_CPU
            yield Verdict(f"{title}: views/s of not private", wanted, ratio(ours, plain))
        if case.views == 1 and opacus is not None:
            name = CONTENDERS[opacus.contender]
            wanted = FOREIGN_OVER_OPACUS if record.cuda else 1.0
            yield Verdict(f"{title}: views/s over {name}", wanted, ratio(ours, opacus))
        if record.cuda and case.views in FOREIGN_MEMORY:
            known = ours and plain and ours.peak_memory and plain.peak_memory
            share = ours.peak_memory / plain.peak_memory if known else None  # type: ignore[union-attr, operator]
            claim = f"{title}: peak memory of not private"
            yield Verdict(claim, FOREIGN_MEMORY[case.views], share, most=True)


def _on_cpu(record: Record) -> Iterator[Verdict]:
    index = Index(record.measurements, "float32")
    for model in index.models():
        if 1 in index.views(model):
            yield _over_opacus(index, model, OVER_OPACUS_CPU.get(model, 1.0))


def _over_opacus(index: Index, model: str, wanted: float) -> Verdict:
    ours, theirs = index.get(model, 1, "sfumato"), index.fastest(model, 1, OPACUS)
    name = CONTENDERS[theirs.contender] if theirs else "Opacus"
    return Verdict(f"{model}, K = 1: views/s over {name}", wanted, ratio(ours, theirs))
