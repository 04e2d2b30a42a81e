"""`sfumato evaluate`: how good a trained model is, in numbers and in a picture."""

from __future__ import annotations

import enum
import json
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from sfumato.cli.terminal import Terminal, echo
from sfumato.cli.trust import TRUST_CODE
from sfumato.errors import UserError
from sfumato.interrupted_import import load_pytorch
from sfumato.text import percent

if TYPE_CHECKING:
    from sfumato.analysis import Evaluation
    from sfumato.data import Dataset
    from sfumato.training.classifier import Classifier, Description

_STEM = "evaluation"


class Split(enum.StrEnum):
    """A part of the data."""

    test = "test"
    validation = "validation"
    train = "train"
    all = "all"


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command()(evaluate)


def evaluate(
    run: Path = typer.Argument(..., metavar="RUN", help="A run folder or a weights file."),
    data: str | None = typer.Option(
        None, help="Data set, folder or .npz with the model's classes, instead of the run's own."
    ),
    data_root: Path | None = typer.Option(None, help="Where to look for data sets first."),
    split: Split = typer.Option(Split.test, help="A part of the data."),
    device: str = typer.Option("auto", help="auto, cpu, cuda or mps."),
    trust_code: list[str] = TRUST_CODE,
    out: Path | None = typer.Option(
        None,
        "--out",
        "-o",
        metavar="DIR",
        help="Folder for evaluation.json and .png; the run's if not given.",
    ),
    specificity: float = typer.Option(
        0.95, help="Specificity at which the sensitivity of each class is stated."
    ),
    resamples: int = typer.Option(
        1000, help="Bootstrap resamples for 95 % intervals; 0 for no intervals."
    ),
    as_json: bool = typer.Option(False, "--json", help="Print what evaluation.json holds."),
    skip_unreadable: bool = typer.Option(
        False, "--skip-unreadable", help="Go on without images that cannot be read."
    ),
) -> None:
    """Evaluate a trained model: accuracy, AUROC, calibration, confusion matrix, each class."""
    load_pytorch()
    from sfumato.cli.run_images import images_for
    from sfumato.discrimination import check_specificity
    from sfumato.training.classifier import load
    from sfumato.training.devices import pick_device

    check_specificity(specificity)
    if resamples < 0 or resamples == 1:
        raise UserError(
            f"--resamples {resamples}: intervals take at least 2 resamples (1000 is usual); 0 "
            "leaves them out."
        )
    classifier = load(run, device=pick_device(device), trust_code=trust_code)
    folder = _output_folder(out or (run if run.is_dir() else run.parent))
    dataset = images_for(run, classifier.description, data, data_root, skip_unreadable)
    for remark in _remarks(dataset, data, split):
        echo(remark, err=True)
    evaluation = _evaluated(
        classifier, dataset, split, specificity=specificity, resamples=resamples, unit=_unit(run)
    )
    warning = _warning(classifier.description, split, own=data is None)
    content = _content(run, classifier, dataset, split, evaluation, warning)
    title = f"{classifier.description.model} on {dataset.name}, {split.value}"
    if as_json:
        echo(json.dumps(content, indent=2))
    else:
        _show(evaluation, title)
    if classifier.temperature is not None:
        echo(classifier.temperature.sentence, err=as_json)
    if warning:
        echo(warning, err=True)
    if warning and data is None:
        title += " (not covered by the privacy guarantee)"
    for path in _write(folder, content, evaluation, title):
        echo(f"Written: {path}", err=as_json)


def _unit(run: Path) -> str:
    """The unit of privacy that the run's recipe states; an image if it has none."""
    from sfumato import recipes
    from sfumato.training.run_folder import RECIPE

    return recipes.of_run(run).data.unit if (run / RECIPE).is_file() else "image"


def _evaluated(
    classifier: Classifier,
    dataset: Dataset,
    split: Split,
    *,
    specificity: float,
    resamples: int,
    unit: str,
) -> Evaluation:
    import numpy as np

    from sfumato import analysis
    from sfumato.analysis.bootstrap import unit_word
    from sfumato.data.adapt import align_labels

    parts = dataset.parts()
    chosen = list(parts.values()) if split is Split.all else [parts[split]]
    labels = np.concatenate([part.labels for part in chosen])
    labels = align_labels(labels, dataset.classes, classifier.classes)
    known = [part.units for part in chosen if part.units is not None]
    units = np.concatenate(known) if len(known) == len(chosen) else None
    logits = np.concatenate([analysis.logits(classifier, part) for part in chosen])
    return analysis.evaluate_logits(
        logits, labels, classifier.classes, specificity=specificity, resamples=resamples,
        units=units, unit=unit_word(unit, units),
    )  # fmt: skip


def _remarks(dataset: Dataset, data: str | None, split: Split) -> list[str]:
    """Remarks on the loading of the data; refuses a part that is not there."""
    if split is Split.validation and dataset.validation is None:
        raise UserError(
            f"'{dataset.name}' has no validation part, and the run set none aside: choose "
            "--split test."
        )
    if split is not Split.all and not len(dataset.parts()[split]):
        raise UserError(
            f"The {split.value} part of '{dataset.name}' is empty: --split all evaluates on every "
            "image."
        )
    remarks = [f"Note: {note}" for note in dataset.notes]
    if data is not None and split is Split.test and len(dataset.train):
        remarks.append(
            f"Note: of the images in '{dataset.name}' {len(dataset.test)} are its test part; "
            "--split all evaluates on every one."
        )
    if dataset.skipped:
        remarks.append(f"Note: {len(dataset.skipped)} images could not be read and were left out.")
    return remarks


