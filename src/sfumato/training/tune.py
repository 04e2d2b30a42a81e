"""Tuning: runs with different settings, compared on images that none of them trains on.

The test set is not used. The choice depends on the training images all the same, and no run's
epsilon covers it: `sentence` states what was tried, for the statement of the run with the chosen
settings.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any, cast

from sfumato.errors import UserError
from sfumato.io import json_lines
from sfumato.io.atomic import write_whole
from sfumato.io.locks import InUse, alone
from sfumato.privacy.accounting.accountants import AccountantName, Step, epsilon
from sfumato.recipe import Recipe, differences
from sfumato.training import metrics, run_folder, setup
from sfumato.training.initial import prior, start
from sfumato.training.initial.shared_features import sharing_features
from sfumato.training.pipeline import resume, train
from sfumato.training.proposals import Choice, Range, Trial, corners, proposals
from sfumato.training.pruning import Pruned, accuracies, check_pruner, pruning
from sfumato.training.recipe_data import dataset_of
from sfumato.training.reporter import Reporter, Silent
from sfumato.training.trouble import Diverged

TRIALS = "trials.jsonl"
ASKED = "tune.json"
VALIDATION = 0.1
"""The fraction of the training set that runs are compared on, unless the recipe sets another."""

_UNBOUNDED = 1e9
"""A budget that no run reaches."""

_LISTED = 6
"""More values than this are summarised by the smallest and the largest."""

_WHICH_IMAGES = {
    "data.name", "data.subset", "data.split_seed", "data.test", "data.test_fraction",
    "data.validation", "data.split_rule",
}  # fmt: skip
"""Settings that decide which images are trained on, held out or tested on."""

_ALL = slice(None)


def lighter(recipe: Recipe, examples: int, factor: int, *, before: tuple[Step, ...] = ()) -> Recipe:
    """The recipe with a fraction of batch and noise, and the same number of steps.

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


@sharing_features()
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
    trust_code: Sequence[str] = (),
    pruner: str = "none",
    watch: Callable[[], AbstractContextManager[Reporter]] = lambda: nullcontext(Silent()),
    after: Callable[[Trial], None] = lambda _: None,
    elsewhere: Callable[[str], None] = lambda _: None,
) -> list[Trial]:
    """Run a recipe with different settings; runs that `out` already holds are not repeated.

    Processes with the same combinations share them: each takes one that no other is running.

    Args:
        recipe: The settings that all runs have in common.
        choices: Values to try, by dotted names: every combination, or Optuna's proposals from
            ranges and from the results so far.
        out: Folder of the runs and their results.
        trials: Number of runs; all combinations if None.
        cheaper: Divide batch and noise by this (`lighter`).
        part: This process's share of all combinations.
        root: First folder to search for data sets.
        device: `auto`, `cpu`, `cuda` or `mps`.
        trust_code: Modules outside sfumato whose models the recipe, or the weights that it starts
            from, may name.
        pruner: One of `pruning.PRUNERS`, which stops runs that are worse than others were.
        watch: Makes a reporter for one run.
        after: Called with each new result.
        elsewhere: Called with the name of each run that another process is making.
    """
    base = checked(recipe, choices)
    check_pruner(pruner)
    if trials is None and any(isinstance(choice, Range) for choice in choices.values()):
        raise UserError("A range has no end of values: say with --trials how many runs to make.")
    if trials is not None and part != _ALL:
        raise UserError("--trials proposes one run after the other: --part is for combinations.")
    done = _opened(out, base, cheaper)
    for trial in done:
        _forget_key(out, trial)  # A kill may have come in between.
    for settings in proposals(choices, done, trials, part):
        chosen = base.replace(settings)
        if cheaper > 1:
            donor = start.open_donor(chosen, trust_code=trust_code)
            spent = donor.origin.before if donor else ()
            examples = dataset_of(chosen.data, root=root).train.examples
            chosen = lighter(chosen, examples, cheaper, before=spent)
        where = out / _name(settings)
        try:
            with alone(where):
                if any(trial.settings == settings for trial in _read(out)):
                    continue
                before = [accuracies(out / one.folder) for one in _read(out) if not one.note]
                with pruning(pruner, before):
                    trial = _run(chosen, settings, where, root, device, trust_code, watch)
                json_lines.append(out / TRIALS, json.dumps(asdict(trial)))
                _forget_key(out, trial)
        except InUse:
            elsewhere(where.name)
            continue
        after(trial)
        done.append(trial)
    return _read(out)


def checked(recipe: Recipe, choices: Mapping[str, Choice]) -> Recipe:
    """The settings that all runs have in common, with images held out and none of the test set.

    Raises:
        UserError: If there is nothing to try, or nothing to compare runs on.
    """
    if not choices:
        raise UserError("Say what to try, such as --try optimizer.lr=1,2,4.")
    if prior.concerns(recipe):
        raise UserError(
            f"'{recipe.data.name}' is drawn by the program, and no images are held out to compare "
            "settings on: tune the private training that starts from it."
        )
    if moving := sorted(_WHICH_IMAGES & choices.keys()):
        raise UserError(
            f"{' and '.join(moving)} cannot be tried: runs are compared on the same held-out "
            "training images, and never on test images."
        )
    held = recipe.data.validation or VALIDATION
    base = recipe.replace({"data.validation": held, "data.test": False})
    for settings in corners(choices):
        base.replace(settings)
    return base


