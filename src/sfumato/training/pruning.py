"""Runs of a tuning that are stopped early, where others were better after as many steps.

A pruner of Optuna decides by accuracies on validation images. What a run that is stopped has spent
by then is in its ledger, and counts like what others spend.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from sfumato.errors import UserError
from sfumato.io.json_lines import number
from sfumato.privacy import ledger
from sfumato.training import metrics, run_folder

PRUNERS = ("none", "median", "hyperband")

_RUNGS = 27
"""Hyperband compares runs for the first time after the planned steps divided by this."""

_KEPT = 3
"""Reduction factor of hyperband: at each rung about one run of this many is continued."""


class Pruned(Exception):
    """The end of a run that is not worth its further steps.

    Attributes:
        step: The last step.
        accuracy: On validation images then.
    """

    def __init__(self, step: int, accuracy: float) -> None:
        super().__init__(f"stopped after step {step}")
        self.step, self.accuracy = step, accuracy


def check_pruner(name: str) -> None:
    """Refuse a pruner that there is not, or that Optuna is missing for.

    Raises:
        UserError: If it is so.
    """
    if name not in PRUNERS:
        raise UserError(
            f"--pruner must be {', '.join(PRUNERS[:-1])} or {PRUNERS[-1]}, not '{name}'."
        )
    if name == "none":
        return
    try:
        import optuna  # noqa: F401
    except ImportError:
        raise UserError(
            "Pruning needs Optuna: `pip install 'sfumato[tune]'`. Without it every run is taken to "
            "its end: leave --pruner out."
        ) from None


def accuracies(folder: Path) -> dict[int, float]:
    """The accuracies of a run on validation images, by the steps after which they were measured."""
    records = metrics.read(folder / run_folder.METRICS)
    found = {record["step"]: number(record, "validation_accuracy") for record in records}
    return {step: value for step, value in found.items() if value is not None}


@contextmanager
def pruning(name: str, others: Sequence[Mapping[int, float]]) -> Iterator[None]:
    """Stop the run that is made within a `with` block where a pruner says so.

    Args:
        name: One of `PRUNERS`.
        others: The accuracies of the runs before it, as `accuracies` gives them.

    Raises:
        Pruned: From within the run, after its records and its ledger are written.
    """
    if name == "none":
        yield
        return
    judge: _Judge | None = None

    def see(folder: Path, record: dict[str, Any]) -> None:
        nonlocal judge
        if record.get("final") or number(record, "validation_accuracy") is None:
            return
        if judge is None:
            planned = int(ledger.read(folder / run_folder.LEDGER)[0]["steps"])
            judge = _Judge(name, planned, others)
        own = accuracies(folder)
        if judge.stops(own):
            raise Pruned(record["step"], own[record["step"]])

    with metrics.listening(see):
        yield


class _Judge:
    """A study of Optuna in which a run is compared with those before it."""

    def __init__(self, name: str, planned: int, others: Sequence[Mapping[int, float]]) -> None:
        import optuna

        optuna.logging.set_verbosity(optuna.logging.WARNING)
        pruner: Any = optuna.pruners.MedianPruner()
        if name == "hyperband":
            first = max(1, planned // _RUNGS)
            pruner = optuna.pruners.HyperbandPruner(first, planned, _KEPT)
        # Hyperband chooses a bracket by the study's name and the run's number.
        study = optuna.create_study(study_name="sfumato", direction="maximize", pruner=pruner)
        for other in others:
            trial = study.ask()
            # Asked at every step, as it was then: the pruner notes what it compared.
            stopped = [_told(trial, step, value) for step, value in sorted(other.items())]
            if stopped and max(other) < planned:
                study.tell(trial, state=optuna.trial.TrialState.PRUNED)
            elif stopped:
                study.tell(trial, other[max(other)])
        self._planned, self._trial, self._seen = planned, study.ask(), 0

    def stops(self, own: Mapping[int, float]) -> bool:
        """Tell whether the run is to be stopped, by its accuracies so far."""
        stop = False
        for step, value in sorted(own.items()):
            if step > self._seen:
                stop, self._seen = _told(self._trial, step, value), step
        return stop and self._seen < self._planned


def _told(trial: Any, step: int, value: float) -> bool:
    trial.report(value, step)
    return bool(trial.should_prune())
