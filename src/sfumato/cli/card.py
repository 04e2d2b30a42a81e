"""`sfumato card`: a model card in Markdown, with the guarantee as reviewers ask for it."""

from __future__ import annotations

from pathlib import Path

import typer

from sfumato.cli.terminal import echo
from sfumato.cli.trust import TRUST_CODE
from sfumato.errors import UserError
from sfumato.interrupted_import import load_pytorch
from sfumato.io import new_file
from sfumato.training import run_folder


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command()(card)


def card(
    run: Path = typer.Argument(..., metavar="RUN", help="A finished run folder."),
    out: Path = typer.Option(
        Path("MODEL_CARD.md"), "--out", "-o", metavar="FILE", help="New Markdown file."
    ),
    data: str | None = typer.Option(
        None, help="Data set, folder or .npz with the model's classes, instead of the run's own."
    ),
    data_root: Path | None = typer.Option(None, help="Where to look for data sets first."),
    device: str = typer.Option("auto", help="auto, cpu, cuda or mps."),
    trust_code: list[str] = TRUST_CODE,
) -> None:
    """Write a model card: guarantee, intended use, data, recipe, results, how to load it.

    The card has the YAML header that the Hugging Face Hub reads. The licence and the words in
    brackets are for you to fill in. Its ROC and precision-recall curves are a picture beside it.
    """
    load_pytorch()
    from sfumato.report.card import card as write_card
    from sfumato.report.card import curves_picture
    from sfumato.report.measure import measure
    from sfumato.report.runs import gather
    from sfumato.training.devices import pick_device

    picture = out.with_name(f"{out.stem}-curves.png")
    for path in (out, picture):
        new_file.check(path)
    (found,) = gather([run])
    if not found.finished:
        raise UserError(run_folder.without_weights(run))
    (measured,) = measure(
        [found], data=data, root=data_root, device=pick_device(device), trust_code=trust_code
    )
    for remark in (*found.problems, *([measured.missing] if measured.missing else [])):
        echo(f"Note: {remark}", err=True)
    drawn = curves_picture(measured, picture)
    text = write_card(found, measured, curves=picture.name if drawn else "")
    with new_file.writing(out) as file:
        file.write(text.encode("utf-8", errors="replace"))
    for path in (out, picture) if drawn else (out,):
        echo(f"Written: {path}")
