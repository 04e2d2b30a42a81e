"""`sfumato verify`: check that private training is right on a model."""

from __future__ import annotations

import re
from pathlib import Path as FilePath
from typing import TYPE_CHECKING

import typer

from sfumato.cli.models import BATCHNORM_TO
from sfumato.cli.terminal import Terminal, echo
from sfumato.errors import UserError

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table
    from torch import nn

    from sfumato.privacy.per_example import Path
    from sfumato.privacy.verify.verification import Report

_ROWS = 24
"""Longer tables are shortened."""


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command()(verify)


def verify(
    model: str = typer.Argument(
        ..., help="A model's name, timm:NAME, package.module:function, or a run's folder."
    ),
    input: str = typer.Option(
        None, metavar="C,H,W", help="Shape of one image; the model's usual one if not given."
    ),
    classes: int = typer.Option(10, help="Number of classes."),
    batch: int = typer.Option(17, help="The largest batch to try."),
    seed: int = typer.Option(0, help="Seed of the weights and of all random inputs."),
    set_: list[str] = typer.Option([], "--set", metavar="OPTION=VALUE", help="A model's option."),
    batchnorm_to: str = BATCHNORM_TO,
    plan: bool = typer.Option(
        False, "--plan", help="Show what a GPU would keep of each layer's gradients instead."
    ),
    views: int = typer.Option(1, min=1, help="Views per example, for --plan."),
    physical_batch: int = typer.Option(
        None, min=1, help="Examples at once, for --plan; 2048 images if not given."
    ),
    memory: float | None = typer.Option(
        None,
        min=0,
        help="GiB that gradients may take, for --plan; two thirds of what the backward pass keeps "
        "anyway if not given.",
    ),
    key: FilePath = typer.Option(
        None, metavar="FILE", help="Of a run: the public key of whoever must have signed it."
    ),
) -> None:
    """Check private training on a model: gradients, clipping, and that no example reaches another.

    Of a run: that ledger, statement and weights are consistent, and with --key that they are the
    files which the holder of that key signed.

    Exit status 0 if everything holds, 1 if not, 2 for a mistake in the command.
    """

    from rich.text import Text

    from sfumato import models

    if FilePath(model).is_dir():
        from sfumato.cli.verify_run import show as show_run

        show_run(FilePath(model), Terminal(), key)
        return
    if key is not None:
        raise UserError(f"--key is about the signature of a run, and '{model}' is not a folder.")
    usual = (3, 32, 32) if ":" in model else models.info(model).input
    shape = usual if input is None else _shape(input)
    console = Terminal()
    built = _build(model, shape, classes, seed, set_, batchnorm_to)
    if plan:
        from sfumato.cli.verify_plan import show

        show(built, shape, views, physical_batch or max(1, 2048 // views), memory, console)
        return
    report = _run(built, shape, classes, batch, seed, console)
    size = "×".join(map(str, shape))
    title = Text.assemble((model, "bold"), f" on {size} images, {classes} classes\n")
    console.print(title)
    console.print(_checks(report))
    if report.paths:
        console.print(_paths(report.paths))
    if report.parameters:
        console.print(_parameters(report))
    for warning in report.warnings:
        console.print(Text.assemble(("note:", "yellow"), f" {warning}"))
    if report.passed:
        console.print("\nEverything holds.", style="green")
        return
    failed = sum(check.passed is False for check in report.checks)
    count = f"\n{failed} of {len(report.checks)} checks failed"
    console.print(Text.assemble((count, "red"), ": do not train it."))
    raise typer.Exit(1)


def _shape(text: str) -> tuple[int, int, int]:
    if not re.fullmatch(r"\d+([,x×]\d+){2}", text):
        raise UserError(f"--input is channels, height and width, as in 3,32,32, not '{text}'.")
    channels, height, width = (int(part) for part in re.split("[,x×]", text))
    if min(channels, height, width) < 1:
        raise UserError(f"--input needs numbers of at least 1, not '{text}'.")
    return channels, height, width


def _build(
    name: str,
    shape: tuple[int, int, int],
    classes: int,
    seed: int,
    options: list[str],
    batchnorm_to: str | None,
) -> nn.Module:
    import torch

    from sfumato import models

    torch.manual_seed(seed)
    given = models.parse_options(name, options)
    channels, *size = shape
    try:
        return models.create(
            name, classes=classes, channels=channels, size=(size[0], size[1]),
            batchnorm_to=batchnorm_to, **given,
        )  # fmt: skip
    except UserError:
        raise
    except Exception as error:
        raise UserError(
            f"The model '{name}' cannot be built: {type(error).__name__}: {error}."
        ) from error


def _run(
    model: nn.Module,
    shape: tuple[int, int, int],
    classes: int,
    batch: int,
    seed: int,
    console: Console,
) -> Report:
    from rich.text import Text

    from sfumato.privacy.verify import verification

    if not console.is_terminal:
        return verification.verify(
            model,
            input_shape=shape,
            classes=classes,
            batch=batch,
            seed=seed,
            tell=lambda stage: echo(f"checking {stage}", err=True),
        )
    with console.status("checking") as status:
        return verification.verify(
            model,
            input_shape=shape,
            classes=classes,
            batch=batch,
            seed=seed,
            tell=lambda stage: status.update(Text(f"checking {stage}")),
        )


def _table(*columns: str) -> Table:
    from rich.table import Table

    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))
    for column in columns:
        table.add_column(column, overflow="fold")
    return table


def _checks(report: Report) -> Table:
    from rich.text import Text

    marks = {True: ("holds", "green"), False: ("FAILS", "red"), None: ("—", "dim")}
    table = _table("", "check", "number", "detail")
    for check in report.checks:
        number = "" if check.number is None else f"{check.number:.5g}"
        detail = f"{check.detail}. Fix: {check.fix}" if check.fix else check.detail
        table.add_row(Text(*marks[check.passed]), check.name, number, detail)
    return table


def _paths(paths: list[Path]) -> Table:
    """The path of each layer; alike layers together where there are many."""
    if len(paths) <= _ROWS:
        table = _table("\nlayer", "\nkind", "\npath", "\nparameters")
        for path in paths:
            table.add_row(path.module, path.kind, path.path, f"{path.parameters:,}")
        return table
    table = _table("\nlayers", "\nkind", "\npath", "\nparameters")
    alike: dict[tuple[str, str], list[Path]] = {}
    for path in paths:
        alike.setdefault((path.kind, path.path), []).append(path)
    for (kind, name), group in alike.items():
        names = group[0].module
        if len(group) > 1:
            names += f" … {group[-1].module} ({len(group)})"
        table.add_row(names, kind, name, f"{sum(path.parameters for path in group):,}")
    return table


def _parameters(report: Report) -> Table:
    """Every parameter's error, or the largest of them where there are many."""
    table = _table("\nparameter", "\nshape", "\nerror of its per-example gradients")
    shown = report.parameters
    if len(shown) > _ROWS:
        shown = sorted(shown, key=lambda p: -p.error)[:_ROWS]
    for parameter in shown:
        shape = "×".join(map(str, parameter.shape)) or "1"
        table.add_row(parameter.name, shape, f"{parameter.error:.1e}")
    if left := len(report.parameters) - len(shown):
        table.add_row(f"… and {left} more", "", f"at most {shown[-1].error:.1e}")
    return table
