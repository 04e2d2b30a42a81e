"""`sfumato report`: one HTML page about one run, or about many side by side."""

from __future__ import annotations

from pathlib import Path

import typer

from sfumato.errors import UserError


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
) -> None:
    """Make one HTML page about runs: guarantee, curves, accuracy against epsilon, test results.

    The page needs no network and no other file. What cannot be shown, because a run has not
    finished or its data is not here, is said in its place.
    """
    from sfumato.report.measure import choose, measure
    from sfumato.report.page import page
    from sfumato.report.runs import gather
    from sfumato.training.devices import pick_device

    check_new(out)
    chosen = choose(samples)
    found = gather(runs)
    measured = measure(found, data=data, root=data_root, device=pick_device(device), samples=chosen)
    for run, result in zip(found, measured, strict=True):
        for remark in (*run.problems, *([result.missing] if result.missing else [])):
            typer.echo(f"Note: {run.name}: {remark}", err=True)
    write_new(out, page(found, measured, title=title, shareable=shareable))
    typer.echo(f"Written: {out}")


def check_new(out: Path) -> None:
    """Refuse a file that exists or cannot be made, before the long work."""
    if out.exists():
        raise UserError(f"{out} exists already: give another --out, nothing is overwritten.")
    if not out.absolute().parent.is_dir():
        raise UserError(f"The folder {out.absolute().parent} does not exist: make it first.")


def write_new(out: Path, text: str) -> None:
    """Write a file that must not exist."""
    from sfumato.training.files import write_whole

    try:
        out.touch(exist_ok=False)
        try:
            write_whole(out, text.encode("utf-8", errors="replace"))
        except BaseException:
            out.unlink(missing_ok=True)
            raise
    except FileExistsError:
        raise UserError(
            f"{out} exists already: give another --out, nothing is overwritten."
        ) from None
    except OSError as error:
        raise UserError(
            f"{out} cannot be written ({error.strerror}): give another --out."
        ) from None
