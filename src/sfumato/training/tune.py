"""Choosing settings: runs with different ones, compared on images that none of them trains on.

The test set is not looked at. What is chosen depends on the training images all the same, and no
run's epsilon covers it: `sentence` says what was tried, for the statement of the run made with it.
"""

from __future__ import annotations

import hashlib
import itertools
import json
import tomllib
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, cast

from sfumato.errors import UserError
from sfumato.locking import InUse, alone
from sfumato.privacy.accounting import AccountantName, Step, epsilon
from sfumato.recipe import Recipe, differences, parse_setting
from sfumato.training import files, metrics, prior, setup, start
from sfumato.training.images import dataset_of
from sfumato.training.reporter import Reporter, Silent
from sfumato.training.run import resume, train
from sfumato.training.trouble import Diverged

TRIALS = "trials.jsonl"
ASKED = "tune.json"
VALIDATION = 0.1
"""The part of the training set that runs are compared on, unless the recipe holds out another."""

_UNBOUNDED = 1e9
"""A budget that no run reaches."""

_LISTED = 6
"""More numbers than this are told by the smallest and the largest."""

_WHICH_IMAGES = {
    "data.name", "data.subset", "data.split_seed", "data.test", "data.test_fraction",
    "data.validation",
}  # fmt: skip
"""Settings that decide which images are trained on, held out or tested on."""

_ALL = slice(None)

_SEEDS = 20
"""Proposals to look at for one that was not tried."""


@dataclass(frozen=True)
class Range:
    """All numbers between two, on a logarithmic scale if both are positive; whole ones if both are.

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
        settings: What it was run with, by dotted names.
        accuracy: On validation images, of averaged weights if they are kept; 0 if it diverged.
        epsilon: What it spent by itself; None without privacy.
        seconds: Training time.
        folder: Its run folder, within that of all trials.
        note: Why it has no accuracy, or nothing.
    """

    settings: dict[str, Any]
    accuracy: float
    epsilon: float | None
    seconds: float
    folder: str
    note: str = ""


def parse_choice(text: str) -> tuple[str, Choice]:
    """`optimizer.lr=1,2,4` or `optimizer.lr=0.5..8` as a name and what to try for it."""
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
    """Several of what `parse_choice` takes."""
    choices: dict[str, Choice] = {}
    for key, choice in map(parse_choice, texts):
        if key in choices:
            raise UserError(
                f"--try {key} is given twice: list its values after one --try, as in "
                f"--try {key}=A,B."
            )
        choices[key] = choice
    return choices


def lighter(recipe: Recipe, examples: int, factor: int, *, before: tuple[Step, ...] = ()) -> Recipe:
    """The recipe with a fraction of batch and noise, and as many steps.

    The noise on the mean gradient stays what it was, and the learning curve nearly so (Sander et
    al., 2023), for a fraction of the work. The run itself spends far more than the budget.
    """
    if not recipe.privacy.enabled:
        raise UserError("Only private runs can be tried with a fraction of their batch and noise.")
    plan = setup.plan(recipe, examples, before=before)
    batch = round(plan.sampler.batch / factor)
    if batch < 1:
        raise UserError(f"A batch of {plan.sampler.batch:g} cannot be divided by {factor}.")
    light = recipe.replace(
        {
            "training.batch": batch,
            "training.steps": plan.steps,
            "privacy.noise_multiplier": plan.noise.multiplier * batch / plan.sampler.batch,
            "privacy.epsilon": _UNBOUNDED,
        }
    )
    p, history = recipe.privacy, setup.plan(light, examples).history(plan.steps)
    spent = epsilon(
        [*before, *history], delta=p.delta, accountant=cast(AccountantName, p.accountant)
    )
    return light.replace({"privacy.epsilon": 1.001 * spent})