def sentence(
    trials: Sequence[Trial], recipe: Recipe, *, cheaper: int = 1, root: Path | None = None
) -> str:
    """A sentence about what was tried, for `privacy.tuned`."""
    whole = dataset_of(replace(recipe.data, validation=0.0), root=root)
    share = recipe.data.validation or VALIDATION
    held = f"{share:.0%} of the training images, which they were not trained on"
    if whole.validation is not None:
        held = f"the {len(whole.validation)} validation images that come with the data"
    tried = "; ".join(f"{key} {_in_words(values)}" for key, values in tried_of(trials).items())
    light = f" with 1/{cheaper} of batch and noise" if cheaper > 1 else ""
    runs = "one run" if len(trials) == 1 else f"{len(trials)} runs"
    pruned = sum(trial.pruned is not None for trial in trials)
    were = "was" if pruned == 1 else "were"
    some = f", of which {pruned} {were} stopped early," if pruned else ""
    return f"the accuracy of {runs}{light}{some} on {held}: {tried}"


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


def _opened(out: Path, base: Recipe, cheaper: int) -> list[Trial]:
    """Trials in the folder, which must be of the same recipe; a new folder is made."""
    asked = {"recipe": base.to_dict(), "cheaper": cheaper}
    run_folder.refuse_links(out)
    with alone(out, wait=True):
        if not (out / ASKED).is_file():
            run_folder.check_free(out)
            out.mkdir(parents=True, exist_ok=True)
            write_whole(out / ASKED, json.dumps(asked, indent=1).encode())
    try:
        before = json_lines.parse((out / ASKED).read_bytes())
    except ValueError as reason:
        raise UserError(f"{out / ASKED} is damaged ({reason}): choose another --out.") from None
    if not isinstance(before, dict):
        raise UserError(f"{out / ASKED} is damaged (no JSON object): choose another --out.")
    changed = differences(before, json.loads(json.dumps(asked)))
    if changed and not any(out.glob("trial-*")):
        write_whole(out / ASKED, json.dumps(asked, indent=1).encode())
    elif changed:
        raise UserError(
            f"{out} holds runs of another recipe: {'; '.join(changed)}. Choose another --out."
        )
    return _read(out)


def _read(out: Path) -> list[Trial]:
    """Trials that were recorded, by this process or others."""
    path = out / TRIALS
    lines = json_lines.read(path) if path.is_file() else []
    try:
        return [Trial.from_dict(json_lines.parse(line)) for _, line in lines]
    except (ValueError, TypeError) as reason:
        raise UserError(
            f"{path} is damaged ({reason}): remove the line that is no JSON; the run that it was "
            "about is kept and written down again."
        ) from None


def _name(settings: dict[str, Any]) -> str:
    """The name of a run's folder, derived from its settings, so that no two runs share one."""
    digest = hashlib.sha256(json.dumps(settings, sort_keys=True).encode()).hexdigest()
    return f"trial-{digest[:8]}"


def _forget_key(out: Path, trial: Trial) -> None:
    """Delete the key of a run that ended before its last step, and does not go on."""
    if not trial.whole:
        (out / trial.folder / run_folder.KEY).unlink(missing_ok=True)


def _run(
    recipe: Recipe,
    settings: dict[str, Any],
    where: Path,
    root: Path | None,
    device: str,
    trust_code: Sequence[str],
    watch: Callable[[], AbstractContextManager[Reporter]],
) -> Trial:
    """Run one trial, or resume it."""
    try:
        if not run_folder.finished(where):
            with watch() as reporter:
                if (where / run_folder.LEDGER).is_file():
                    resume(
                        where, root=root, device=device, reporter=reporter, trust_code=trust_code
                    )
                else:
                    train(
                        recipe, out=where, root=root, device=device, reporter=reporter,
                        trust_code=trust_code,
                    )  # fmt: skip
    except Pruned as end:
        last = metrics.read(where / run_folder.METRICS)[-1]
        spent, seconds = last.get("epsilon"), last.get("seconds")
        return Trial(settings, end.accuracy, spent, seconds, where.name, pruned=end.step)
    except Diverged as reason:
        note = "It diverged: the loss or the weights grew beyond all bounds."
        if recipe.exact_metrics:
            note = " ".join(str(reason).split())
        return Trial(settings, 0.0, None, 0.0, where.name, note)
    records = metrics.read(where / run_folder.METRICS)
    final = next(record for record in reversed(records) if record.get("final"))
    accuracy, spent = final["validation_accuracy"], final.get("epsilon")
    return Trial(settings, accuracy, spent, final.get("seconds"), where.name)
