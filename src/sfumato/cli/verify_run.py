"""`sfumato verify RUN`: check that the statements of a run folder follow from its ledger."""

from __future__ import annotations

from pathlib import Path

import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

from sfumato.errors import UserError
from sfumato.privacy import statement_chapters
from sfumato.privacy.statement import upwards
from sfumato.report.privacy import steps
from sfumato.report.runs import gather
from sfumato.run import Run
from sfumato.training.run_folder import GUARANTEE
from sfumato.training.temperature import FILE

_UNSIGNED = (
    "Consistent does not mean genuine: whoever can write to the folder can write a consistent "
    "ledger anew. `sfumato sign` and `sfumato verify RUN --key FILE` show who vouches for it."
)


def show(folder: Path, console: Console, key: Path | None = None) -> None:
    """Read a run's ledger, compute epsilon from it, and compare it with what the run states.

    Args:
        folder: The run.
        console: Where to print.
        key: The public key of whoever must have signed it, if anybody.

    Raises:
        typer.Exit: With status 1 if anything is wrong.
    """
    (run,) = gather([folder])
    problems = list(run.problems)
    table = Table(box=None, pad_edge=False, show_header=False)
    chained = "every line follows from the one before"
    ledger = chained if run.problems else f"consistent: {chained}"
    table.add_row("ledger", ledger if run.header else "–")
    table.add_row("steps", f"{len(run.ledger)} in the ledger" if run.problems else steps(run))
    for name, value in run.epsilon.items():
        found = f"{upwards(value, places=4)} at δ = {run.recipe.privacy.delta:g}"
        table.add_row(
            f"ε by {statement_chapters.ACCOUNTANTS[name]}", f"{found}, confirmed by the ledger"
        )
    table.add_row("guarantee", _guarantee(run))
    table.add_row("weights", _weights(folder, bool(run.problems)))
    if (folder / FILE).is_file():
        table.add_row("temperature", _temperature(folder, problems))
    if key is not None:
        table.add_row("signature", _signature(folder, key, problems))
    console.print(Text(f"{folder}\n", style="bold"))
    for problem in problems:
        console.print(Text.assemble(("wrong:", "red"), f" {problem}"), soft_wrap=True)
    console.print(table)
    if problems:
        console.print(f"\nDo not rely on what {run.name} states.", style="red", soft_wrap=True)
        raise typer.Exit(1)
    if not run.private:
        console.print("\nTrained without privacy: there is no guarantee to verify.", style="yellow")
    elif not run.finished:
        missing = (
            " The weights were removed." if run.weights_removed else " The run has not finished."
        )
        words = ("\nThe ledger is consistent.", "green"), missing
        console.print(Text.assemble(*words))
    else:
        console.print("\nLedger, guarantee, statement and weights are consistent.", style="green")
    if key is None:
        console.print(_UNSIGNED, soft_wrap=True)


def _guarantee(run: Run) -> str:
    if run.problems or run.guarantee is None:
        return "–"
    if (run.folder / GUARANTEE).is_file():
        return f"{GUARANTEE} follows from the ledger"
    if not run.finished:
        return "not written yet"
    return f"of an older version, which wrote no {GUARANTEE}: it is derived from the ledger"


def _temperature(folder: Path, problems: list[str]) -> str:
    from sfumato.training.classifier import read_temperature

    try:
        found = read_temperature(folder)
    except UserError as error:
        problems.append(str(error))
        return "–"
    assert found is not None
    return f"{found.value:g}, fitted on {found.fitted_on}; neither covered by ε nor signed"


def _signature(folder: Path, key: Path, problems: list[str]) -> str:
    from sfumato.training import signature

    try:
        signature.check(folder, key)
    except signature.BadSignature as error:
        problems.append(str(error))
        return "–"
    return f"of the holder of {key}, over its ledger, guarantee, recipe and weights"


def _weights(folder: Path, problems: bool) -> str:
    from sfumato.training.classifier import STATEMENT, TENSORS, read_weights
    from sfumato.training.run_folder import WEIGHTS, weights_removed

    if not (folder / WEIGHTS).is_file():
        return "removed" if weights_removed(folder) else "not written yet"
    if problems:
        return "–"
    content = read_weights(folder / WEIGHTS)[0]
    if TENSORS not in content:
        return "of an older version, which kept no digest of them"
    lacking = "" if STATEMENT in content else "; they hold no digest of the statement's text"
    return f"as they were written{lacking}"