def tune(
    recipe: Recipe,
    choices: Mapping[str, Choice],
    *,
    out: Path,
    trials: int | None = None,
    cheaper: int = 1,
    part: slice = _ALL,
    root: Path | None = None,
    device: str = "auto",
    watch: Callable[[], AbstractContextManager[Reporter]] = lambda: nullcontext(Silent()),
    after: Callable[[Trial], None] = lambda _: None,
    elsewhere: Callable[[str], None] = lambda _: None,
) -> list[Trial]:
    """Run a recipe with different settings; what was run into `out` before is not run again.

    Processes that are given the same combinations share them: each takes what no other is at.

    Args:
        recipe: What all runs have in common.
        choices: Values to try, by dotted names: every combination, or what Optuna proposes from
            ranges and from the results so far.
        out: Folder of the runs and their results.
        trials: How many runs; all combinations if None.
        cheaper: Divide batch and noise by this (`lighter`).
        part: Of all combinations, the share of this process.
        root: Where to look for data sets first.
        device: `auto`, `cpu`, `cuda` or `mps`.
        watch: Makes a reporter for one run.
        after: Called with each new result.
        elsewhere: Called with the name of each run that another process is making.
    """
    if not choices:
        raise UserError("Say what to try, such as --try optimizer.lr=1,2,4.")
    if prior.concerns(recipe):
        raise UserError(
            f"'{recipe.data.name}' is drawn by the program, and no images are held out to compare "
            "settings on: tune the private training that starts from it."
        )
    for key in _WHICH_IMAGES & choices.keys():
        raise UserError(
            f"{key} cannot be tried: runs are compared on the same held-out training images, and "
            "never on test images."
        )
    held = recipe.data.validation or VALIDATION
    base = recipe.replace({"data.validation": held, "data.test": False})
    for settings in _corners(choices):
        base.replace(settings)
    if trials is None and any(isinstance(choice, Range) for choice in choices.values()):
        raise UserError("A range has no end of values: say with --trials how many runs to make.")
    if trials is not None and part != _ALL:
        raise UserError("--trials proposes one run after the other: --part is for combinations.")
    done = _opened(out, base, cheaper)
    for settings in _proposals(choices, done, trials, part):
        chosen = base.replace(settings)
        if cheaper > 1:
            donor = start.open_donor(chosen)
            before = donor.origin.before if donor else ()
            examples = len(dataset_of(chosen.data, root=root).train)
            chosen = lighter(chosen, examples, cheaper, before=before)
        where = out / _name(settings)
        try:
            with alone(where):
                if any(trial.settings == settings for trial in _read(out)):
                    continue
                trial = _run(chosen, settings, where, root, device, watch)
                with (out / TRIALS).open("a", encoding="utf-8") as file:
                    file.write(json.dumps(asdict(trial)) + "\n")
        except InUse:
            elsewhere(where.name)
            continue
        after(trial)
        done.append(trial)
    return _read(out)


def sentence(
    trials: Sequence[Trial], recipe: Recipe, *, cheaper: int = 1, root: Path | None = None
) -> str:
    """What was tried, in words, for `privacy.tuned`."""
    whole = dataset_of(replace(recipe.data, validation=0.0), root=root)
    share = recipe.data.validation or VALIDATION
    held = f"{share:.0%} of the training images, which they were not trained on"
    if whole.validation is not None:
        held = f"the {len(whole.validation)} validation images that come with the data"
    tried = "; ".join(f"{key} {_in_words(values)}" for key, values in tried_of(trials).items())
    light = f" with 1/{cheaper} of batch and noise" if cheaper > 1 else ""
    runs = "one run" if len(trials) == 1 else f"{len(trials)} runs"
    return f"the accuracy of {runs}{light} on {held}: {tried}"


def tried_of(trials: Sequence[Trial]) -> dict[str, list[Any]]:
    """The values that runs were made with, each once, by the names of their settings."""
    found: dict[str, list[Any]] = {}
    for trial in trials:
        for key, value in trial.settings.items():
            if value not in found.setdefault(key, []):
                found[key].append(value)
    return found


def _in_words(values: Sequence[Any]) -> str:
    if all(isinstance(value, int | float) for value in values):
        values = sorted(values)
        if len(values) > _LISTED:
            return f"between {values[0]:g} and {values[-1]:g}"
    return ", ".join(f"{value:g}" if isinstance(value, float) else str(value) for value in values)


def _corners(choices: Mapping[str, Choice]) -> Iterator[dict[str, Any]]:
    """Settings that show whether every value is allowed, each key by itself."""
    for key, choice in choices.items():
        values = (choice.low, choice.high) if isinstance(choice, Range) else choice
        if not values:
            raise UserError(f"--try {key}= names no value.")
        yield from ({key: value} for value in values)


