"""`sfumato init`: from a folder of images to a recipe that suits it."""

from __future__ import annotations

import shlex
import sys
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from sfumato.cli.terminal import Terminal, echo
from sfumato.cli.unit_options import COLUMNS, UNIT, UNIT_PATTERN, columns_of
from sfumato.errors import UserError
from sfumato.interrupted_import import loading
from sfumato.io import new_file

if TYPE_CHECKING:
    import torch

    from sfumato.guide import Found, Proposal

_EPSILON = 8.0
_MINUTES = 30.0


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command()(init)


def init(
    data: str = typer.Argument(
        ..., metavar="PATH|NAME", help="A folder, table, .tar, .npz or a known data set."
    ),
    out: Path = typer.Option(
        Path("recipe.toml"), "--out", "-o", metavar="FILE", help="The new recipe."
    ),
    yes: bool = typer.Option(False, "--yes", "-y", help="Ask nothing, take defaults."),
    epsilon: float = typer.Option(None, help=f"Privacy budget; {_EPSILON:g} by default."),
    minutes: float = typer.Option(
        None, help=f"Minutes that training may take; {_MINUTES:g} by default."
    ),
    unit: str = UNIT,
    unit_pattern: str = UNIT_PATTERN,
    columns: str = COLUMNS,
    size: int = typer.Option(None, help="Side to which images are scaled; see README."),
    device: str = typer.Option("auto", help="Where it will train: auto, cpu, cuda or mps."),
    skip_unreadable: bool = typer.Option(
        False, "--skip-unreadable", help="Go on without images that cannot be read."
    ),
    cache: bool = typer.Option(
        False, help="Keep decoded images in your cache, for training and for very many images."
    ),
) -> None:
    """Look at images, ask a few questions and write a recipe for them, with comments.

    Nothing but the recipe is written. Without a terminal, or with --yes, defaults are taken.
    """
    from sfumato.cli.describe_data import describe

    with loading():
        from sfumato.guide import look, propose, recipe_text
        from sfumato.privacy.accounting.budget import check_epsilon
        from sfumato.settings import Data
        from sfumato.training.devices import pick_device

    new_file.check(out, endings=(".toml",))
    _check_outside(out, Path(data))
    if epsilon is not None:
        check_epsilon(epsilon)
    where: torch.device | None = pick_device(device)
    stated = Data(
        name=data,
        size=size,
        unit=unit or "image",
        unit_pattern=unit_pattern or "",
        columns=columns_of(columns) or [],
        skip_unreadable=skip_unreadable,
    )
    ask = not yes and sys.stdin.isatty()
    found = look(stated, search=unit is None, cache=cache)
    describe(found.dataset, found.data.unit)
    echo()
    if found.remark:
        _tell(found.remark)
    if ask and unit is None:
        found = _asked_unit(found, cache)
    if epsilon is None:
        epsilon = _asked("Privacy budget, epsilon", _EPSILON) if ask else _EPSILON
    if minutes is None:
        minutes = _asked("Minutes that training may take", _MINUTES) if ask else _MINUTES
    if ask and device == "auto":
        where = _asked_device()
    with Terminal(stderr=True).status("Measuring the speed of this machine …"):
        proposal = propose(
            found.dataset, found.data, epsilon=epsilon, minutes=minutes, device=where
        )
    with new_file.writing(out) as file:
        file.write(recipe_text(proposal).encode())
    _say(proposal, minutes, out)


def _check_outside(out: Path, data: Path) -> None:
    """Refuse a recipe in the folder of the images, which would then pass for a run."""
    if data.is_dir() and out.absolute().parent.resolve().is_relative_to(data.resolve()):
        raise UserError(
            f"{out} would lie among the images of {data}: give a name elsewhere, as in --out "
            f"../{out.name}."
        )


def _asked(question: str, default: float) -> float:
    answer: float = typer.prompt(question, default=default, type=float, err=True)
    return answer


def _asked_unit(found: Found, cache: bool) -> Found:
    """The data by the unit that the user names."""
    from sfumato.guide import look

    echo("Epsilon is about one unit of privacy: one image, or all images of one patient.", err=True)
    word = typer.prompt("Unit of privacy", default=found.data.unit, err=True)
    if word == found.data.unit:
        return found
    return look(replace(found.data, unit=word), search=False, cache=cache)


def _asked_device() -> torch.device | None:
    """The device that the user means; None for a GPU that is not in this machine."""
    from sfumato.training.devices import pick_device

    here = pick_device("auto")
    if not typer.confirm("Train on a GPU?", default=here.type != "cpu", err=True):
        return pick_device("cpu")
    return None if here.type == "cpu" else here


def _say(p: Proposal, minutes: float, out: Path) -> None:
    """Print what was chosen, what to expect, and the next commands."""
    from sfumato.guide.recipe_text import expected_time, measured_accuracy

    c, unit = p.choice, p.recipe.data.unit
    echo()
    _tell(
        f"Recipe: {p.base}, epsilon {p.recipe.privacy.epsilon:g} at delta "
        f"{p.recipe.privacy.delta:g} for one {unit}, {c.steps:,} steps of about {c.batch:,} of "
        f"{p.examples:,} {unit}s, noise multiplier {c.noise_multiplier:g}."
    )
    _tell(measured_accuracy(p))
    _tell(expected_time(p))
    if not p.within:
        _tell(f"No recipe takes {minutes:g} minutes or less here: this is the quickest.")
    file = shlex.quote(str(out))
    echo(f"Written: {out}. Next:")
    echo(f"  sfumato plan {file}")
    echo(f"  sfumato train {file}")


def _tell(sentence: str) -> None:
    """Print a sentence, wrapped between words on a terminal."""
    Terminal().print(sentence, soft_wrap=True)
