"""Settings to try next: every combination, or proposals of Optuna from the results so far."""

from __future__ import annotations

import itertools
import math
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sfumato.errors import UserError
from sfumato.recipe import parse_setting

_SEEDS = 20
"""Most proposals to ask for one that was not tried."""


@dataclass(frozen=True)
class Range:
    """A range of numbers, logarithmic if both ends are positive, of integers if both are integers.

    Attributes:
        low: The smallest.
        high: The largest.
    """

    low: float
    high: float


Choice = Sequence[Any] | Range


@dataclass(frozen=True)
class Trial:
    """A run with some of the settings.

    Attributes:
        settings: Its settings, by dotted names.
        accuracy: On validation images, of averaged weights if there are any; 0 if it diverged.
        epsilon: Epsilon of the run by itself; None without privacy.
        seconds: Training time; None if its run does not state it.
        folder: Its run folder, within that of all trials.
        note: The reason why it has no accuracy, or nothing.
        pruned: The step after which it was stopped, because others were better then; None if it
            came to its end. Accuracy and epsilon are those of that step.
    """

    settings: dict[str, Any]
    accuracy: float
    epsilon: float | None
    seconds: float | None
    folder: str
    note: str = ""
    pruned: int | None = None

    @property
    def whole(self) -> bool:
        """Tell whether it came to its end, so that it can be the best."""
        return not self.note and self.pruned is None

    @classmethod
    def from_dict(cls, content: Mapping[str, Any]) -> Trial:
        """Read plain values back.

        Raises:
            ValueError: If a value has the wrong type.
            TypeError: If the fields differ.
        """
        trial = cls(**content)
        optional = [value for value in (trial.seconds, trial.epsilon) if value is not None]
        numbers = [trial.accuracy, *optional]
        if not all(type(value) in (int, float) and abs(value) < 1e300 for value in numbers):
            raise ValueError("a number is none")
        if not isinstance(trial.settings, dict) or not isinstance(trial.note, str):
            raise ValueError("the settings are no table")
        if (
            not isinstance(trial.folder, str)
            or Path(trial.folder).name != trial.folder
            or (trial.folder in ("", ".."))
        ):
            raise ValueError("the folder is not one of the trials'")
        if trial.pruned is not None and (type(trial.pruned) is not int or trial.pruned < 0):
            raise ValueError("the step is no whole number")
        return trial


def parse_choice(text: str) -> tuple[str, Choice]:
    """Parse `optimizer.lr=1,2,4` or `optimizer.lr=0.5..8` to a name and its values or range."""
    key, found, raw = text.partition("=")
    if not found or not key.strip() or not raw.strip():
        raise UserError(
            "--try takes SECTION.NAME=A,B,C or SECTION.NAME=LOW..HIGH, such as "
            f"optimizer.lr=1,2,4, not '{text}'."
        )
    ends = [parse_setting(f"v={part}")[1] for part in raw.split("..")]
    if len(ends) == 2:
        low, high = ends
        if not all(isinstance(end, int | float) for end in ends) or not low < high:
            raise UserError(f"--try {text}: a range is two numbers, the smaller one first.")
        return key.strip(), Range(low, high)
    try:
        values = tomllib.loads(f"v = [{raw}]")["v"]
    except tomllib.TOMLDecodeError:
        values = [parse_setting(f"v={part}")[1] for part in raw.split(",")]
    return key.strip(), values


def parse_choices(texts: Sequence[str]) -> dict[str, Choice]:
    """Parse several texts by `parse_choice`."""
    choices: dict[str, Choice] = {}
    for key, choice in map(parse_choice, texts):
        if key in choices:
            raise UserError(
                f"--try {key} is given twice: list its values after one --try, as in "
                f"--try {key}=A,B."
            )
        choices[key] = choice
    return choices


def corners(choices: Mapping[str, Choice]) -> Iterator[dict[str, Any]]:
    """Settings that together contain every value to be tried, one key at a time."""
    for key, choice in choices.items():
        values = (choice.low, choice.high) if isinstance(choice, Range) else choice
        if not values:
            raise UserError(f"--try {key}= names no value.")
        yield from ({key: value} for value in values)