def _opened(out: Path, base: Recipe, cheaper: int) -> list[Trial]:
    """Trials that the folder holds, which must be of the same recipe; a new folder is made."""
    asked = {"recipe": base.to_dict(), "cheaper": cheaper}
    with alone(out, wait=True):
        if not (out / ASKED).is_file():
            files.check_free(out)
            out.mkdir(parents=True, exist_ok=True)
            files.write_whole(out / ASKED, json.dumps(asked, indent=1).encode())
    before = json.loads((out / ASKED).read_text(encoding="utf-8"))
    changed = differences(before, json.loads(json.dumps(asked)))
    if changed and not any(out.glob("trial-*")):
        files.write_whole(out / ASKED, json.dumps(asked, indent=1).encode())
    elif changed:
        raise UserError(
            f"{out} holds runs of another recipe: {'; '.join(changed)}. Choose another --out."
        )
    return _read(out)


def _read(out: Path) -> list[Trial]:
    """What was written down, by this process or others."""
    path = out / TRIALS
    lines = path.read_text(encoding="utf-8").splitlines() if path.is_file() else []
    try:
        return [Trial(**json.loads(line)) for line in lines]
    except (ValueError, TypeError) as reason:
        raise UserError(
            f"{path} is damaged ({reason}): remove the line that is no JSON; the run that it was "
            "about is kept and written down again."
        ) from None


def _proposals(
    choices: Mapping[str, Choice], done: list[Trial], trials: int | None, part: slice
) -> Iterator[dict[str, Any]]:
    """Settings to run next, given those that were run, until there are enough."""
    known = [trial.settings for trial in done]
    if trials is None:
        lists = [list(c) for c in choices.values() if not isinstance(c, Range)]
        every = [dict(zip(choices, values, strict=True)) for values in itertools.product(*lists)]
        yield from (settings for settings in every[part] if settings not in known)
        return
    own = [trial for trial in done if trial.settings.keys() == choices.keys()]
    for number in range(len(own), trials):
        # A sampler may propose what was tried before; another seed then proposes something else.
        asked = (_asked(choices, done, seed) for seed in range(number, _SEEDS * trials, trials))
        settings = next((found for found in asked if found not in known), None)
        if settings is None:
            return
        known.append(settings)
        yield settings


def _asked(choices: Mapping[str, Choice], done: Sequence[Trial], seed: int) -> dict[str, Any]:
    """What Optuna's sampler proposes after these results."""
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
                study.add_trial(
                    optuna.trial.create_trial(
                        params=known, distributions=spaces, value=trial.accuracy
                    )
                )
    return {k: _value(choices[k], v) for k, v in study.ask(spaces).params.items()}


def _value(choice: Choice, proposed: Any) -> Any:
    """What Optuna's proposal means: a place in a list, or a number, of which 3 digits will do."""
    if not isinstance(choice, Range):
        return choice[proposed]
    rounded = proposed if isinstance(proposed, int) else float(f"{proposed:.3g}")
    return min(max(rounded, choice.low), choice.high)


def _position(choice: Choice, value: Any) -> Any:
    """The value as Optuna knows it: its place in a list; None if it is not to be tried any more."""
    if isinstance(choice, Range):
        return value if choice.low <= value <= choice.high else None
    return list(choice).index(value) if value in choice else None


def _name(settings: dict[str, Any]) -> str:
    """Of a run's folder: it follows from its settings, so that none goes on with another's."""
    digest = hashlib.sha256(json.dumps(settings, sort_keys=True).encode()).hexdigest()
    return f"trial-{digest[:8]}"


def _run(
    recipe: Recipe,
    settings: dict[str, Any],
    where: Path,
    root: Path | None,
    device: str,
    watch: Callable[[], AbstractContextManager[Reporter]],
) -> Trial:
    """One run, from where it was left."""
    try:
        if not files.finished(where):
            with watch() as reporter:
                if (where / files.LEDGER).is_file():
                    resume(where, root=root, device=device, reporter=reporter)
                else:
                    train(recipe, out=where, root=root, device=device, reporter=reporter)
    except Diverged as reason:
        (where / files.KEY).unlink(missing_ok=True)
        return Trial(settings, 0.0, None, 0.0, where.name, " ".join(str(reason).split()))
    records = metrics.read(where / files.METRICS)
    final = next(record for record in reversed(records) if record.get("final"))
    accuracy, spent = final["validation_accuracy"], final.get("epsilon")
    return Trial(settings, accuracy, spent, final["seconds"], where.name)
