"""`sfumato tune --private`: the best of a random number of runs, at a cost that is known before."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from sfumato.errors import UserError

if TYPE_CHECKING:
    from sfumato.recipe import Recipe
    from sfumato.training.private_question import Question
    from sfumato.training.private_tuning import Best
    from sfumato.training.proposals import Choice

MEAN = 10.0


@dataclass(frozen=True)
class Options:
    """The options that `--private` has for itself; None where one was not given.

    Attributes:
        mean: Mean number of runs.
        distribution: Distribution of their number.
        score_data: Public images to compare runs on.
    """

    mean: float | None
    distribution: str | None
    score_data: str | None

    def refuse(self) -> None:
        """Refuse them where `--private` was not given.

        Raises:
            UserError: If there is one.
        """
        named = {
            "--tuning-mean": self.mean,
            "--tuning-distribution": self.distribution,
            "--score-data": self.score_data,
        }
        if given := [name for name, value in named.items() if value is not None]:
            raise UserError(f"{' and '.join(given)}: only with --private.")


@dataclass(frozen=True)
class Place:
    """The files and the device of a tuning.

    Attributes:
        out: The folder to make.
        root: Where to look for data sets first.
        device: Where to train.
        trust_code: Modules whose models may be named.
    """

    out: Path
    root: Path | None
    device: str
    trust_code: Sequence[str]


def refuse_adaptive(*, trials: int | None, cheaper: int, part: str | None, pruner: str) -> None:
    """Refuse options of the search that looks at results."""
    if pruner != "none":
        raise UserError(
            "--pruner stops runs by exact results on held-out images, which would be known by the "
            "steps that were taken: with --private every run is taken to its end. Leave it out."
        )
    if trials is not None:
        raise UserError(
            "--trials proposes runs from the results of others, and says how many there are: with "
            "--private settings are drawn independently and the number of runs is secret. Give "
            "--tuning-mean instead."
        )
    if cheaper != 1:
        raise UserError(
            "--cheaper runs spend more than the budget: with --private every run is within it."
        )
    if part is not None:
        raise UserError("--part shares out all combinations: --private draws some, one by one.")


def run(recipe: Recipe, choices: Mapping[str, Choice], options: Options, place: Place) -> None:
    """Solve for the noise, train, and show the best run with what it cost.

    Raises:
        typer.Exit: With 1 if no run was drawn, or the status of a signal.
    """
    from sfumato.cli.training_progress import console
    from sfumato.training.loop import Stopped
    from sfumato.training.private_question import ask
    from sfumato.training.private_tuning import tune_privately

    question = ask(
        recipe, choices, mean=MEAN if options.mean is None else options.mean,
        distribution=options.distribution or "logarithmic", score_data=options.score_data or "",
        root=place.root, trust_code=place.trust_code,
    )  # fmt: skip
    console.print(_announcement(question), soft_wrap=True)
    try:
        with console.status("Tuning: how many runs there are, and which is at work, is secret."):
            best = tune_privately(
                question, out=place.out, root=place.root, device=place.device,
                trust_code=place.trust_code,
            )  # fmt: skip
    except Stopped as stopped:
        console.print(
            "Stopped; the same command goes on from here. The budget was spent by starting. Until "
            f"the end {place.out} holds the key: keep it as secret as the images.",
            soft_wrap=True,
        )
        raise typer.Exit(128 + stopped.signal) from None
    console.print(_result(question, best), soft_wrap=True)
    if best.folder is None:
        raise typer.Exit(1)


def _announcement(question: Question) -> str:
    """The budget of the tuning, before anything is trained."""
    from sfumato.privacy.accounting.accountants import epsilon
    from sfumato.privacy.statement import upwards

    p, s = question.recipe.privacy, question.selection
    history = (*question.before, *question.steps)
    one = epsilon(history, delta=p.delta, accountant="rdp")
    steps = sum(step.count for step in question.steps)
    score = (
        f"exact scores on {question.score_data}, which counts as public"
        if s.score_noise is None
        else f"scores on held-out images with noise of {s.score_noise:g} images"
    )
    return (
        f"Private tuning: {s.mean:g} runs on average ({s.distribution}), {steps:,} steps and "
        f"epsilon {upwards(one, places=3)} each, {score}. The best of them costs epsilon "
        f"{upwards(question.epsilon, places=3)} at delta {p.delta:g} (RDP)."
    )


def _result(question: Question, best: Best) -> str:
    """The best run, or the sentence that there is none."""
    from sfumato.recipe import setting_text

    if best.folder is None:
        return (
            "No run was drawn, which a Poisson distribution allows: there is no model, and the "
            "budget is spent all the same. Other distributions draw one run at least."
        )
    options = " ".join(
        f"--set {shlex.quote(f'{key}={setting_text(value)}')}"
        for key, value in best.settings.items()
    )
    assert best.score is not None
    noisy = "" if question.selection.score_noise is None else " (with noise)"
    return (
        f"Best: {options}\nscore          {100 * best.score:.2f} %{noisy}\n"
        f"files          {best.folder}\nThe statement in it has the cost of the choice; nothing "
        f"else of the runs is left. `sfumato evaluate {shlex.quote(str(best.folder))}` looks at "
        "the test images."
    )
