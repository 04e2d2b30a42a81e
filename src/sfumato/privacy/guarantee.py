"""A privacy guarantee as data, from which statements, pages and auditors' scripts are made.

The JSON of `to_dict` is documented in docs/guarantee.md.
"""

from __future__ import annotations

import math
import platform
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import Any, Self

from sfumato import version
from sfumato.errors import UserError
from sfumato.privacy.accounting.accountants import ACCOUNTANTS, AccountantName, Step, epsilon, merge
from sfumato.privacy.accounting.exposure import Exposure
from sfumato.privacy.accounting.group_privacy import SIZES, group_epsilon
from sfumato.privacy.accounting.selection import Selection
from sfumato.privacy.audit.result import AuditResult
from sfumato.text import UNIT

SCHEMA = 1
"""Version of the JSON; a reader refuses newer ones."""

_OF_AUDITS = ("canaries", "audit")
"""Fields that only the guarantee of a run with canaries has in its JSON."""

_PACKAGES = {"PyTorch": "torch", "dp-accounting": "dp-accounting", "NumPy": "numpy"}


@dataclass(frozen=True, kw_only=True)
class Guarantee:
    """The guarantee of a training run or of an own loop, with everything it follows from.

    Attributes:
        data: Name of the training data.
        private: False for training without noise.
        unit: The unit of privacy: `image`, a word such as `patient`, or `example` in an own loop.
        delta: As in (epsilon, delta).
        accountant: The accountant that calibrated the noise.
        epsilon: Epsilon spent, by accountant, including the steps of the start and the choice among
            several runs, which `rdp` alone can count.
        group_epsilon: The same by number of units of one person, by PLD or, with a choice, from
            that of one; infinite above 100.
        selection: The choice of this run as the best of several; None if there was none.
        run_epsilon: Epsilon without that choice, by accountant; empty if there was none.
        budget: The epsilon that was asked for; None in an own loop.
        examples: Number of training examples N; treated as public.
        batch: Expected batch.
        rate: Sampling probability q of an example in a step; with `balance` the highest.
        steps: The steps that epsilon counts, equal ones together, without those of the start.
        taken: Steps taken; fewer than those counted where results decided when to stop.
        planned: Steps planned; None in an own loop.
        clipping: The clipping rule in words, with its sensitivity.
        clip: The clipping norm C, of the first step if it changes; None without a bound.
        phases: What was trained in which steps, a phrase for each phase; empty if always the same.
        images_per_unit: Most images of a unit in a step, averaged before clipping; 0 for any
            number.
        balance: Shares of q that examples of each class are drawn with, in the order of classes,
            the largest 1; empty if all are drawn with q.
        views: Augmented views per image, averaged before clipping.
        averaged: True if averaged weights were released.
        seeded: True if the random numbers follow from a stated seed.
        noise_source: Generator of the random numbers; empty if it was not recorded.
        public: True if the user declared the training data public.
        batchnorm_to: The layer that replaced every BatchNorm, `groupnorm`; empty if none did.
        train_metrics: True if exact metrics of training batches were written.
        validation: Examples held out for validation; None if their number is not known.
        split: The rule by which examples were held out, in a sentence; empty if it is not known.
        looked: Decisions by looking at examples without noise, a sentence each.
        rates_looked: True if the learning rates were among them.
        tuned: The way in which settings were tuned, in the recipe's words; empty if it has none.
        start: The origin of the initial weights, in words; empty if from scratch.
        start_steps: Steps that the start took on the same examples; `epsilon` counts them.
        start_epsilon: Epsilon of those steps alone, by the accountant of the run.
        start_seeded: True if their noise follows from a stated seed.
        start_names: Other data sets, by name, on which some of them were taken.
        start_looked: As `looked`, for the training of the start.
        exposures: All data sets that the weights depend on, the training data first.
        own_loop: True if the training loop was not sfumato's, which makes it conditional.
        checked: True if the model was checked before the first batch and while training.
        checked_at_end: True if it was also checked with the last weights.
        versions: Versions of the programs that made it, by name.
        digests: SHA-256 of the recipe and of the weights' tensors, where there are files.
        canaries: Examples among N that were added for an audit.
        audit: Its result, if there was one.
    """

    data: str
    private: bool = True
    unit: str = "image"
    delta: float = 0.0
    accountant: str = "pld"
    epsilon: Mapping[str, float] = field(default_factory=dict)
    group_epsilon: Mapping[int, float] = field(default_factory=dict)
    selection: Selection | None = None
    run_epsilon: Mapping[str, float] = field(default_factory=dict)
    budget: float | None = None
    examples: int = 0
    batch: float = 0.0
    rate: float = 0.0
    steps: tuple[Step, ...] = ()
    taken: int = 0
    planned: int | None = None
    clipping: str = ""
    clip: float | None = None
    phases: tuple[str, ...] = ()
    images_per_unit: int = 1
    balance: tuple[float, ...] = ()
    views: int = 1
    averaged: bool = False
    seeded: bool = False
    noise_source: str = "chacha20"
    public: bool = False
    batchnorm_to: str = ""
    train_metrics: bool = False
    validation: int | None = 0
    split: str = ""
    looked: tuple[str, ...] = ()
    rates_looked: bool = False
    tuned: str = ""
    start: str = ""
    start_steps: tuple[Step, ...] = ()
    start_epsilon: float = 0.0
    start_seeded: bool = False
    start_names: tuple[str, ...] = ()
    start_looked: tuple[str, ...] = ()
    exposures: tuple[Exposure, ...] = ()
    own_loop: bool = False
    checked: bool = True
    checked_at_end: bool = True
    versions: Mapping[str, str] = field(default_factory=dict)
    digests: Mapping[str, str] = field(default_factory=dict)
    canaries: int = 0
    audit: AuditResult | None = None

    @classmethod
    def accounted(
        cls,
        *,
        steps: Sequence[Step],
        delta: float,
        accountant: AccountantName = "pld",
        start_steps: Sequence[Step] = (),
        selection: Selection | None = None,
        known_as: str = "",
        others: Sequence[Exposure] = (),
        **facts: Any,
    ) -> Self:
        """The guarantee of noisy steps; every epsilon is computed here, from the steps alone.

        Args:
            steps: The steps taken on the training data.
            delta: As in (epsilon, delta). accountant: The accountant that calibrated the noise.
            start_steps: Steps that the start took on the same data.
            selection: The choice of these steps' run as the best of several.
            known_as: Name of the data in `exposures`; `data` if empty.
            others: Exposures of other data, through the start.
            facts: The other attributes.
        """
        history = (*start_steps, *steps)
        costs: dict[str, float] = {
            name: epsilon(history, delta=delta, accountant=name) for name in ACCOUNTANTS
        }
        if selection is not None:
            facts |= {"run_epsilon": costs}
            costs = {"rdp": selection.epsilon(steps, delta=delta, before=start_steps)}
        found = cls(
            steps=tuple(steps),
            delta=delta,
            accountant=accountant,
            start_steps=tuple(start_steps),
            epsilon=costs,
            selection=selection,
            start_epsilon=epsilon(start_steps, delta=delta, accountant=accountant),
            **facts,
        )
        own = Exposure(
            known_as or found.data, found.public, merge(history), found.epsilon, delta,
            found.seeded or found.start_seeded, also=found.start_names,
            looked=(*found.looked, *found.start_looked), selected=selection is not None,
            unit="image" if found.own_loop else found.unit,
        )  # fmt: skip
        groups = {size: found.epsilon_of(size) for size in SIZES}
        return replace(found, group_epsilon=groups, exposures=(own, *others))

    @property
    def spent(self) -> float:
        """Epsilon by the accountant that calibrated the run; infinite without privacy."""
        return self.epsilon[self.accountant] if self.private else math.inf

    def epsilon_of(self, size: int) -> float:
        """Epsilon of `size` units of one person together; infinite above 100.

        *Guarantee:* an upper bound under the relation that adds or removes all of them.
        """
        if self.selection is None:
            history = (*self.start_steps, *self.steps)
            return group_epsilon(history, delta=self.delta, size=size)
        return self.selection.group_epsilon(
            self.steps, delta=self.delta, size=size, before=self.start_steps
        )

    @property
    def counted(self) -> int:
        """Number of steps that epsilon counts, without those of the start."""
        return sum(step.count for step in self.steps)

    @property
    def relation(self) -> str:
        """The neighbouring relation, with the facts that it treats as public."""
        return (
            f"leaving out one training {self.unit}, its place kept empty (zero-out): the number of "
            f"training {self.unit}s N and the sampling rate q are public and the same either way"
        )

    @property
    def mechanism(self) -> str:
        """The mechanism of a step."""
        return "Poisson-subsampled Gaussian" if self.private else "none"

    def summary(self) -> dict[str, Any]:
        """The part of `to_dict` that weights files hold: no path, no setting."""
        kept: dict[str, Any] = {"private": self.private}
        if self.private:
            kept |= {"epsilon": dict(self.epsilon), "delta": self.delta, "unit": f"one {self.unit}"}
        return kept | {"exposures": [exposure.to_dict() for exposure in self.exposures]}

    def to_dict(self) -> dict[str, Any]:
        """Plain values, for JSON; infinite numbers become None."""
        content = {"schema": SCHEMA, "relation": self.relation, "mechanism": self.mechanism}
        left_out = () if self.canaries else _OF_AUDITS
        return content | {
            f.name: _plain(getattr(self, f.name)) for f in fields(self) if f.name not in left_out
        }

    @classmethod
    def from_dict(cls, content: Any, *, where: str = "The guarantee") -> Self:
        """Read `to_dict` back, strictly.

        Args:
            content: The plain values.
            where: The name of the values in errors, such as a file's name.

        Raises:
            UserError: If anything is missing, unknown, of another type, or contradicts the rest.
        """
        schema = content.get("schema") if isinstance(content, dict) else None
        if type(schema) is int and schema > SCHEMA:
            raise UserError(
                f"{where} was written by a newer version of sfumato (schema {schema}; this version "
                f"reads up to {SCHEMA}): update sfumato to read it."
            )
        try:
            return cls._read(content)
        except (ValueError, TypeError, KeyError, AttributeError, OverflowError, UserError) as error:
            raise UserError(f"{where} is damaged or was edited: {_reason(error)}.") from None

    @classmethod
    def _read(cls, content: Any) -> Self:
        if not isinstance(content, dict) or content.get("schema") != SCHEMA:
            raise ValueError(f"it is no object of schema {SCHEMA}")
        if unknown := content.keys() - _READERS.keys() - {"schema", "relation", "mechanism"}:
            raise ValueError(f"it has an unknown field '{min(map(str, unknown))}'")
        found = {}
        for name, read in _READERS.items():
            if name in (*_LATER, *_OF_AUDITS) and name not in content:
                continue
            if name not in content:
                raise ValueError(f"it has no '{name}'")
            try:
                found[name] = read(content[name])
            except (ValueError, TypeError, KeyError, AttributeError, OverflowError) as error:
                raise ValueError(f"'{name}' cannot be read ({_reason(error)})") from None
        guarantee = cls(**found)
        for name in ("relation", "mechanism"):
            if content.get(name) != getattr(guarantee, name):
                raise ValueError(f"its {name} is not the one of sfumato's guarantees")
        if not re.fullmatch(UNIT, guarantee.unit):
            raise ValueError("its unit of privacy is no plain word")
        known = {"rdp"} if guarantee.selection else {*ACCOUNTANTS}
        if guarantee.private and not {*known, guarantee.accountant} <= {*guarantee.epsilon}:
            raise ValueError("its epsilon lacks an accountant")
        if guarantee.private and not {*SIZES} == {*guarantee.group_epsilon}:
            raise ValueError("its group_epsilon lacks a size")
        return guarantee


