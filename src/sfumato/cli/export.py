"""`sfumato export`: a trained model for other programs."""

from __future__ import annotations

import enum
from pathlib import Path

import typer

from sfumato.cli.terminal import echo
from sfumato.cli.trust import TRUST_CODE


class Target(enum.StrEnum):
    """The form of an exported model."""

    onnx = "onnx"
    torchscript = "torchscript"
    pt2 = "pt2"


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command()(export)


def export(
    run: Path = typer.Argument(..., metavar="RUN", help="A run folder or a weights file."),
    to: Target = typer.Option(..., help="The form of the new file."),
    out: Path | None = typer.Option(
        None,
        "--out",
        "-o",
        metavar="FILE",
        help="New file; the run's name with the ending of the form if not given.",
    ),
    opset: int | None = typer.Option(
        None, help="Opset of an ONNX file, 18 to 23; 18 if not given."
    ),
    data: str | None = typer.Option(
        None, help="Data set, folder or .npz to compare on, instead of the run's own."
    ),
    data_root: Path | None = typer.Option(None, help="Where to look for data sets first."),
    trust_code: list[str] = TRUST_CODE,
) -> None:
    """Write a trained model for other programs, compared with PyTorch on 100 images.

    The file takes images of float32 from 0 to 1 (batch, channels, height, width), normalises them
    and gives class probabilities. It holds the class names and the guarantee.
    """
    from sfumato.export import write
    from sfumato.export.model_file import check_format

    ending = check_format(to.value, opset).ending
    path = out or Path(f"{run.resolve().stem if run.is_file() else run.resolve().name}{ending}")
    echo(f"Exporting {run}; this may take some minutes.", err=True)
    done = write(
        run, path, to=to.value, opset=opset, data=data, root=data_root, trust_code=trust_code
    )
    echo(
        f"Compared with PyTorch on {done.images}: probabilities differ by at most "
        f"{done.difference:.1e}."
    )
    form = to.value if done.opset is None else f"{to.value}, opset {done.opset}"
    echo(f"Written: {done.path} ({form})")
