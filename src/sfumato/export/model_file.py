"""A trained model as one file for other programs, compared with PyTorch before it is written."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

import torch

from sfumato.data import ImageSet
from sfumato.errors import UserError
from sfumato.export.comparison import TOLERANCE, compared_images, largest_difference
from sfumato.export.details import details
from sfumato.export.formats import FORMATS, OPSET, OPSETS, Format
from sfumato.export.program import Program
from sfumato.io import new_file
from sfumato.models import Code
from sfumato.run import Run
from sfumato.text import one_line
from sfumato.training.classifier import Classifier, check_head, load, statement_of
from sfumato.training.run_folder import LEDGER, RECIPE

_EXAMPLE = 2
"""Random images that a program is recorded with."""


@dataclass(frozen=True)
class Exported:
    """A file that was written.

    Attributes:
        path: The file.
        format: Its format, by name.
        opset: Of an ONNX file; None of others.
        difference: The largest difference of a probability from PyTorch's.
        images: The images that were compared, in words.
    """

    path: Path
    format: str
    opset: int | None
    difference: float
    images: str


def write(
    source: str | Path,
    path: str | Path,
    *,
    to: str,
    opset: int | None = None,
    data: object = None,
    root: str | Path | None = None,
    trust_code: Iterable[Code] = (),
) -> Exported:
    """Write a trained model as a new ONNX, TorchScript or pt2 file.

    The file takes images of float32 from 0 to 1, normalises them and gives class probabilities, for
    any number of images. It is written only if its probabilities are those of PyTorch, on 100
    images: test images of the run where they can be read, otherwise random ones.

    *Guarantee:* The file depends on the released weights, their description and the temperature
    that is kept with them alone. It states the guarantee of the weights; where a run's files
    contradict each other, nothing is written.

    Args:
        source: A finished run folder, or a weights file.
        path: The new file, whose name ends as the format asks: .onnx, .pt or .pt2.
        to: `onnx`, `torchscript` or `pt2`.
        opset: Of an ONNX file, from 18 to 23; 18 if None.
        data: Data to compare on instead of the run's own.
        root: Where to look for data sets first.
        trust_code: As for `sfumato.load`.

    Raises:
        UserError: If the model cannot be exported, its outputs differ, or the file exists.
    """
    source, path, format = Path(source), Path(path), check_format(to, opset)
    new_file.check(path, endings=(format.ending,))
    format.check()
    trusted = tuple(trust_code)
    classifier = load(source, trust_code=trusted)
    check_head(source, classifier.description)
    run = checked_run(source, data=data, root=root, trust_code=trusted)
    held_out, words = _held_out(run)
    opset = (opset or OPSET) if format.name == "onnx" else None
    content = _content(classifier, format, opset, statement_of(source))
    images, count = compared_images(classifier.description, held_out)
    difference = largest_difference(classifier, format.read(content), images)
    if difference > TOLERANCE:
        raise UserError(
            f"The {format.title} file would give other probabilities than PyTorch, by up to "
            f"{difference:.1e} on {len(images)} images, so it is not written: choose another "
            f"format ({', '.join(name for name in FORMATS if name != format.name)})."
        )
    with new_file.writing(path) as file:
        file.write(content)
    rest = len(images) - count
    parts = [f"{count} {words}"] * bool(count) + [f"{rest} random images"] * bool(rest)
    return Exported(path, format.name, opset, difference, " and ".join(parts))


def check_format(to: str, opset: int | None) -> Format:
    """The format of that name, if it has such an opset.

    Raises:
        UserError: If it does not exist, or the opset is impossible.
    """
    if to not in FORMATS:
        raise UserError(f"There is no format '{to}': choose {', '.join(FORMATS)}.")
    if opset is not None and to != "onnx":
        raise UserError(f"--opset is for ONNX files, not for {FORMATS[to].title}: leave it out.")
    if opset is not None and opset not in OPSETS:
        raise UserError(f"--opset is from {OPSETS[0]} to {OPSETS[-1]}, not {opset}.")
    return FORMATS[to]


def checked_run(
    source: Path, *, data: object, root: str | Path | None, trust_code: tuple[Code, ...]
) -> Run | None:
    """The run of a folder; None of a weights file, which stands for itself.

    Raises:
        UserError: If the files of the run contradict each other.
    """
    if not (source.is_dir() and (source / RECIPE).is_file()):
        return None
    run = Run(source, data=data, root=root, trust_code=trust_code)
    if (source / LEDGER).is_file() and run.problems:
        raise UserError(
            f"The guarantee of {source} cannot be stated, so nothing is exported: "
            f"{' '.join(run.problems)}"
        )
    return run


def _held_out(run: Run | None) -> tuple[ImageSet | None, str]:
    """The run's test images, and their name; none if they cannot be read."""
    if run is None:
        return None, ""
    try:
        return run.dataset.test, f"test images of '{run.dataset.name}'"
    except UserError:
        return None, ""


def _content(
    classifier: Classifier, format: Format, opset: int | None, statement: str | None
) -> bytes:
    d = classifier.description
    about = details(
        d, format=format.name, opset=opset, statement=statement, temperature=classifier.temperature
    )
    example = torch.rand(_EXAMPLE, d.channels, *d.size, generator=torch.Generator().manual_seed(1))
    try:
        return format.write(Program(classifier), example, json.dumps(about), opset or OPSET)
    except UserError:
        raise
    except Exception as error:  # Exporters raise whatever their parts do.
        reason = one_line(str(error))[:300] or type(error).__name__
        raise UserError(
            f"The model '{d.model}' cannot be written as {format.title}: {reason}. Choose another "
            f"format ({', '.join(name for name in FORMATS if name != format.name)})."
        ) from None