def current_versions() -> dict[str, str]:
    """Versions of sfumato and of the libraries that decide the numbers of a guarantee."""
    found = {name: version.of(package) for name, package in _PACKAGES.items()}
    return {"sfumato": version.of(), **found, "Python": platform.python_version()}


def _reason(error: Exception) -> str:
    words = f"no {error}" if isinstance(error, KeyError) else str(error)
    return " ".join(words.split()).rstrip(".")


def _plain(value: Any) -> Any:
    if isinstance(value, Step):
        return {"q": value.q, "sigma": value.noise_multiplier, "count": value.count}
    if isinstance(value, Exposure | Selection | AuditResult):
        return _plain(value.to_dict())
    if isinstance(value, tuple | list):
        return [_plain(item) for item in value]
    if isinstance(value, Mapping):
        return {str(key): _plain(item) for key, item in value.items()}
    return None if isinstance(value, float) and not math.isfinite(value) else value


def _is(kind: type) -> Callable[[Any], Any]:
    def read(value: Any) -> Any:
        if type(value) is not kind:
            raise TypeError(f"it is no {kind.__name__}")
        return value

    return read


def _number(value: Any) -> float:
    if type(value) not in (int, float) or not 0 <= value < 1e300:
        raise TypeError("it is no number from 0 on")
    return float(value)


