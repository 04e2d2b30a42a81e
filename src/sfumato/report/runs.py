"""Several runs shown together: which can be compared, and what they cost in all."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from pathlib import Path

from sfumato.data.catalogue import canonical
from sfumato.errors import UserError
from sfumato.privacy.accounting.accountants import Step, epsilon, merge
from sfumato.privacy.accounting.exposure import steps_from_list
from sfumato.run import Run


def gather(folders: Sequence[Path]) -> list[Run]:
    """Open several run folders, each under a name that tells it from the others.

    Raises:
        UserError: If one is no run folder, is given twice, or classifies nothing.
    """
    resolved = [folder.resolve() for folder in folders]
    for position, folder in enumerate(resolved):
        if folder in resolved[:position]:
            raise UserError(f"{folders[position]} is given twice: name each run once.")
    runs = list(map(Run, folders))
    for run, name in zip(runs, _names(resolved), strict=True):
        run.name = name
        if run.drawn:
            raise UserError(
                f"{run.folder} is a start for other runs, trained on images that the program drew: "
                "it classifies nothing. Give a run that started from it."
            )
    return runs


def _names(folders: Sequence[Path]) -> list[str]:
    """The folders' names, with as many of their parents' as tell them apart."""
    for depth in range(1, max(len(folder.parts) for folder in folders) + 1):
        names = ["/".join(folder.parts[-depth:]) for folder in folders]
        if len(set(names)) == len(names):
            break
    return names


def together(runs: Sequence[Run], *, planned: Collection[Run] = ()) -> float | None:
    """The epsilon that private runs spend together on the same images if all are made known.

    By PLD, at their common delta; None where there are not at least two with one delta, where one
    is the best of several, which PLD cannot count, or where two have one seed: they have the same
    noise then, which cancels between them.

    Args:
        runs: The runs.
        planned: Those of them that count with every step that was planned. The epsilon of the
            steps taken does not hold for a run that results decided the end of.
    """
    private = [run for run in runs if run.private and run.epsilon]
    if len(private) < 2 or len({run.recipe.privacy.delta for run in private}) != 1:
        return None
    if share_seed(private) or any(run.guarantee and run.guarantee.selection for run in private):
        return None
    history = [
        step
        for run in private
        for step in (*run.origin.before, *(_plan(run) if run in planned else run.history))
    ]
    return epsilon(merge(history), delta=private[0].recipe.privacy.delta) if history else None


def _plan(run: Run) -> tuple[Step, ...]:
    """Every step that a run's ledger states to be planned."""
    header = run.header
    if "sigmas" in header:
        return steps_from_list(header["sigmas"])
    return (Step(float(header["rate"]), float(header["sigma"]), int(header["steps"])),)


def share_seed(runs: Sequence[Run]) -> bool:
    """Tell whether two of the private runs have one stated seed, and so the same noise."""
    seeds = [
        run.recipe.training.seed
        for run in runs
        if run.private and run.recipe.training.seed is not None
    ]
    return len(seeds) != len(set(seeds))


def tasks(runs: Sequence[Run]) -> list[list[Run]]:
    """The runs grouped by what was to be learnt, in order of first appearance."""
    groups: dict[tuple[object, ...], list[Run]] = {}
    for run in runs:
        groups.setdefault(_task(run), []).append(run)
    return list(groups.values())


def _task(run: Run) -> tuple[object, ...]:
    """The test images and classes that accuracies must have in common to be compared."""
    d = run.recipe.data
    named = canonical(d.name)
    subset = (d.subset, d.split_seed) if d.subset else ()
    if named is not None:
        return named, *subset
    split = d.test_fraction, d.split_seed, d.split_rule
    return str(Path(d.name).expanduser().absolute()), *split, *subset
