"""`sfumato verify RUN`: does what a run folder states follow from what is in it?"""

from __future__ import annotations

from pathlib import Path

import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from sfumato.privacy.statement import upwards
from sfumato.report import guarantee
from sfumato.report.runs import gather


def show(folder: Path, console: Console) -> None:
    """Read a run's ledger, compute epsilon from it, and compare it with what the run states.

    Raises:
        typer.Exit: With status 1 if anything is wrong.
    """
    (run,) = gather([folder])
    table = Table(box=None, pad_edge=False, show_header=False)
    table.add_row("ledger", "whole: every line follows from the one before" if run.header else "–")
    table.add_row("steps", guarantee.steps(run))
    for name, words in guarantee.ACCOUNTANTS.items():
        if name in run.epsilon:
            found = f"{upwards(run.epsilon[name], places=4)} at δ = {run.recipe.privacy.delta:g}"
            table.add_row(f"ε by {words}", f"{found}, computed from the ledger")
    table.add_row("weights", _weights(folder, bool(run.problems)))
    console.print(f"[bold]{escape(str(folder))}[/]\n")
    console.print(table)
    for problem in run.problems:
        console.print(f"[red]wrong:[/] {escape(problem)}", soft_wrap=True)
    if run.problems:
        console.print(f"\n[red]Do not rely on what {escape(run.name)} states.[/]")
        raise typer.Exit(1)
    if not run.private:
        console.print("\n[yellow]Trained without privacy: there is no guarantee to verify.[/]")
    elif not run.finished:
        console.print("\n[green]The ledger holds.[/] The run has not finished.")
    else:
        console.print("\n[green]Ledger, statement and weights agree.[/]")


def _weights(folder: Path, problems: bool) -> str:
    from sfumato.training.classifier import TENSORS, read_weights
    from sfumato.training.files import WEIGHTS

    if not (folder / WEIGHTS).is_file():
        return "not written yet"
    if problems:
        return "–"
    known = TENSORS in read_weights(folder / WEIGHTS)[0]
    return "as they were written" if known else "of an older version, which kept no digest of them"
