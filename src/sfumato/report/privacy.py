"""A run's guarantee in a sentence, and the warnings that a reader must see first.

*Guarantee:* Nothing here claims more than the run's ledger supports. A run without privacy, without
a readable ledger, without an end, or with noise from a seed says so before any number is shown.
"""

from __future__ import annotations

from sfumato.privacy import statement_chapters
from sfumato.privacy.statement import LARGE, delta_warning, factor, meaning, relation, upwards
from sfumato.run import Run
from sfumato.text import power
from sfumato.training import metrics
from sfumato.training.run_folder import METRICS, WEIGHTS


def lead(run: Run) -> str:
    """The guarantee in plain words."""
    if not run.private:
        return (
            f"There is no privacy guarantee: the run trained on '{run.data}' without privacy. "
            "Treat its weights like the training images."
        )
    g = run.guarantee
    if g is None:
        return (
            "What this run has spent cannot be established, so no guarantee can be stated: its "
            "ledger is missing or damaged."
        )
    delta = power(g.delta)
    plainly = meaning(g.spent, g.delta, unit=g.unit, shown=delta)
    if not run.finished and not run.weights_removed:
        secret = "as long as nobody else sees `secret.key`, which lies in the folder until the end"
        condition = "" if g.seeded else f", {secret}"
        return (
            f"The run has not finished. It has spent ε = {upwards(g.spent)} at δ = {delta} so "
            f"far, of {g.budget:g}; that holds for the weights in its checkpoints{condition}. "
            f"{plainly}"
        )
    return (
        f"The weights satisfy ({upwards(g.spent)}, {delta})-differential privacy with respect to "
        f"{relation(g.unit)} of '{run.data}'. {plainly}"
    )


def steps(run: Run) -> str:
    """Steps taken, of how many, and how they were counted."""
    g = run.guarantee
    return statement_chapters.steps(g) if g is not None and g.private else str(run.steps)


def missing_metrics(run: Run) -> str:
    """A sentence on records that a finished run has lost; empty if it has all, or goes on."""
    lost = metrics.damaged(run.folder / METRICS)
    if not run.statement or (run.final and not lost):
        return ""
    if run.final:
        return f"{lost} lines of {METRICS} cannot be read, so that curves lack these records."
    last = f"after step {run.records[-1]['step']}" if run.records else "before the first record"
    return (
        f"{METRICS} ends {last}, though the run went on: curves lack the rest, and the accuracy "
        "that the run found at its end is not known."
    )


def warnings(run: Run) -> list[str]:
    """Warnings that a reader must see before the numbers, as Markdown."""
    found, g = list(run.problems), run.guarantee
    if not run.private:
        found.insert(0, "**Not private.** This run was trained without noise.")
    elif run.seeded:
        found.append(
            "**Not private: the noise follows from a seed** that is in the recipe. Anyone who "
            "knows or guesses it, or sees two models of one seed, can subtract the noise; the "
            "guarantee holds only towards people who do neither. Train without a seed before "
            "releasing a model of secret images."
        )
    elif run.origin.seeded:
        found.append(
            "**The noise of the start follows from a seed**: towards people who know it, the steps "
            "of the start are not private."
        )
    if g is not None and g.private:
        found += filter(None, [delta_warning(g.delta, g.examples, unit=g.unit)])
        if g.spent > LARGE:
            found.append(
                f"**ε = {upwards(g.spent, 3)} is large**: the odds may change by a factor of "
                f"{factor(g.spent)}. As a guarantee on its own, that promises little."
            )
    if lacking := missing_metrics(run):
        found.append(f"**Metrics are missing**: {lacking}")
    if run.weights_removed:
        found.insert(
            0, f"**Without weights**: the run has finished, but its {WEIGHTS} was removed."
        )
    elif not run.finished:
        step = f"after step {run.steps}" + (f" of {run.planned}" if run.planned else "")
        found.insert(
            0, f"**Not finished**: the run stopped {step}. What there is is shown, without test "
            "results.",
        )  # fmt: skip
    return found
