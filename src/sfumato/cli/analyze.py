"""`sfumato analyze`: what a trained network is like, beyond its accuracy."""

from __future__ import annotations

import enum
import json
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from sfumato.cli.terminal import Terminal, echo
from sfumato.cli.trust import TRUST_CODE
from sfumato.errors import UserError
from sfumato.interrupted_import import load_pytorch
from sfumato.io import new_file

if TYPE_CHECKING:
    from sfumato.analysis.overview import Analysis, Effort
    from sfumato.run import Run


class On(enum.StrEnum):
    """A part of the data."""

    test = "test"
    validation = "validation"
    train = "train"


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command()(analyze)


def analyze(
    runs: list[Path] = typer.Argument(..., metavar="RUN...", help="Run folders on the same data."),
    only: str | None = typer.Option(
        None,
        help="Some of calibration, curvature, activations, sparsity, gradients, cost, by commas.",
    ),
    on: On | None = typer.Option(
        None, help="Part of the data; validation if the run has it, else test."
    ),
    examples: int | None = typer.Option(
        None, help="Images to look at; all for calibration and 512 for the rest if not given."
    ),
    seed: int = typer.Option(0, help="Of the images and of the curvature's random vectors."),
    iterations: int = typer.Option(40, help="Lanczos steps for the curvature's eigenvalues."),
    probes: int = typer.Option(3, help="Random vectors for the density of eigenvalues."),
    out: Path | None = typer.Option(
        None, "--out", "-o", metavar="FILE", help="Write everything as JSON."
    ),
    picture: Path | None = typer.Option(None, metavar="FOLDER", help="Draw everything as PNG."),
    data: str | None = typer.Option(
        None, help="Data set, folder or .npz with the model's classes, instead of the run's own."
    ),
    data_root: Path | None = typer.Option(None, help="Where to look for data sets first."),
    device: str = typer.Option("auto", help="auto, cpu, cuda or mps."),
    trust_code: list[str] = TRUST_CODE,
) -> None:
    """Analyse trained networks side by side: calibration, curvature, activations, gradients."""
    load_pytorch()
    from sfumato.analysis.overview import PARTS, Effort, check_parts

    wanted = [word.strip() for word in (only or ",".join(PARTS)).split(",") if word.strip()]
    parts = check_parts(wanted)
    if not parts:
        raise UserError(f"--only names no analysis: choose from {', '.join(PARTS)}.")
    effort = Effort(examples=examples, seed=seed, iterations=iterations, probes=probes)
    _check_free(out, picture, parts)
    opened = _open(runs, data, data_root, device, trust_code)
    found, interrupted = _measure(opened, parts, on, effort)
    written = _write(found, parts, out, picture)
    _show(found, parts)
    for path in written:
        echo(f"Written: {path}")
    if interrupted:
        echo(f"Interrupted: {interrupted} and what follows it are not shown.", err=True)
        raise typer.Exit(130)
    if all(part in one.missing for one in found for part in parts):
        raise UserError("Nothing could be analysed, for the reasons above.")


def _open(
    folders: list[Path], data: str | None, root: Path | None, device: str, trust_code: list[str]
) -> list[Run]:
    """All runs, on the same data; what is remarkable about them is said."""
    from sfumato.analysis.run_access import same_data
    from sfumato.run import Run
    from sfumato.training.devices import pick_device

    where = pick_device(device)
    opened = [
        Run(folder, data=data, root=root, device=where, trust_code=trust_code)
        for folder in dict.fromkeys(folders)
    ]
    same_data(opened)
    for run in opened:
        _ = run.network
        for note in run.notes:
            echo(f"Note: {note}", err=True)
    return opened


def _measure(
    opened: list[Run], parts: tuple[str, ...], on: On | None, effort: Effort
) -> tuple[list[Analysis], str]:
    """Every part of every run; an interruption keeps what is done and names where it fell."""
    from sfumato.analysis.overview import begin, measure

    found: list[Analysis] = []
    doing = ""
    try:
        for run in opened:
            said = len(run.notes)
            found.append(begin(run, on=on.value if on else None, effort=effort))
            for part in parts:
                doing = f"{part} of {run.folder}"
                measure(found[-1], part)
            for note in run.notes[said:]:
                echo(f"Note: {note}", err=True)
    except KeyboardInterrupt:
        return found, doing
    return found, ""


def _show(found: list[Analysis], parts: tuple[str, ...]) -> None:

    from sfumato.cli.analyze_tables import tables

    console = Terminal()
    for block in tables(found, parts):
        console.print(block)
    for one in found:
        for part, reason in one.missing.items():
            echo(f"No {part} for {one.run.folder}: {reason}", err=True)
        if one.warning:
            echo(f"Warning: {one.run.folder}: {one.warning}", err=True)


def _write(
    found: list[Analysis], parts: tuple[str, ...], out: Path | None, picture: Path | None
) -> list[Path]:
    """Write the numbers and the pictures; the files that were written."""
    from sfumato import version

    written: list[Path] = []
    try:
        if out is not None:
            content = {"sfumato": version.of(), "runs": [one.to_dict() for one in found]}
            with new_file.writing(out) as file:
                file.write((json.dumps(content, indent=2, allow_nan=False) + "\n").encode())
            written.append(out)
        if picture is not None:
            from sfumato.report import analysis

            picture.mkdir(parents=True, exist_ok=True)
            written += analysis.draw(found, picture, parts=parts)
    except OSError as error:
        raise UserError(f"Cannot write {error.filename or out}: {error.strerror}.") from None
    return written


def _check_free(out: Path | None, picture: Path | None, parts: tuple[str, ...]) -> None:
    """Refuse before the long work what could not be written after it."""
    if out is not None:
        new_file.check(out)
    if picture is not None:
        if picture.exists() and not picture.is_dir():
            raise UserError(f"{picture} is a file: --picture takes a folder.")
        there = [f"{part}.png" for part in parts if (picture / f"{part}.png").exists()]
        if there:
            raise UserError(
                f"{picture} already holds {', '.join(there)}: choose another --picture folder."
            )
