"""`sfumato predict`: the class of images, as CSV or JSON."""

from __future__ import annotations

import contextlib
import csv
import enum
import io
import itertools
import json
import sys
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple, TextIO

import typer

from sfumato.cli.terminal import echo
from sfumato.cli.trust import TRUST_CODE
from sfumato.cli.unit_options import COLUMNS, UNIT_PATTERN, columns_of
from sfumato.errors import UserError
from sfumato.interrupted_import import load_pytorch
from sfumato.io import new_file
from sfumato.text import printable

if TYPE_CHECKING:
    from sfumato.analysis import Prediction
    from sfumato.data.prediction_inputs import Input
    from sfumato.training.classifier import Classifier


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
        ...,
        metavar="FILE|FOLDER...",
        help="Images, DICOM and .npz files, tables of paths, tar shards, folders that are searched "
        "for images.",
    ),
    format: Format = typer.Option(Format.csv, help="How to write predictions."),
    out: Path | None = typer.Option(
        None, "--out", "-o", metavar="FILE", help="New file; stdout if not given."
    ),
    top: int = typer.Option(1, metavar="K", help="Give the K most probable classes."),
    threshold: list[str] = typer.Option(
        [],
        metavar="P|CLASS=P",
        help="Add a decision: the class whose probability reaches P; may be given again.",
    ),
    columns: str = COLUMNS,
    unit_pattern: str = UNIT_PATTERN,
    skip_unreadable: bool = typer.Option(
        False, "--skip-unreadable", help="Go on without images that cannot be read."
    ),
    device: str = typer.Option("auto", help="auto, cpu, cuda or mps."),
    trust_code: list[str] = TRUST_CODE,
) -> None:
    """Predict the class of images, with its probability.

    Images are rotated, scaled and cut as in training. CSV has a line per image: file, class,
    probability, and with --top K also class_2, probability_2 and so on. JSON is a list of objects.
    Where a column of a table, an array of an .npz file or --unit-pattern names units, such as
    patients, there is a column unit; fields of DICOM files are in no output.

    With --threshold there is also a decision: of the classes whose probability reaches their
    threshold the most probable, otherwise the most probable of those without one, or none.
    """
    load_pytorch()
    from sfumato.analysis.thresholds import parse_thresholds
    from sfumato.data.prediction_inputs import find_inputs, with_units
    from sfumato.training.classifier import check_head, load
    from sfumato.training.devices import pick_device

    if out is not None:
        new_file.check(out)
    classifier = load(run, device=pick_device(device), trust_code=trust_code)
    check_head(run, classifier.description)
    thresholds = parse_thresholds(threshold, classifier.classes)
    inputs = find_inputs(images, columns=columns_of(columns) or (), pattern=unit_pattern or "")
    units = with_units(inputs)
    skipped: list[Path] = []

    def note(file: Path, reason: str) -> None:
        skipped.append(file)
        echo(f"Skipped: {file} ({reason})", err=True)

    predictions = _predictions(
        classifier, inputs, top, thresholds, skipped=note if skip_unreadable else None
    )
    arrays = any(item.arrays for item in inputs)
    with _destination(out) as stream:
        watched = (
            predictions if arrays else _watched(predictions, len(inputs), shown=out is not None)
        )
        shown = _Shown(top, units=units, decided=bool(thresholds))
        count = _write(watched, stream, format, shown)
    if skipped:
        echo(f"{len(skipped)} of {len(inputs)} images could not be read.", err=True)
    if out is not None:
        echo(f"Written: {out} ({count} images)", err=True)


class _Shown(NamedTuple):
    """The columns of the output: how many classes, and whether units and decisions are there."""

    top: int
    units: bool
    decided: bool


def _predictions(
    classifier: Classifier,
    inputs: list[Input],
    top: int,
    thresholds: dict[str, float],
    *,
    skipped: Callable[[Path, str], None] | None,
) -> Iterator[Prediction]:
    """The predictions of images and .npz files, in the order in which they were given.

    Raises:
        UserError: If there is not one.
    """
    from sfumato.analysis.inference import predict_arrays, predict_files

    empty = True
    for arrays, group in itertools.groupby(inputs, lambda item: item.arrays):
        if arrays:
            found: Iterator[Prediction] = itertools.chain.from_iterable(
                predict_arrays(classifier, item.name, top=top, thresholds=thresholds)
                for item in group
            )
        else:
            found = predict_files(
                classifier, list(group), top=top, thresholds=thresholds, skipped=skipped
            )
        for prediction in found:
            empty = False
            yield prediction
    if empty:
        raise UserError(
            f"Nothing is predicted: none of the {len(inputs)} files could be read as an image. "
            "Give images."
        )


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
    predictions: Iterable[Prediction],
    stream: TextIO | io.TextIOBase,
    format: Format,
    shown: _Shown,
) -> int:
    """Write a line per prediction as it comes, and nothing before the first; count them."""
    count = 0
    if format is Format.json:
        separator = "["
        for prediction in predictions:
            count += 1
            stream.write(f"{separator}\n{json.dumps(_record(prediction, shown))}")
            separator = ","
        stream.write("\n]\n")
        return count
    writer = csv.writer(stream, lineterminator="\n")
    coming = iter(predictions)
    first = list(itertools.islice(coming, 1))
    header = ["file", *(["unit"] if shown.units else []), "class", "probability"]
    for k in range(2, shown.top + 1):
        header += [f"class_{k}", f"probability_{k}"]
    writer.writerow([*header, *(["decision"] if shown.decided else [])])
    for prediction in itertools.chain(first, coming):
        count += 1
        row = [str(prediction.file), *([prediction.unit] if shown.units else [])]
        for name, probability in prediction.ranked:
            row += [name, f"{probability:.6g}"]
        writer.writerow([*row, *([prediction.decision or ""] if shown.decided else [])])
    return count


def _record(prediction: Prediction, shown: _Shown) -> dict[str, object]:
    ranked = [
        {"class": name, "probability": float(f"{probability:.6g}")}
        for name, probability in prediction.ranked
    ]
    unit = {"unit": prediction.unit} if shown.units else {}
    record: dict[str, object] = {"file": str(prediction.file), **unit, **ranked[0]}
    if shown.decided:
        record["decision"] = prediction.decision
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
