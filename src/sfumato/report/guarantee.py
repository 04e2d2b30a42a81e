"""The privacy guarantee of a run: in a sentence, in numbers, and what it leaves out.

*Guarantee:* Nothing here claims more than the run's ledger supports. A run without privacy, without
a readable ledger, without an end, or with noise from a seed says so before any number is shown.
"""

from __future__ import annotations

from sfumato.privacy.statement import (
    LARGE,
    delta_warning,
    factor,
    meaning,
    relation,
    relation_in_full,
    tuning,
    upwards,
)
from sfumato.report.runs import Run
from sfumato.text import power

UNIT = "image"
CHAPTERS = ("Several images of one person", "Against whom")
"""Chapters of a run's statement that pages and cards quote as they are."""
ACCOUNTANTS = {"pld": "PLD (privacy loss distribution)", "rdp": "RDP (Rényi)"}


def in_words(run: Run) -> str:
    """What is guaranteed, in plain words."""
    if not run.private:
        return (
            f"There is no privacy guarantee: the run trained on '{run.data}' without privacy. "
            "Treat its weights like the training images."
        )
    if run.spent is None:
        return (
            "What this run has spent cannot be established, so no guarantee can be stated: its "
            "ledger is missing or damaged."
        )
    delta = power(run.recipe.privacy.delta)
    plainly = meaning(run.spent, run.recipe.privacy.delta, shown=delta)
    if not run.finished:
        secret = "as long as nobody else sees `secret.key`, which lies in the folder until the end"
        condition = "" if run.seeded else f", {secret}"
        return (
            f"The run has not finished. It has spent ε = {upwards(run.spent)} at δ = {delta} so "
            f"far, of {run.recipe.privacy.epsilon:g}; that holds for the weights in its checkpoints"
            f"{condition}. {plainly}"
        )
    return (
        f"The weights satisfy ({upwards(run.spent)}, {delta})-differential privacy with respect to "
        f"{relation(UNIT)} of '{run.data}'. {plainly}"
    )


def facts(run: Run) -> list[tuple[str, str]]:
    """The guarantee in numbers, a row each."""
    if not run.private:
        return [("privacy", "none")]
    p, rows = run.recipe.privacy, [("unit of privacy", f"one {UNIT}")]
    rows.append(("neighbouring relation", relation_in_full(UNIT)))
    for name, words in ACCOUNTANTS.items():
        role = "calibrated the run" if name == p.accountant else "for comparison"
        known = name in run.epsilon
        value = f"{upwards(run.epsilon[name], places=4)} ({role})" if known else "unknown"
        rows.append((f"ε by {words}", value))
    rows += [("budget asked for", f"ε = {p.epsilon:g}"), ("δ", _delta(run))]
    rate, batch = run.header.get("rate"), run.batch
    if rate is not None and batch is not None:
        rows.append(
            (
                "sampler",
                f"Poisson: each image in each step with probability q = {rate:.6g} (expected batch "
                f"{batch:g} of {run.examples})",
            )
        )
    rows += [("noise multiplier σ", _sigma(run)), ("clipping", run.clipping)]
    rows.append(("steps", steps(run)))
    if run.origin.before:
        before = sum(step.count for step in run.origin.before)
        rows.append(("steps of the start, counted in ε", str(before)))
    t = run.recipe.training
    views = t.views + t.self_mix
    rows.append(("views per image", f"{views}{', averaged before clipping' if views > 1 else ''}"))
    return rows


def steps(run: Run) -> str:
    """Steps taken, of how many, and how they were counted."""
    if run.finished and run.counted > run.steps:
        return f"{run.steps}, counted as all {run.counted} that were planned"
    planned = run.planned is not None and run.planned != run.steps
    return f"{run.steps}" + (f" of {run.planned}" if planned else "")


def not_covered(run: Run) -> list[str]:
    """What the guarantee leaves out, as Markdown, a sentence or two each."""
    stated = run.chapter("Not covered")
    if stated:
        return [line.removeprefix("- ") for line in stated.splitlines() if line.startswith("- ")]
    if not run.private:
        return []
    found = [
        "The number of training images and the names of the classes, which are treated as public.",
        tuning(run.recipe.privacy.tuned),
    ]
    if run.recipe.exact_metrics:
        found.append("Loss and accuracy of training batches: they were computed without noise.")
    return found


def warnings(run: Run) -> list[str]:
    """What a reader must know before believing the numbers, as Markdown."""
    found = list(run.problems)
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
    if run.private and run.examples is not None:
        found += filter(None, [delta_warning(run.recipe.privacy.delta, run.examples)])
    if run.private and run.spent is not None and run.spent > LARGE:
        found.append(
            f"**ε = {upwards(run.spent, 3)} is large**: the odds may change by a factor of "
            f"{factor(run.spent)}. As a guarantee on its own, that promises little."
        )
    if not run.finished:
        step = f"after step {run.steps}" + (f" of {run.planned}" if run.planned else "")
        found.insert(
            0, f"**Not finished**: the run stopped {step}. What there is is shown, without test "
            "results.",
        )  # fmt: skip
    return found


def _delta(run: Run) -> str:
    delta = run.recipe.privacy.delta
    if run.examples is None:
        return power(delta)
    return f"{power(delta)} (1/N = {1 / run.examples:.2g} for N = {run.examples} training images)"


def _sigma(run: Run) -> str:
    if not run.history:
        return f"{run.header['sigma']:.6g}" if "sigma" in run.header else "unknown"
    first, last = run.history[0].noise_multiplier, run.history[-1].noise_multiplier
    if len(run.history) == 1:
        return f"{first:.6g}"
    return f"{first:.6g} at first, {last:.6g} at last, by a fixed plan"
