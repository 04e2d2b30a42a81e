"""Runner of missing results: it resumes interrupted runs and records finished ones."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from pathlib import Path

from sfumato.errors import UserError
from sfumato.io.locks import InUse, alone
from sfumato.recipe import Recipe
from sfumato.recipes import former_names
from sfumato.reproduce import job_order, results_file
from sfumato.reproduce.harvest import harvest
from sfumato.reproduce.job import Job
from sfumato.reproduce.minutes import Estimator
from sfumato.reproduce.results_file import Entry
from sfumato.reproduce.row import Row, Setting
from sfumato.reproduce.verdicts import standing
from sfumato.training import checkpoint, run_folder
from sfumato.training.initial.shared_features import sharing_features
from sfumato.training.loop import Stopped
from sfumato.training.pipeline import resume, train
from sfumato.training.reporter import Progress, Reporter, Silent

Watch = Callable[[], AbstractContextManager[Reporter]]


@dataclass
class Outcome:
    """The outcome of the jobs.

    Attributes:
        done: Results that were recorded.
        interrupted: The job that the time limit stopped, resumable.
        elsewhere: Jobs that another process is running.
        left: Jobs that were not started.
        failed: Jobs that could not be run, with the reason.
    """

    done: list[Entry] = field(default_factory=list)
    interrupted: Job | None = None
    elsewhere: list[Job] = field(default_factory=list)
    left: list[Job] = field(default_factory=list)
    failed: list[tuple[Job, str]] = field(default_factory=list)


class _OutOfTime(Exception):
    """The time limit was reached before, or within, a run."""


class Clock:
    """A time limit that a run checks after each step; it then stops as on Ctrl-C."""

    def __init__(self, minutes: float | None) -> None:
        self._end = None if minutes is None else time.monotonic() + 60 * minutes
        self.asked = False

    @property
    def over(self) -> bool:
        """Tell whether the time is up."""
        return self._end is not None and time.monotonic() >= self._end

    @property
    def left(self) -> float | None:
        """The minutes that are left; None without a limit."""
        return None if self._end is None else max(0.0, self._end - time.monotonic()) / 60

    def check(self) -> None:
        """Ask the current run to stop, once; to be called between its steps."""
        if not self.over or self.asked:
            return
        self.asked = True
        if threading.current_thread() is threading.main_thread():
            signal.raise_signal(signal.SIGTERM)
        else:
            raise _OutOfTime


class _Timed:
    """A reporter that checks the time limit whenever progress is shown."""

    def __init__(self, inner: Reporter, clock: Clock) -> None:
        self._inner, self._clock = inner, clock

    def say(self, message: str) -> None:
        self._inner.say(message)

    def show(self, progress: Progress) -> None:
        self._inner.show(progress)
        if progress.step < progress.steps:
            self._clock.check()


@dataclass(frozen=True, kw_only=True)
class Runner:
    """Folders and settings for runs.

    Attributes:
        results: Folder of the `.jsonl` files.
        runs: Folder of the run folders.
        root: First folder to search for data sets.
        device: `auto`, `cpu`, `cuda` or `mps`.
        precision: `float32` or `bfloat16`, instead of the recipes'.
        clock: The time limit.
        estimator: Estimates the minutes of runs; without one, every run fits into the time limit.
        watch: Makes a reporter for one run.
        say: Called with sentences for the user.
    """

    results: Path
    runs: Path
    root: Path | None = None
    device: str = "auto"
    precision: str | None = None
    clock: Clock = field(default_factory=lambda: Clock(None))
    estimator: Estimator | None = None
    watch: Watch = lambda: nullcontext(Silent())
    say: Callable[[str], None] = lambda _: None

    def missing(
        self,
        rows: Sequence[Row],
        *,
        seeds: int,
        settings: Sequence[Setting],
        part: slice = slice(None),
    ) -> list[Job]:
        """The jobs without a result, seed by seed, so that every row has one before any has two.

        Args:
            rows: The rows.
            seeds: Number of seeds of each.
            settings: The settings to run; each row's usual one if empty.
            part: The part of all jobs, done or not, to consider.
        """
        entries = results_file.read(self.results)
        wanted = [
            (row, s)
            for row in rows
            for s in (row.settings if settings else row.settings[:1])
            if not settings or s in settings
        ]
        done = {
            (row.id, s): {e.seed for e in results_file.of_row(entries, row, s)} for row, s in wanted
        }
        jobs = [Job(row, setting, seed) for seed in range(seeds) for row, setting in wanted]
        return [job for job in jobs[part] if job.seed not in done[job.row.id, job.setting]]

    @sharing_features()
    def run(self, jobs: Sequence[Job], *, after: Callable[[Entry], None]) -> Outcome:
        """Run jobs in order until they are done or the time is up.

        A job that does not fit into the time that is left waits for those that do; if none does,
        one is begun, to go on next time. Jobs that another process is running are skipped, and
        checked again at the end: several processes with the same jobs share them.

        Args:
            jobs: The jobs.
            after: Called with each new result.

        Raises:
            Stopped: If the user asked to stop; the current run is saved.
        """
        outcome, waiting = Outcome(), list(jobs)
        while waiting:
            if self.clock.over:
                outcome.left = list(waiting)
                break
            place = job_order.choose(
                waiting, self.clock.left, minutes=self.minutes, begun=self.begun
            )
            job = waiting.pop(place)
            try:
                self._complete(job, outcome, after, f"{jobs.index(job) + 1} of {len(jobs)}: ")
            except InUse:
                outcome.elsewhere.append(job)
            except (Stopped, _OutOfTime) as stopped:
                if isinstance(stopped, Stopped) and not self.clock.asked:
                    raise
                outcome.interrupted = job
                outcome.left = list(waiting)
                break
            except UserError as error:
                outcome.failed.append((job, str(error)))
                self.say(f"{job} cannot be run: {error}")
            else:
                # Meanwhile other processes may have finished.
                waiting.extend(outcome.elsewhere)
                outcome.elsewhere = []
        return outcome

    def _complete(
        self, job: Job, outcome: Outcome, after: Callable[[Entry], None], place: str = ""
    ) -> Path:
        """Finish a run, and the run that it starts from, and record both."""
        with alone(self.folder(job)):
            return self._alone(job, outcome, after, place)

    def folder(self, job: Job) -> Path:
        """The folder of a run, which version 0.1 may have created under the paper's number."""
        rest = job.folder.relative_to(job.row.paper)
        former = (self.runs / paper / rest for paper in former_names(job.row.paper))
        return next((folder for folder in former if folder.is_dir()), self.runs / job.folder)

    def begun(self, job: Job) -> bool:
        """Tell whether a run was begun and has not come to its end."""
        folder = self.folder(job)
        return run_folder.is_run(folder) and not run_folder.finished(folder)

    def minutes(self, job: Job) -> float:
        """The estimated minutes that a run still takes, with the run that it starts from."""
        folder = self.folder(job)
        if self.estimator is None or run_folder.finished(folder):
            return 0.0
        done = checkpoint.newest_step(folder / run_folder.CHECKPOINTS)
        own = self.estimator.minutes(job.row, job.setting, done=done)
        return own + (self.minutes(job.start) if job.start else 0.0)

    def ordered(self, jobs: Sequence[Job]) -> list[Job]:
        """The jobs by what they are worth per minute; as they are without an estimator."""
        if (estimator := self.estimator) is None:
            return list(jobs)

        def kind(job: Job) -> object:
            work = estimator.work(job.row, job.setting)
            return job.row.id if work is None else work.kind

        entries = results_file.read(self.results)

        def reached(row: Row) -> bool:
            found = standing(row, entries)
            return found is not None and found.reached

        return job_order.ordered(
            jobs, minutes=self.minutes, begun=self.begun, reached=reached, kind=kind
        )

    def _alone(
        self, job: Job, outcome: Outcome, after: Callable[[Entry], None], place: str
    ) -> Path:
        folder, entries = self.folder(job), results_file.read(self.results)
        known = {entry.seed for entry in results_file.of_row(entries, job.row, job.setting)}
        if run_folder.finished(folder) and job.seed in known:
            return folder
        self.say(f"{place}{job}")
        source = None
        if start := job.start:
            source = self._complete(start, outcome, after)
        recipe = self.recipe(job, source)
        if not run_folder.finished(folder):
            if self.clock.over:
                raise _OutOfTime
            self._train(folder, recipe)
        if job.seed not in known:
            entry = harvest(
                folder,
                row=job.row,
                setting=job.setting,
                recipe=recipe,
                seed=job.seed,
                device=self.device,
                root=self.root,
            )
            results_file.append(self.results, entry)
            outcome.done.append(entry)
            after(entry)
        return folder

    def recipe(self, job: Job, source: Path | None = None) -> Recipe:
        """The recipe of a run with its seed, and the run that it starts from.

        Published results are about public images: the metrics of training batches are written.
        """
        recipe = job.row.recipe_for(job.setting)
        changes: dict[str, object] = {"training.seed": job.seed}
        if not recipe.exact_metrics:
            changes["training.train_metrics"] = True
        if self.precision is not None:
            changes["training.precision"] = self.precision
        if source is not None:
            changes |= {"start.source": os.path.relpath(source), **job.row.start_changes()}
        return recipe.replace(changes)

    def _train(self, folder: Path, recipe: Recipe) -> None:
        with self.watch() as watching:
            reporter = _Timed(watching, self.clock)
            if (folder / run_folder.LEDGER).is_file():
                resume(folder, root=self.root, device=self.device, reporter=reporter)
            else:
                train(recipe, out=folder, root=self.root, device=self.device, reporter=reporter)
