"""`sfumato predict`: the class of image files, as CSV or JSON."""

from __future__ import annotations

import contextlib
import csv
import enum
import io
import itertools
import json
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, TextIO

import typer

from sfumato.cli.terminal import echo
from sfumato.cli.trust import TRUST_CODE
from sfumato.io import new_file
from sfumato.text import printable

if TYPE_CHECKING:
    from sfumato.analysis import Prediction


class Format(enum.StrEnum):
    """The format of written predictions."""

    csv = "csv"
    json = "json"


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command()(predict)


def predict(
    run: Path = typer.Argument(..., metavar="RUN", help="A run folder or a weights file."),
    images: list[Path] = typer.Argument(
        ..., metavar="FILE|FOLDER...", help="Images, and folders that are searched for images."
    ),
    format: Format = typer.Option(Format.csv, help="How to write predictions."),
    out: Path | None = typer.Option(
        None, "--out", "-o", metavar="FILE", help="New file; stdout if not given."
    ),
    top: int = typer.Option(1, metavar="K", help="Give the K most probable classes."),
    skip_unreadable: bool = typer.Option(
        False, "--skip-unreadable", help="Go on without images that cannot be read."
    ),
    device: str = typer.Option("auto", help="auto, cpu, cuda or mps."),
    trust_code: list[str] = TRUST_CODE,
) -> None:
    """Predict the class of images, with its probability.

    Images are rotated, scaled and cut as in training. CSV has a line per image: file, class,
    probability, and with --top K also class_2, probability_2 and so on. JSON is a list of objects.
    """
    from sfumato.analysis.inference import find_images, predict_files
    from sfumato.training.classifier import check_head, load
    from sfumato.training.devices import pick_device

    if out is not None:
        new_file.check(out)
    classifier = load(run, device=pick_device(device), trust_code=trust_code)
    check_head(run, classifier.description)
    files = find_images(images)
    skipped: list[Path] = []

    def note(file: Path, reason: str) -> None:
        skipped.append(file)
        echo(f"Skipped: {file} ({reason})", err=True)

    predictions = predict_files(
        classifier, files, top=top, skipped=note if skip_unreadable else None
    )
    with _destination(out) as stream:
        _write(_watched(predictions, len(files), shown=out is not None), stream, format, top)
    if skipped:
        echo(f"{len(skipped)} of {len(files)} images could not be read.", err=True)
    if out is not None:
        echo(f"Written: {out} ({len(files) - len(skipped)} images)", err=True)


def _watched(predictions: Iterator[Prediction], total: int, *, shown: bool) -> Iterator[Prediction]:
    """The predictions, with progress on stderr unless they appear in the same terminal."""
    from sfumato.data.progress_bar import progress

    if not shown and sys.stdout.isatty():
        yield from predictions
        return
    with progress("predicting", total, unit="images") as advance:
        for prediction in predictions:
            yield prediction
            advance(1)


def _write(
    predictions: Iterable[Prediction], stream: TextIO | io.TextIOBase, format: Format, top: int
) -> None:
    """One line per prediction as it comes, and nothing before the first has come."""
    if format is Format.json:
        separator = "["
        for prediction in predictions:
            stream.write(f"{separator}\n{json.dumps(_record(prediction))}")
            separator = ","
        stream.write("[]\n" if separator == "[" else "\n]\n")
        return
    writer = csv.writer(stream, lineterminator="\n")
    coming = iter(predictions)
    first = list(itertools.islice(coming, 1))
    header = ["file", "class", "probability"]
    for k in range(2, top + 1):
        header += [f"class_{k}", f"probability_{k}"]
    writer.writerow(header)
    for prediction in itertools.chain(first, coming):
        row = [str(prediction.file)]
        for name, probability in prediction.ranked:
            row += [name, f"{probability:.6g}"]
        writer.writerow(row)


def _record(prediction: Prediction) -> dict[str, object]:
    ranked = [
        {"class": name, "probability": float(f"{probability:.6g}")}
        for name, probability in prediction.ranked
    ]
    record: dict[str, object] = {"file": str(prediction.file), **ranked[0]}
    return record | {"top": ranked} if len(ranked) > 1 else record


class _OnTerminal(io.TextIOBase):
    """A terminal, on which names are shown and not obeyed."""

    def write(self, text: str) -> int:
        return sys.stdout.write(printable(text))


@contextlib.contextmanager
def _destination(out: Path | None) -> Iterator[TextIO | io.TextIOBase]:
    """Stdout, or a new file that appears whole when everything went well."""
    if out is None:
        if isinstance(sys.stdout, io.TextIOWrapper):
            sys.stdout.reconfigure(errors="surrogateescape")
        yield _OnTerminal() if sys.stdout.isatty() else sys.stdout
        sys.stdout.flush()
        return
    with new_file.writing(out) as file:
        stream = io.TextIOWrapper(file, encoding="utf-8", errors="surrogateescape", newline="")
        yield stream
        stream.detach()
