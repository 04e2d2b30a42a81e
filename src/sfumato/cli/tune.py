"""`sfumato tune`: which settings to train with, found without looking at the test set."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from sfumato.cli.parts import parse_part
from sfumato.cli.trust import TRUST_CODE
from sfumato.cli.trust import named as named_code

if TYPE_CHECKING:
    from rich.table import Table

    from sfumato.recipe import Recipe
    from sfumato.training.proposals import Choice, Trial


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command()(tune)


def tune(
    recipe: str = typer.Argument(
        None, help="A packaged recipe, a recipe file, a folder of images, tar shards or an .npz."
    ),
    try_: list[str] = typer.Option(
        [], "--try", metavar="SECTION.NAME=A,B,C",
        help="Values to try for a setting, or a range LOW..HIGH. Every combination is run.",
    ),
    out: Path = typer.Option(
        ..., "--out", "-o", help="Folder of the runs; what it holds is not run again."
    ),
    data: str = typer.Option(None, help="Data set, folder or .npz, instead of the recipe's."),
    set_: list[str] = typer.Option(
        [], "--set", metavar="SECTION.NAME=VALUE", help="Change any setting of the recipe."
    ),
    trials: int = typer.Option(
        None, min=1, help="So many runs, proposed by Optuna, instead of every combination."
    ),
    cheaper: int = typer.Option(
        1, min=1, help="Divide batch and noise by this: nearly the same curves for less work."
    ),
    pruner: str = typer.Option(
        "none",
        help="median or hyperband: stop runs early that are worse on held-out images than others "
        "were after as many steps (by Optuna).",
    ),
    part: str = typer.Option(
        None, metavar="I/N",
        help="Every N-th combination from the I-th on, for computers that share no folder. "
        "Processes that do, share the combinations by themselves.",
    ),
    private: bool = typer.Option(
        False, "--private",
        help="Release only the best of a random number of runs, within one budget.",
    ),
    tuning_mean: float = typer.Option(
        None, help="With --private: mean number of runs, which are drawn; 10 if not given."
    ),
    tuning_distribution: str = typer.Option(
        None, help="With --private: logarithmic (the default), geometric or poisson."
    ),
    score_data: str = typer.Option(
        None, help="With --private: public images to compare runs on, instead of held-out ones."
    ),
    device: str = typer.Option("auto", help="auto, cpu, cuda or mps."),
    data_root: Path = typer.Option(None, help="Where to look for data sets first."),
    trust_code: list[str] = TRUST_CODE,
) -> None:  # fmt: skip
    """Run a recipe with different settings and compare them on held-out training images.

    A tenth of the training images is held out, unless the recipe says otherwise or the data come
    with validation images; the test set is not looked at. What is chosen so is not covered by
    epsilon: the sentence printed at the end belongs into the recipe, so that the statement says it.
    With --private it is: the budget is that of all runs and of the choice, settings are drawn at
    random from lists and ranges, and one run is left.
    """
    from sfumato.cli import tune_private
    from sfumato.recipe import parse_setting
    from sfumato.recipes.choice import choose
    from sfumato.training.proposals import parse_choices

    choices = parse_choices(try_)
    changes = dict(parse_setting(text) for text in set_)
    changes |= {"data.name": data} if data is not None else {}
    chosen = choose(recipe, data, changes, tried=choices)
    trusted = named_code(trust_code, changes, choices)
    options = tune_private.Options(tuning_mean, tuning_distribution, score_data)
    if private:
        tune_private.refuse_adaptive(trials=trials, cheaper=cheaper, part=part, pruner=pruner)
        where = tune_private.Place(out, data_root, device, trusted)
        tune_private.run(chosen, choices, options, where)
        return
    options.refuse()
    asked = Asked(chosen, out, cheaper, data_root, pruner)
    _run(asked, choices, trials, part, device, trusted)


@dataclass(frozen=True)
class Asked:
    """The search that was asked for.

    Attributes:
        recipe: The recipe that is tuned.
        out: The folder of the runs.
        cheaper: Divisor of batch and noise.
        root: Where to look for data sets first.
        pruner: What stops runs early.
    """

    recipe: Recipe
    out: Path
    cheaper: int
    root: Path | None
    pruner: str


def _run(
    asked: Asked,
    choices: Mapping[str, Choice],
    trials: int | None,
    part: str | None,
    device: str,
    trusted: Sequence[str],
) -> None:
    """Run every combination, or what Optuna proposes, and show the results."""
    from sfumato.cli.training_progress import console, watched
    from sfumato.training import tune as tuning
    from sfumato.training.loop import Stopped

    def after(trial: Trial) -> None:
        words = ", ".join(f"{k} = {v}" for k, v in trial.settings.items())
        ended = trial.note or f"{100 * trial.accuracy:.2f} %{_pruned(trial)}"
        line = f"{trial.folder}: {words}: {ended}"
        console.print(line, soft_wrap=True)

    others: list[str] = []

    def elsewhere(folder: str) -> None:
        others.append(folder)
        console.print(f"{folder}: another process is making it.", soft_wrap=True)

    try:
        found = tuning.tune(
            asked.recipe, choices, out=asked.out, trials=trials, cheaper=asked.cheaper,
            part=parse_part(part), root=asked.root, device=device, trust_code=trusted,
            pruner=asked.pruner, watch=watched, after=after, elsewhere=elsewhere,
        )  # fmt: skip
    except Stopped as stopped:
        console.print("Stopped; the same command goes on from here.")
        raise typer.Exit(128 + stopped.signal) from None
    _show(found, asked, others)


def _show(found: Sequence[Trial], asked: Asked, others: Sequence[str]) -> None:
    """Print and draw the runs that have ended, with what they spend together and the best."""
    from sfumato.charts import tuning as picture
    from sfumato.cli.training_progress import console

    if not found:
        words = f"No run of {asked.out} has ended yet; the same command shows them once they have."
        console.print(words, soft_wrap=True)
        return
    ranked = sorted(found, key=lambda trial: (not trial.whole, -trial.accuracy))
    console.print(_table(ranked))
    path = asked.out / "trials.png"
    picture.draw(
        [t.settings for t in found], [t.accuracy for t in found], path,
        title=f"{len(found)} runs of {asked.recipe.name}",
        pruned=[t.pruned is not None for t in found],
    )  # fmt: skip
    if missing := set(others) - {trial.folder for trial in found}:
        _say(
            f"\nOther processes are still at {len(missing)} of the runs: the same command says "
            "what is best, and what belongs into the statement, once they have ended."
        )
        return
    if words := _spending(found, asked):
        _say(words)
    if not ranked[0].whole:
        console.print("\nEvery run diverged: try lower rates.")
        return
    _say(_best(found, ranked[0], asked, path))


def _say(words: str) -> None:
    from sfumato.cli.training_progress import console

    console.print(words, soft_wrap=True)


def _pruned(trial: Trial) -> str:
    """Words on a run that was stopped early; empty for any other."""
    return "" if trial.pruned is None else f" at step {trial.pruned}, pruned"


def _table(ranked: Sequence[Trial]) -> Table:
    """A row for each run, the best first."""
    from rich.table import Table

    from sfumato.privacy.statement import upwards
    from sfumato.training import tune as tuning

    names = list(tuning.tried_of(ranked))
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))
    for name in (*names, "held out", "ε of the run", "seconds", "run"):
        table.add_column(name, justify="left" if name in (*names, "run") else "right")
    for trial in ranked:
        spent = "–" if trial.epsilon is None else upwards(trial.epsilon, places=2)
        result = "diverged" if trial.note else f"{100 * trial.accuracy:.2f} %{_pruned(trial)}"
        values = [str(trial.settings.get(name, "")) for name in names]
        seconds = "–" if trial.seconds is None else f"{trial.seconds:.0f}"
        table.add_row(*values, result, spent, seconds, trial.folder)
    return table


def _spending(found: Sequence[Trial], asked: Asked) -> str:
    """A sentence about what the runs give away together, or empty."""
    from sfumato.privacy.statement import upwards
    from sfumato.report.runs import gather, share_seed, together

    runs = gather([asked.out / trial.folder for trial in found])
    if bare := [run for run in runs if not run.private]:
        return (
            f"\n{len(bare)} of these runs are not private: there is no bound on what they give "
            "away, nor on what choosing by them does."
        )
    if share_seed(runs):
        return (
            "\nThese runs have one seed, and so the same noise, which cancels between them: there "
            "is no bound on what they give away together. Make none of them known but one."
        )
    early = [run for run, trial in zip(runs, found, strict=True) if trial.pruned is not None]
    if (total := together(runs, planned=early)) is None:
        return ""
    counted = ""
    if early and (taken := together(runs)) is not None:
        counted = (
            " That counts every step planned for the runs that were pruned too, because results "
            f"decided when they ended; by the steps taken it would be {upwards(taken, places=3)}."
        )
    return (
        f"\nTogether these runs spend epsilon {upwards(total, places=3)} at delta "
        f"{asked.recipe.privacy.delta:g} (PLD) on the images that they were trained on.{counted} "
        "Those held out are not covered. (--private releases the best of a random number of runs "
        "for less.)"
    )


def _best(found: Sequence[Trial], best: Trial, asked: Asked, picture: Path) -> str:
    """The options of the best run, and the sentence that belongs into its statement."""
    from sfumato.recipe import setting_text
    from sfumato.training import tune as tuning

    options = " ".join(
        f"--set {shlex.quote(f'{key}={setting_text(value)}')}"
        for key, value in best.settings.items()
    )
    sentence = tuning.sentence(found, asked.recipe, cheaper=asked.cheaper, root=asked.root)
    return (
        f"\nBest: {options}\nFor the statement: --set privacy.tuned={shlex.quote(sentence)}\n"
        f"Picture: {picture}"
    )