def proposals(
    choices: Mapping[str, Choice], done: list[Trial], trials: int | None, part: slice
) -> Iterator[dict[str, Any]]:
    """Settings to run next, given those that were run, up to a number of trials."""
    known = [trial.settings for trial in done]
    if trials is None:
        lists = [list(c) for c in choices.values() if not isinstance(c, Range)]
        every = [dict(zip(choices, values, strict=True)) for values in itertools.product(*lists)]
        yield from (settings for settings in every[part] if settings not in known)
        return
    own = [trial for trial in done if trial.settings.keys() == choices.keys()]
    for number in range(len(own), trials):
        # A sampler may repeat a proposal; another seed then proposes something else.
        asked = (_asked(choices, done, seed) for seed in range(number, _SEEDS * trials, trials))
        settings = next((found for found in asked if found not in known), None)
        if settings is None:
            return
        known.append(settings)
        yield settings


def drawn(choices: Mapping[str, Choice], uniforms: Sequence[float]) -> dict[str, Any]:
    """Settings drawn independently: an entry of each list, a number of each range.

    Ranges are logarithmic if both ends are positive. Nothing but the random numbers decides.

    Args:
        choices: Values to try, by dotted names.
        uniforms: A uniform random number from [0, 1) for each.
    """
    found = {}
    for (key, choice), uniform in zip(choices.items(), uniforms, strict=True):
        if not isinstance(choice, Range):
            found[key] = choice[int(uniform * len(choice))]
            continue
        whole = isinstance(choice.low, int) and isinstance(choice.high, int)
        ends = choice.low, choice.high + whole
        if choice.low > 0:
            number = math.exp(math.log(ends[0]) + uniform * math.log(ends[1] / ends[0]))
        else:
            number = ends[0] + uniform * (ends[1] - ends[0])
        found[key] = _value(choice, math.floor(number) if whole else number)
    return found


def _asked(choices: Mapping[str, Choice], done: Sequence[Trial], seed: int) -> dict[str, Any]:
    """The proposal of Optuna's sampler after these results."""
    try:
        import optuna
    except ImportError:
        raise UserError(
            "Searching needs Optuna: `pip install 'sfumato[tune]'`. Without it, list the values to "
            "try and leave --trials out."
        ) from None
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    kinds: Any = optuna.distributions
    spaces: dict[str, Any] = {}
    for key, choice in choices.items():
        if isinstance(choice, Range):
            whole = isinstance(choice.low, int) and isinstance(choice.high, int)
            made = kinds.IntDistribution if whole else kinds.FloatDistribution
            spaces[key] = made(choice.low, choice.high, log=choice.low > 0)
        else:
            spaces[key] = kinds.CategoricalDistribution(range(len(choice)))
    sampler = optuna.samplers.TPESampler(seed=seed)
    study = optuna.create_study(direction="maximize", sampler=sampler)
    for trial in done:
        if trial.settings.keys() == choices.keys():
            known = {k: _position(choices[k], v) for k, v in trial.settings.items()}
            if None not in known.values():
                ended: dict[str, Any] = {"value": trial.accuracy}
                if trial.pruned is not None:
                    values = {trial.pruned: trial.accuracy}
                    state = optuna.trial.TrialState.PRUNED
                    ended = {"state": state, "intermediate_values": values}
                study.add_trial(
                    optuna.trial.create_trial(params=known, distributions=spaces, **ended)
                )
    return {k: _value(choices[k], v) for k, v in study.ask(spaces).params.items()}


def _value(choice: Choice, proposed: Any) -> Any:
    """The value of Optuna's proposal: an entry of a list, or a number rounded to 3 digits."""
    if not isinstance(choice, Range):
        return choice[proposed]
    rounded = proposed if isinstance(proposed, int) else float(f"{proposed:.3g}")
    return min(max(rounded, choice.low), choice.high)


def _position(choice: Choice, value: Any) -> Any:
    """The value as Optuna stores it: its position in a list, or None if it is no longer tried."""
    if isinstance(choice, Range):
        return value if choice.low <= value <= choice.high else None
    return list(choice).index(value) if value in choice else None
