"""What a run folder holds, gathered for a reader: whole runs and interrupted ones alike.

*Guarantee:* Epsilon is computed from the ledger, not copied from the statement, and includes the
steps that a run's start took on the same images. A ledger that is missing or damaged gives no
epsilon at all, nor does one that disagrees with what the run or its weights state, and the reader
is told.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from statistics import median
from typing import Any, cast

from sfumato import recipes
from sfumato.data.catalogue import DRAWN, canonical
from sfumato.errors import UserError
from sfumato.privacy.accounting import accountants
from sfumato.privacy.accounting.accountants import AccountantName, Step, merge
from sfumato.privacy.guarantee import Guarantee
from sfumato.privacy.ledger import read as read_ledger
from sfumato.recipe import Recipe, differences, from_record
from sfumato.training import files, metrics, run_guarantee
from sfumato.training.classifier import read_weights
from sfumato.training.initial.start import Origin


@dataclass(frozen=True)
class Run:
    """A run as its folder tells it.

    Attributes:
        folder: The run folder.
        name: What to call it, different from the others shown with it.
        recipe: Its recipe.
        header: The first line of its ledger; empty without one.
        history: The releases in its ledger, equal ones counted together.
        origin: Where its first weights came from.
        records: Its metrics, without the last line.
        final: The last line: accuracy on the test set; empty if the run has not ended.
        statement: Its privacy statement; empty if the run has not ended.
        guarantee: Its guarantee; None if it cannot be established.
        problems: What is wrong with the folder, a sentence each.
    """

    folder: Path
    name: str
    recipe: Recipe
    header: Mapping[str, Any] = field(default_factory=dict)
    history: tuple[Step, ...] = ()
    origin: Origin = field(default_factory=Origin)
    records: tuple[dict[str, Any], ...] = ()
    final: Mapping[str, Any] = field(default_factory=dict)
    statement: str = ""
    guarantee: Guarantee | None = None
    problems: tuple[str, ...] = ()

    @property
    def private(self) -> bool:
        """Whether it was trained with noise."""
        return self.recipe.privacy.enabled

    @property
    def finished(self) -> bool:
        """Whether it came to its end: weights, statement and test accuracy are there."""
        return bool(self.statement) and (self.folder / files.WEIGHTS).is_file()

    @property
    def seeded(self) -> bool:
        """Whether its noise follows from a seed that somebody may know."""
        return self.recipe.training.seed is not None

    @property
    def epsilon(self) -> Mapping[str, float]:
        """Spent, by accountant; empty without privacy, or if it cannot be established."""
        return self.guarantee.epsilon if self.guarantee else {}

    @property
    def spent(self) -> float | None:
        """Epsilon by the accountant that calibrated it, if it is known."""
        return self.epsilon.get(self.recipe.privacy.accountant)

    @property
    def accuracy(self) -> float | None:
        """Accuracy of the released weights on the test set."""
        return number(self.final, "test_accuracy")

    @property
    def steps(self) -> int:
        """Steps taken."""
        if (ended := number(self.final, "step")) is not None:
            return int(ended)
        if self.history:
            return self.counted
        return int(number(self.records[-1], "step") or 0) if self.records else 0

    @property
    def counted(self) -> int:
        """Steps that epsilon counts: more than were taken if results decided when to stop."""
        return sum(step.count for step in self.history)

    @property
    def planned(self) -> int | None:
        """Steps that were to be taken."""
        return int(self.header["steps"]) if "steps" in self.header else None

    @property
    def examples(self) -> int | None:
        """Training images."""
        return int(self.header["examples"]) if "examples" in self.header else None

    @property
    def batch(self) -> float | None:
        """Expected batch."""
        if self.examples is None or "rate" not in self.header:
            return self.recipe.training.batch
        return self.examples * float(self.header["rate"])

    @property
    def seconds(self) -> float | None:
        """Training time so far."""
        times = [number(record, "seconds") for record in (*self.records, self.final)]
        return max((t for t in times if t is not None), default=None)

    @property
    def views_per_second(self) -> float | None:
        """The median over the run's records, as the first hold the start-up, or the whole run's."""
        speeds = [number(record, "views_per_second") for record in self.records]
        found = [speed for speed in speeds if speed]
        return median(found) if found else number(self.final, "views_per_second")

    @property
    def task(self) -> tuple[object, ...]:
        """What accuracies must have in common to be compared: the test images and the classes."""
        d = self.recipe.data
        named = canonical(d.name)
        subset = (d.subset, d.split_seed) if d.subset else ()
        if named is not None:
            return named, *subset
        split = d.test_fraction, d.split_seed, d.split_rule
        return str(Path(d.name).expanduser().absolute()), *split, *subset

    @property
    def data(self) -> str:
        """The data set in a few words."""
        d = self.recipe.data
        name = canonical(d.name) or Path(d.name).name or d.name
        return f"{name} ({d.subset})" if d.subset else name


def gather(folders: Sequence[Path]) -> list[Run]:
    """Read several run folders.

    Raises:
        UserError: If one is no run folder, or is given twice.
    """
    resolved = [folder.resolve() for folder in folders]
    for position, folder in enumerate(resolved):
        if folder in resolved[:position]:
            raise UserError(f"{folders[position]} is given twice: name each run once.")
    return [_read(f, n) for f, n in zip(folders, _names(resolved), strict=True)]


def number(record: Mapping[str, Any], key: str) -> float | None:
    """A finite number of a record, if it has it."""
    value = record.get(key)
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    return float(value) if math.isfinite(value) else None


def _names(folders: Sequence[Path]) -> list[str]:
    """The folders' names, with as many of their parents' as tell them apart."""
    for depth in range(1, max(len(folder.parts) for folder in folders) + 1):
        names = ["/".join(folder.parts[-depth:]) for folder in folders]
        if len(set(names)) == len(names):
            break
    return names


def _read(folder: Path, name: str) -> Run:
    if not folder.is_dir():
        raise UserError(f"There is no run folder {folder}.")
    ledger, settings = folder / files.LEDGER, folder / files.RECIPE
    if not ledger.is_file() and not settings.is_file():
        raise UserError(
            f"{folder} is not a run folder: it holds neither {files.LEDGER} nor {files.RECIPE}. "
            "Give folders that `sfumato train` made, such as runs/digits-001."
        )
    problems: list[str] = []
    header: Mapping[str, Any] = {}
    steps: Sequence[Step] = ()
    try:
        header, steps = read_ledger(ledger)
    except UserError as error:
        problems.append(str(error))
    recipe = _recipe(folder, header, problems)
    if recipe.data.name == DRAWN:
        raise UserError(
            f"{folder} is a start for other runs, trained on images that the program drew: it "
            "classifies nothing. Give a run that started from it."
        )
    records = metrics.read(folder / files.METRICS)
    final: Mapping[str, Any] = next((r for r in reversed(records) if r.get("final")), {})
    run = Run(
        folder, name, recipe, header, merge(steps), Origin.of(header),
        tuple(r for r in records if not r.get("final") and number(r, "step") is not None),
        final, _text(folder / files.STATEMENT),
    )  # fmt: skip
    guarantee = _guarantee(run, problems)
    return replace(run, guarantee=guarantee, problems=tuple(problems))


def _guarantee(run: Run, problems: list[str]) -> Guarantee | None:
    """The guarantee of a run; None, and the reasons, if it cannot be established.

    *Guarantee:* It follows from the ledger, and every file that states one states the same.
    """
    before = len(problems)
    weights: Mapping[str, Any] = {}
    stated = None
    try:
        if (run.folder / files.WEIGHTS).is_file():
            weights, _ = read_weights(run.folder / files.WEIGHTS)
    except UserError as error:
        problems.append(f"{error} No guarantee is stated.")
    try:
        stated = run_guarantee.read(run.folder, run.header, finished=run.finished)
    except UserError as error:
        problems.append(f"{error} No guarantee is stated.")
    if not run.header:
        return None
    ended = number(run.final, "step")
    follows = run_guarantee.guarantee_of(
        run.recipe, run.header, run.history, taken=None if ended is None else int(ended)
    )
    wrong = run_guarantee.differences(
        follows, stated=stated, weights=weights, statement=run.statement
    )
    reported = number(run.final, "epsilon")
    if run.private and reported is not None and not run_guarantee.agree(follows.spent, reported):
        wrong.append(f"the run reported {reported:.4f} when it ended")
    cost = f"epsilon {follows.spent:.4f}" if run.private else "a run without privacy"
    problems += [
        f"The ledger comes to {cost}, but {words}: the folder holds files of different runs, or "
        "one was edited. No guarantee is stated."
        for words in wrong
    ]
    return None if len(problems) > before else stated or follows


def _recipe(folder: Path, header: Mapping[str, Any], problems: list[str]) -> Recipe:
    """The recipe that the ledger states, or the file's where there is no ledger."""
    path = folder / files.RECIPE
    if "recipe" not in header:
        if not path.is_file():
            raise UserError(f"{folder} does not say how it was trained: {' '.join(problems)}")
        return recipes.of_run(folder)
    stated = from_record(header["recipe"], where=str(folder / files.LEDGER))
    if path.is_file():
        changed = differences(stated.to_dict(), recipes.of_run(folder).to_dict())
        if changed:
            problems.append(
                f"{files.RECIPE} was changed after the run began; the ledger's recipe is shown "
                f"instead ({'; '.join(changed[:3])}{' ...' if len(changed) > 3 else ''})."
            )
    return stated


def _epsilon(history: Sequence[Step], delta: float, accountant: str) -> float:
    if not history:
        return 0.0
    return accountants.epsilon(history, delta=delta, accountant=cast(AccountantName, accountant))


def together(runs: Sequence[Run]) -> float | None:
    """What the private ones of several runs spend on the same images if all are made known.

    By PLD, at their common delta; None where there are not at least two with one delta, or where
    two have one seed: they have the same noise then, which cancels between them.
    """
    private = [run for run in runs if run.private and run.epsilon]
    if len(private) < 2 or len({run.recipe.privacy.delta for run in private}) != 1:
        return None
    if share_seed(private):
        return None
    history = [step for run in private for step in (*run.origin.before, *run.history)]
    return _epsilon(merge(history), private[0].recipe.privacy.delta, "pld") if history else None


def share_seed(runs: Sequence[Run]) -> bool:
    """Whether two of the private runs have one stated seed, and so the same noise."""
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
        groups.setdefault(run.task, []).append(run)
    return list(groups.values())


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""