def _count(value: Any) -> int:
    if type(value) is not int or not 0 <= value < 2**53:
        raise TypeError("it is no whole number from 0 on")
    return value


def _cost(value: Any) -> float:
    return math.inf if value is None else _number(value)


def _optional(read: Callable[[Any], Any]) -> Callable[[Any], Any]:
    return lambda value: None if value is None else read(value)


def _each(read: Callable[[Any], Any]) -> Callable[[Any], tuple[Any, ...]]:
    return lambda value: tuple(map(read, _is(list)(value)))


def _by(
    key: Callable[[str], Any], read: Callable[[Any], Any]
) -> Callable[[Any], Mapping[Any, Any]]:
    return lambda value: {key(name): read(item) for name, item in _is(dict)(value).items()}


def _step(value: Any) -> Step:
    if set(_is(dict)(value)) != {"q", "sigma", "count"}:
        raise ValueError("a step has q, sigma and count")
    return Step(_number(value["q"]), _number(value["sigma"]), _count(value["count"]))


def _exposure(value: Any) -> Exposure:
    return Exposure.from_dict({**value, "epsilon": _by(str, _cost)(value["epsilon"])})


_KINDS: dict[str, Callable[[Any], Any]] = {
    "str": _is(str),
    "bool": _is(bool),
    "int": _count,
    "float": _number,
    "int | None": _optional(_count),
    "float | None": _optional(_number),
    "tuple[str, ...]": _each(_is(str)),
    "tuple[float, ...]": _each(_number),
    "tuple[Step, ...]": _each(_step),
    "tuple[Exposure, ...]": _each(_exposure),
    "Selection | None": _optional(Selection.from_dict),
    "Mapping[str, float]": _by(str, _cost),
    "Mapping[int, float]": _by(int, _cost),
    "Mapping[str, str]": _by(str, _is(str)),
    "AuditResult | None": _optional(AuditResult.from_dict),
}
_LATER = frozenset(("images_per_unit", "balance", "selection", "run_epsilon", "phases"))
"""Fields that files of earlier versions lack; they have the default there."""

_READERS = {f.name: _KINDS[str(f.type)] for f in fields(Guarantee)}
