"""Outputs of a classifier in bounded memory: of image sets, image files or arrays."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch

from sfumato.analysis.classification import Array
from sfumato.analysis.thresholds import decide
from sfumato.data import ImageSet
from sfumato.data.adapt import adapted
from sfumato.data.decode import Read, UnreadableError
from sfumato.data.decode_block import Form, read_content
from sfumato.data.folder import images_below
from sfumato.data.npz import has_units, image_arrays, unit_names
from sfumato.data.prediction_inputs import Input
from sfumato.data.progress_bar import progress
from sfumato.errors import UserError
from sfumato.memory import BatchSize
from sfumato.training.classifier import Classifier


@dataclass(frozen=True)
class Prediction:
    """The most probable classes of one image.

    Attributes:
        file: As it was given, or as it was found; `FILE.npz:ARRAY:POSITION` of an array's image.
        ranked: Names and probabilities, the most probable first.
        decision: The class by thresholds, if any were given; None also if none was reached.
        unit: The unit of privacy that a table, an array or a path names; empty if none does.
    """

    file: Path
    ranked: tuple[tuple[str, float], ...]
    decision: str | None = None
    unit: str = ""


def logits(classifier: Classifier, images: ImageSet, *, batch: int = 256) -> Array:
    """Logits `(n, classes)` of an image set that may be larger than the memory, in float32."""
    found = np.empty((len(images), len(classifier.classes)), dtype=np.float32)
    rows = BatchSize(batch)
    with progress("evaluating", len(images), unit="images") as advance:
        for start in range(0, len(images), batch):
            part = torch.from_numpy(np.array(images.images[start : start + batch]))
            found[start : start + batch] = classifier.logits(part, batch=rows).numpy()
            advance(len(part))
    return found


def probabilities(classifier: Classifier, images: ImageSet, *, batch: int = 256) -> Array:
    """Class probabilities `(n, classes)` of an image set that may be larger than the memory."""
    found = torch.from_numpy(logits(classifier, images, batch=batch))
    return found.softmax(1).numpy()


def find_images(paths: Sequence[Path]) -> list[Path]:
    """The files among `paths` as they are, and the images below the folders among them.

    Raises:
        UserError: If one does not exist, or a folder holds no images.
    """
    found: list[Path] = []
    for path in paths:
        if path.is_dir():
            below = images_below(path)
            if not below:
                raise UserError(f"The folder {path} holds no images, and neither do those in it.")
            found += below
        elif path.exists():
            found.append(path)
        else:
            raise UserError(f"There is no file or folder {path}.")
    return found


def predict_files(
    classifier: Classifier,
    files: Sequence[Path | Input],
    *,
    top: int = 1,
    batch: int = 256,
    skipped: Callable[[Path, str], None] | None = None,
    thresholds: Mapping[str, float] | None = None,
) -> Iterator[Prediction]:
    """Predict image files one after another, decoded exactly as they are for training.

    No more than two batches of images are held at a time.

    Args:
        classifier: The model.
        files: Image files, or what `sfumato.data.prediction_inputs.find_inputs` found.
        top: How many classes to give for each.
        batch: Images predicted at once.
        skipped: Called with each file that cannot be read, and the reason; without it such a file
            is an error.
        thresholds: By class, as for `decide`; each prediction then has a decision.

    Raises:
        UserError: If `top` is impossible, a file cannot be read, or the model gives NaN.
    """
    _check_top(classifier, top)
    description = classifier.description
    if description.channels not in (1, 3):
        raise UserError(
            f"This model takes images of {description.channels} channels, and image files are read "
            "with 1 (grey) or 3 (colour)."
        )
    d, rows = description, BatchSize(batch)
    form = Form(d.size, d.channels, d.bits, d.window)
    inputs = [file if isinstance(file, Input) else Input(file, file) for file in files]
    for read, planes in _decoded(inputs, form, batch, skipped):
        found = classifier.predict(torch.from_numpy(np.stack(planes)), batch=rows).numpy()
        for item, row in zip(read, found, strict=True):
            yield _prediction(item.name, row, d.classes, top, thresholds, item.unit)


def predict_arrays(
    classifier: Classifier,
    path: Path,
    *,
    top: int = 1,
    batch: int = 256,
    thresholds: Mapping[str, float] | None = None,
) -> Iterator[Prediction]:
    """Predict the images of an .npz file, in its order, brought to the model's size and channels.

    Args:
        classifier: The model.
        path: The file; labels are not needed.
        top: How many classes to give for each.
        batch: Images predicted at once.
        thresholds: As for `predict_files`.

    Raises:
        UserError: If `top` is impossible, the file cannot be read, or the model gives NaN.
    """
    _check_top(classifier, top)
    d, rows = classifier.description, BatchSize(batch)
    units = unit_names(path) if has_units(path) else {}
    for array, images in image_arrays(path, bits=d.bits).items():
        for start in range(0, len(images), batch):
            part = adapted(images[start : start + batch], where=str(path), size=d.size,
                           channels=d.channels)  # fmt: skip
            found = classifier.predict(torch.from_numpy(part), batch=rows).numpy()
            for k, row in enumerate(found, start):
                name = Path(f"{path}:{array}:{k}")
                unit = units[array][k] if array in units else ""
                yield _prediction(name, row, classifier.classes, top, thresholds, unit)


def _check_top(classifier: Classifier, top: int) -> None:
    count = len(classifier.classes)
    if not 1 <= top <= count:
        raise UserError(
            f"The {top} most probable classes are impossible: this model has {count}; give "
            f"a number from 1 to {count}."
        )


def _prediction(
    name: Path,
    row: Array,
    classes: Sequence[str],
    top: int,
    thresholds: Mapping[str, float] | None,
    unit: str,
) -> Prediction:
    if not np.isfinite(row).all():
        raise UserError(
            f"The model gives no finite probabilities for {name}: its training diverged, or the "
            "image holds values that are no numbers."
        )
    best = np.argsort(-row, kind="stable")[:top]
    ranked = tuple((classes[k], float(row[k])) for k in best)
    decision = decide(row, classes, thresholds) if thresholds else None
    return Prediction(name, ranked, decision, unit)


def _decoded(
    inputs: Sequence[Input],
    form: Form,
    batch: int,
    skipped: Callable[[Path, str], None] | None,
) -> Iterator[tuple[list[Input], list[Array]]]:
    """Batches of inputs with their images; threads decode the next while one is used."""
    windows = [inputs[start : start + batch] for start in range(0, len(inputs), batch)]
    pool = ThreadPoolExecutor(min(16, os.cpu_count() or 1))

    def start(index: int) -> list[Future[Read]]:
        some = windows[index] if index < len(windows) else []
        return [pool.submit(read_content, item.content, form) for item in some]

    try:
        coming = start(0)
        for index, window in enumerate(windows):
            current, coming = coming, start(index + 1)
            read: list[Input] = []
            planes: list[Array] = []
            for item, future in zip(window, current, strict=True):
                try:
                    planes.append(future.result().pixels)
                    read.append(item)
                except UnreadableError as error:
                    if skipped is None:
                        raise UserError(
                            f"The image {item.name} cannot be read ({error}): leave it out, or "
                            "give --skip-unreadable to go on without such images."
                        ) from None
                    skipped(item.name, str(error))
            if read:
                yield read, planes
    finally:
        pool.shutdown(cancel_futures=True)
