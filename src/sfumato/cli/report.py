"""`sfumato report`: one HTML page about one run, or about many side by side."""

from __future__ import annotations

from pathlib import Path

import typer

from sfumato.cli.terminal import echo
from sfumato.cli.trust import TRUST_CODE
from sfumato.interrupted_import import load_pytorch
from sfumato.io import new_file


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command()(report)


def report(
    runs: list[Path] = typer.Argument(..., metavar="RUN...", help="Run folders."),
    out: Path = typer.Option(
        Path("report.html"), "--out", "-o", metavar="FILE", help="New HTML file."
    ),
    samples: list[str] = typer.Option(
        [],
        metavar="test:N|FILE|FOLDER",
        help="Show predictions for N test images, or for public images that you name; may be "
        "given again. The images become part of the page.",
    ),
    shareable: bool = typer.Option(
        False,
        "--shareable",
        help="Leave out what the guarantee does not cover: curves of training batches, and seeds.",
    ),
    title: str = typer.Option("", help="Title of the page."),
    data: str | None = typer.Option(
        None, help="Data set, folder or .npz with the model's classes, instead of the run's own."
    ),
    data_root: Path | None = typer.Option(None, help="Where to look for data sets first."),
    device: str = typer.Option("auto", help="auto, cpu, cuda or mps."),
    trust_code: list[str] = TRUST_CODE,
) -> None:
    """Make one HTML page about runs: guarantee, curves, accuracy against epsilon, test results.

    The page needs no network and no other file. What cannot be shown, because a run has not
    finished or its data is not here, is said in its place.
    """
    load_pytorch()
    from sfumato.report.measure import choose
    from sfumato.report.page import write
    from sfumato.report.runs import gather
    from sfumato.training.devices import pick_device

    new_file.check(out)
    chosen = choose(samples)
    write(
        gather(runs), out, title=title, shareable=shareable, data=data, root=data_root,
        device=pick_device(device), samples=chosen, trust_code=trust_code,
        note=lambda remark: echo(f"Note: {remark}", err=True),
    )  # fmt: skip
    echo(f"Written: {out}")
