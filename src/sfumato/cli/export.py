"""`sfumato export`: a trained model for other programs."""

from __future__ import annotations

import enum
from pathlib import Path

import typer

from sfumato.cli.terminal import echo
from sfumato.cli.trust import TRUST_CODE
from sfumato.errors import UserError
from sfumato.interrupted_import import load_pytorch
from sfumato.io import new_file


class Target(enum.StrEnum):
    """The form of an exported model."""

    onnx = "onnx"
    torchscript = "torchscript"
    pt2 = "pt2"
    huggingface = "huggingface"


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command()(export)


def export(
    run: Path = typer.Argument(..., metavar="RUN", help="A run folder or a weights file."),
    to: Target = typer.Option(..., help="The form: a file, or a folder."),
    out: Path | None = typer.Option(
        None,
        "--out",
        "-o",
        metavar="PATH",
        help="New file or folder; if not given, the run's name with the ending of the form.",
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
    """Write a trained model for other programs.

    An ONNX, TorchScript or pt2 file takes images of float32 from 0 to 1 (batch, channels, height,
    width), normalises them and gives class probabilities; it holds the class names and the
    guarantee, and is compared with PyTorch on 100 images. A folder for the Hugging Face Hub holds
    the weights, config.json and the model card.
    """
    load_pytorch()
    from sfumato.export import write, write_folder
    from sfumato.export.model_file import check_format
    from sfumato.training.classifier import weights_path

    name = run.resolve().stem if run.is_file() else run.resolve().name
    if to is Target.huggingface:
        if opset is not None:
            raise UserError("--opset is for ONNX files, not for a folder: leave it out.")
        folder, missing = write_folder(
            run, out or Path(f"{name}-huggingface"), data=data, root=data_root,
            trust_code=trust_code,
        )  # fmt: skip
        if missing:
            echo(f"Note: {missing}", err=True)
        echo(f"Written: {folder} (fill in the licence and the words in brackets in README.md)")
        return
    ending = check_format(to.value, opset).ending
    path = out or Path(f"{name}{ending}")
    new_file.check(path, endings=(ending,))
    weights_path(run)
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