def _warning(description: Description, split: Split, *, own: bool) -> str:
    if not description.guarantee.get("private", True) or split not in (Split.train, Split.all):
        return ""
    if own:
        return (
            "These numbers were computed on the training images: the privacy guarantee does not "
            "cover them. Keep them as confidential as the images."
        )
    return (
        "If the model was trained on any of these images, its privacy guarantee does not cover "
        "these numbers."
    )


def _content(
    run: Path,
    classifier: Classifier,
    dataset: Dataset,
    split: Split,
    evaluation: Evaluation,
    warning: str,
) -> dict[str, Any]:
    from sfumato import version

    description = classifier.description
    content: dict[str, Any] = {
        "sfumato": version.of(),
        "run": str(run),
        "model": description.model,
        "data": dataset.name,
        "split": split.value,
        "guarantee": description.guarantee,
    }
    if classifier.temperature is not None:
        content["temperature"] = classifier.temperature.value
    if warning:
        content["warning"] = warning
    return content | evaluation.to_dict()


def _output_folder(folder: Path) -> Path:
    """The folder to write to, made if need be and checked before the long work."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UserError(f"Cannot make the folder {folder}: {error.strerror}.") from None
    if not os.access(folder, os.W_OK | os.X_OK):
        raise UserError(f"{folder} cannot be written to: choose another folder with --out.")
    return folder


def _write(
    folder: Path, content: dict[str, Any], evaluation: Evaluation, title: str
) -> tuple[Path, Path]:
    """Write the numbers and the picture under the first number that is free for both."""
    from sfumato.io.atomic import write_whole
    from sfumato.report import evaluation_picture as picture

    try:
        table, image = _claim(folder)
        try:
            write_whole(table, (json.dumps(content, indent=2) + "\n").encode())
            picture.draw(evaluation, image, title=title)
        except BaseException:
            table.unlink(missing_ok=True)
            raise
    except OSError as error:
        raise UserError(
            f"The evaluation cannot be written to {folder} ({error.strerror}): choose another "
            "folder with --out."
        ) from None
    return table, image


def _claim(folder: Path) -> tuple[Path, Path]:
    number = 1
    while True:
        stem = _STEM if number == 1 else f"{_STEM}-{number}"
        table, image = folder / f"{stem}.json", folder / f"{stem}.png"
        number += 1
        if image.exists():
            continue
        try:
            table.touch(exist_ok=False)
        except FileExistsError:
            continue
        return table, image


def _show(evaluation: Evaluation, title: str) -> None:
    from rich.table import Table
    from rich.text import Text

    from sfumato.report import discrimination as told

    e = evaluation
    console = Terminal()
    console.print(Text(title, style="bold"), soft_wrap=True)
    lines = [("images", str(e.n)), ("accuracy", told.overall(e, "accuracy"))]
    if e.tells_top5:
        lines.append(("top-5 accuracy", percent(e.top5, 2)))
    balanced = told.overall(e, "balanced_accuracy")
    lines += [("balanced accuracy", f"{balanced}   mean recall of the classes")]
    lines += [(name, f"{value}   {told.meaning(e)}") for name, value in told.rows(e)[:1]]
    lines += told.rows(e)[1:]
    lines += [
        ("NLL", f"{e.nll:.4f}   negative log-likelihood, nats"),
        ("Brier score", f"{e.brier:.4f}   0 is perfect, 2 the worst"),
        ("ECE", f"{e.ece:.4f}   expected calibration error, 15 bins"),
    ]
    wide = max(len(name) for name, _ in lines)
    for name, value in lines:
        console.print(Text(f"{name:<{wide}}  {value}"), soft_wrap=True)
    table = Table(box=None, pad_edge=False)
    table.add_column("class", overflow="fold")
    for heading in ("images", "precision", "recall", "F1"):
        table.add_column(heading, justify="right", no_wrap=True)
    for k, name in enumerate(e.classes):
        shares = (percent(values[k], 2) for values in (e.precision, e.recall, e.f1))
        table.add_row(Text(name), str(e.support[k]), *shares)
    against = Table(box=None, pad_edge=False)
    against.add_column("class", overflow="fold")
    for heading in ("AUROC", "average precision", "sensitivity"):
        against.add_column(heading, justify="right", no_wrap=True)
    for k, name in enumerate(e.classes):
        values = ("auroc", "average_precision", "sensitivity")
        against.add_row(Text(name), *(Text(told.of_class(e, value, k)) for value in values))
    console.print()
    console.print(table)
    level = f"{100 * e.specificity:.4g} %"
    console.print(f"\nEach class against all others, sensitivity at specificity {level}:")
    console.print(against)
    console.print()
    for note in told.notes(e):
        console.print(Text(note))
