"""`sfumato budget --group K`: the cost of several images of one person together."""

from __future__ import annotations

import json as json_format
import math
from collections.abc import Sequence
from pathlib import Path

from sfumato.cli.terminal import Terminal, echo
from sfumato.errors import UserError

LARGEST = 100
"""The largest group that is computed."""


def check(size: int, unit: str = "image", together: str = "images of one person") -> None:
    """Refuse a group without examples, or too large for a guarantee of single ones.

    Args:
        size: Number of units.
        unit: The word for one.
        together: The words for several of them.
    """
    if not 1 <= size <= LARGEST:
        raise UserError(
            f"--group must be from 1 to {LARGEST}, not {size}: it is the number of {together}, "
            f"and the guarantee of one {unit} says nothing about more."
        )


def row(size: int, value: float, columns: int) -> list[str]:
    """The row of a table with the epsilon of a group, in the first of its columns."""
    return [f"ε of {size} images of one person", shown(value), *[""] * (columns - 1)]


def shown(value: float) -> str:
    """The epsilon of a group, which is not computed above a limit."""
    from sfumato.cli.budget_picture import rounded_up
    from sfumato.privacy.accounting.group_privacy import MOST

    return rounded_up(value) if value <= MOST else f"over {MOST:g}"


def of_run(folder: Path, size: int | None, others: Sequence[object], *, json: bool = False) -> None:
    """Print the epsilon of several images of one person in a run, from its ledger.

    Args:
        folder: The run.
        size: Number of images.
        others: Values of options that a run leaves no room for; None where one was not given.
        json: Print it as JSON.

    Raises:
        UserError: If no guarantee follows from the ledger, or there is none.
    """
    from rich.text import Text

    from sfumato.privacy.statement import IMAGES, upwards
    from sfumato.run import Run

    if any(value is not None for value in others):
        raise UserError(
            f"Everything about {folder} is in its ledger: give --group K, and no other number."
        )
    run = Run(folder)
    g = run.guarantee
    unit = g.unit if g is not None else "image"
    together = f"{unit}s of one person" if unit in IMAGES else f"{unit}s together"
    if size is None:
        raise UserError(f"Say how many {together}: sfumato budget {folder} --group 5.")
    check(size, unit, together)
    if g is None:
        raise UserError(" ".join(run.problems) or f"{folder} has no ledger.")
    if not g.private:
        raise UserError(f"{folder} was trained without privacy: there is no epsilon.")
    found = g.epsilon_of(size)
    if json:
        content = {
            "group": {str(size): None if math.isinf(found) else found},
            "epsilon": dict(g.epsilon),
            "delta": g.delta,
        }
        echo(json_format.dumps(content, indent=2))
        return
    cost = ", ".join(f"{upwards(value)} by {name.upper()}" for name, value in g.epsilon.items())
    how = "from that of one" if g.selection else "PLD of a mixture of Gaussians"
    console = Terminal()
    console.print(f"ε of one {g.unit}: {cost}, at δ = {g.delta:g}", soft_wrap=True)
    group = f"ε of {size} {together}: "
    answer = Text.assemble(group, (shown(found), "bold"), f" ({how}), at the same δ")
    console.print(answer, soft_wrap=True)
