"""`sfumato reproduce`: run the papers' results again, and set ours beside theirs."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from sfumato.cli.parts import parse_part
from sfumato.cli.terminal import echo
from sfumato.errors import UserError
from sfumato.live import working

if TYPE_CHECKING:
    from sfumato.reproduce.job import Job
    from sfumato.reproduce.minutes import Estimator
    from sfumato.reproduce.results_file import Entry
    from sfumato.reproduce.row import Setting
    from sfumato.reproduce.runner import Outcome, Runner
    from sfumato.training.reporter import Reporter


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command()(reproduce)


def reproduce(
    what: list[str] = typer.Argument(
        None,
        metavar="[PAPER[/ROW]]...",
        help="What to run, such as equivariant, shoe-fit/fashion-tanh or 'shoe-fit/\\*cifar10\\*'.",
    ),
    seeds: int = typer.Option(3, min=1, help="Runs per row, with seeds 0, 1, 2 and so on."),
    setting: str = typer.Option(
        None,
        help="published: noise as in the paper; best: calibrated to the whole budget by PLD, and "
        "our improvements; both. Each row's usual one if not given.",
    ),
    budget_minutes: float = typer.Option(
        None,
        min=0,
        help="Run the most valuable results per minute, of every row if none is named, and stop "
        "after so many minutes; the next call goes on from there. With --list: show their order.",
    ),
    part: str = typer.Option(
        None,
        metavar="I/N",
        help="Every N-th run from the I-th on, for computers that share no folder. Processes that "
        "do, share the runs by themselves.",
    ),
    list_: bool = typer.Option(False, "--list", help="List the rows, run nothing."),
    render: bool = typer.Option(False, "--render", help="Only write the tables and figures."),
    results: Path = typer.Option(Path("results"), help="Folder of the results, one line per run."),
    docs: Path = typer.Option(Path("docs/results"), help="Folder of the tables and figures."),
    runs: Path = typer.Option(Path("runs/reproduce"), help="Folder of the run folders."),
    device: str = typer.Option("auto", help="auto, cpu, cuda or mps."),
    precision: str = typer.Option(None, help="float32, or bfloat16 on a CUDA device."),
    data_root: Path = typer.Option(None, help="Where to look for data sets first."),
) -> None:
    """Run published results again, from packaged recipes, and compare.

    Without arguments: every paper and row, and how far it is. What is done is not run again, what
    was interrupted goes on first, and rows with a published number come before others, those of few
    minutes first.
    """
    from sfumato.reproduce.lookup import every_row, find_all

    chosen = _settings(setting)
    rows = find_all(what) if what else list(every_row().values())
    if render:
        _render(results, docs)
        return
    estimator = _estimator(results, device, precision)
    shows = list_ or (not what and budget_minutes is None)
    if shows:
        from sfumato.cli import reproduce_list

        reproduce_list.show(rows, results, seeds, estimator)
        if budget_minutes is None:
            return

    from sfumato.reproduce.runner import Clock, Runner

    runner = Runner(
        results=results, runs=runs, root=data_root, device=device, precision=precision,
        clock=Clock(budget_minutes), estimator=estimator, watch=_watch, say=_say,
    )  # fmt: skip
    jobs = runner.missing(rows, seeds=seeds, settings=chosen, part=parse_part(part))
    if not jobs:
        named = ", ".join(what) if what else "every row"
        _say(f"Nothing is missing: {named} has {seeds} seeds of everything. --seeds asks for more.")
        return
    with working("estimating the minutes of runs"):
        jobs = runner.ordered(jobs)
    if shows:
        reproduce_list.show_order(runner, jobs, budget_minutes)
    else:
        _run(runner, jobs, results, docs)


def _estimator(results: Path, device: str, precision: str | None) -> Estimator:
    """Estimates for a device, which need not be in this machine."""
    from sfumato.reproduce import results_file
    from sfumato.reproduce.lookup import every_row
    from sfumato.reproduce.minutes import Estimator
    from sfumato.training.devices import pick_device

    kind = pick_device("auto").type if device == "auto" else device.partition(":")[0]
    entries = results_file.read(results)
    return Estimator(every_row().values(), entries, device=kind, precision=precision)


def _say(message: str) -> None:
    from sfumato.cli.training_progress import console

    console.print(message, soft_wrap=True)


def _run(runner: Runner, jobs: list[Job], results: Path, docs: Path) -> None:
    """Run what is missing, and write the tables after each run.

    Raises:
        typer.Exit: A run failed, or was stopped.
    """
    from sfumato.reproduce.tables import check_own, render
    from sfumato.training.loop import Stopped

    written: set[Path] = set()

    def after(entry: Entry) -> None:
        _say_entry(entry, _say)
        written.update(render(results, docs, only=entry.paper))

    check_own(docs)
    try:
        outcome = runner.run(jobs, after=after)
    except Stopped as stopped:
        _say(
            f"Stopped after step {stopped.step} of {stopped.folder}; everything is saved. The same "
            "command goes on from there."
        )
        raise typer.Exit(128 + stopped.signal) from None
    _say_outcome(outcome, len(jobs), _say)
    if written:
        _say(f"Tables and figures: {docs}")
    if outcome.failed:
        raise typer.Exit(1)


def _settings(text: str | None) -> tuple[Setting, ...]:
    choices: dict[str | None, tuple[Setting, ...]] = {
        None: (),
        "published": ("published",),
        "best": ("best",),
        "both": ("published", "best"),
    }
    if text not in choices:
        raise UserError(f"--setting must be published, best or both, not '{text}'.")
    return choices[text]


@contextmanager
def _watch() -> Iterator[Reporter]:
    from sfumato.cli.training_progress import watched

    with watched() as reporter:
        yield reporter


def _render(results: Path, docs: Path) -> None:
    from sfumato.reproduce.tables import render

    if not results.is_dir():
        raise UserError(f"There is no folder of results at {results}: --results names another.")
    written = render(results, docs)
    echo(f"Wrote {len(written)} files to {docs} from {results}.")


def _say_entry(entry: Entry, say: Callable[[str], None]) -> None:
    from sfumato.privacy.statement import upwards
    from sfumato.reproduce.lookup import every_row
    from sfumato.reproduce.verdicts import verdict

    row = every_row()[entry.row]
    found = 100 * entry.accuracy
    said = verdict(row.published, found).replace("*", "")
    beside = f" (published {row.published:g}; {said})" if said else ""
    spent = ""
    if entry.epsilon:
        spent = f", epsilon {upwards(entry.epsilon[entry.accountant], places=3)}"
    say(
        f"{entry.row}, {entry.setting}, seed {entry.seed}: test accuracy {found:.2f} %{beside}"
        f"{spent}, {entry.minutes:.1f} minutes"
    )


def _say_outcome(outcome: Outcome, asked: int, say: Callable[[str], None]) -> None:
    if len(outcome.failed) == asked:
        raise UserError(outcome.failed[0][1])
    say(f"{len(outcome.done)} results written.")
    if outcome.interrupted is not None:
        say(
            f"The time is over: {outcome.interrupted} was interrupted and is saved. The same "
            "command goes on from there."
        )
    if outcome.left:
        say(f"{len(outcome.left)} runs were not started.")
    for job in outcome.elsewhere:
        say(f"Another process is at work on {job}.")
    for job, reason in outcome.failed:
        say(f"Not run: {job}: {reason}")
