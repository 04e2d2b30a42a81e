"""What a report needs the data and the weights for: test results and sample predictions.

Everything is measured on test images or on images that the user chose, never on training images.
"""

from __future__ import annotations

import base64
import io
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from PIL import Image

from sfumato import analysis
from sfumato.analysis.classification import Array, Evaluation
from sfumato.analysis.inference import find_images
from sfumato.data import Dataset
from sfumato.data.decode import UnreadableError, decode
from sfumato.errors import UserError
from sfumato.report.runs import Run
from sfumato.settings import Data
from sfumato.training import classifier as classifiers
from sfumato.training.classifier import Classifier
from sfumato.training.images import dataset_of

MOST_SAMPLES = 60
_SIDE = 96


@dataclass(frozen=True)
class Choice:
    """Which sample images to show: so many of the test set, or these files."""

    count: int = 0
    files: tuple[Path, ...] = ()


@dataclass(frozen=True)
class Sample:
    """An image and what the model makes of it.

    Attributes:
        name: Where it comes from.
        image: As a data URI.
        true: Its class, if that is known.
        predicted: The most probable class.
        confidence: Its probability.
    """

    name: str
    image: str
    true: str | None
    predicted: str
    confidence: float

    @property
    def right(self) -> bool | None:
        """Whether the prediction is correct, if that is known."""
        return None if self.true is None else self.true == self.predicted


@dataclass(frozen=True, eq=False)
class Measured:
    """What was measured of one run.

    Attributes:
        evaluation: Results on the test set, or None.
        missing: Why there are none, in a sentence.
        parameters: Of the network, or None.
        classes: How many there are, or None.
        samples: Sample predictions, if they were asked for.
    """

    evaluation: Evaluation | None = None
    missing: str = ""
    parameters: int | None = None
    classes: int | None = None
    samples: tuple[Sample, ...] = ()


def choose(words: Sequence[str]) -> Choice | None:
    """The samples that `--samples` names: `test:12`, or files and folders.

    Raises:
        UserError: If that is impossible.
    """
    if not words:
        return None
    parts = [re.fullmatch(r"(test|train|training|validation):(.*)", word) for word in words]
    if any(parts):
        if len(words) > 1 or parts[0] is None:
            raise UserError("--samples takes test:N alone, or files and folders: give one kind.")
        if parts[0][1] != "test":
            raise UserError(
                f"--samples {words[0]}: only test images are put into a report (test:12), or "
                "public images that you name; the training images are what privacy is about."
            )
        if not parts[0][2].isdecimal() or not 1 <= int(parts[0][2]) <= MOST_SAMPLES:
            raise UserError(
                f"--samples {words[0]}: give a number of images from 1 to {MOST_SAMPLES}, as in "
                "test:12."
            )
        return Choice(count=int(parts[0][2]))
    files = find_images([Path(word) for word in words])
    if len(files) > MOST_SAMPLES:
        raise UserError(
            f"--samples names {len(files)} images, and a report shows at most {MOST_SAMPLES}: "
            "choose some."
        )
    return Choice(files=tuple(files))


def measure(
    runs: Sequence[Run],
    *,
    root: Path | None = None,
    device: str | torch.device = "cpu",
    samples: Choice | None = None,
) -> list[Measured]:
    """Evaluate each run's weights on its own test set.

    What cannot be measured says why and stops nothing else.

    Args:
        runs: The runs.
        root: Where to look for data sets first.
        device: Where to compute.
        samples: Which sample images to show.
    """
    loaded: dict[Data, Dataset] = {}
    return [_measured(run, loaded, root, device, samples) for run in runs]


def _measured(
    run: Run,
    loaded: dict[Data, Dataset],
    root: Path | None,
    device: str | torch.device,
    samples: Choice | None,
) -> Measured:
    if not run.finished:
        return Measured(missing="The run has not finished, so there are no weights to evaluate.")
    try:
        classifier = classifiers.load(run.folder, device=device)
    except UserError as error:
        return Measured(missing=f"The weights cannot be used: {error}")
    parameters = sum(p.numel() for p in classifier.network.parameters())
    evaluation, missing, shown = None, "", []
    if samples is not None and samples.files:
        shown = _of_files(classifier, samples.files)
    try:
        dataset = _dataset(run, classifier, loaded, root)
        found = analysis.probabilities(classifier, dataset.test)
        labels = analysis.align_labels(dataset.test.labels, dataset.classes, classifier.classes)
        evaluation = analysis.evaluate(found, labels, classifier.classes)
        if samples is not None and samples.count:
            shown = _of_test(classifier, dataset, found, labels, samples.count)
    except UserError as error:
        missing = f"The test set of '{run.recipe.data.name}' could not be used: {error}"
    return Measured(evaluation, missing, parameters, len(classifier.classes), tuple(shown))


def _dataset(
    run: Run, classifier: Classifier, loaded: dict[Data, Dataset], root: Path | None
) -> Dataset:
    """The run's own data as it was in training; the last one is kept for the next run."""
    d = run.recipe.data
    if d not in loaded:
        loaded.clear()
        loaded[d] = dataset_of(d, root=root)
    dataset = loaded[d]
    shape, wanted = dataset.test.images.shape[1:], classifier.description
    if shape != (wanted.channels, *wanted.size):
        raise UserError(
            f"its images are {'×'.join(map(str, shape))} (channels × height × width) and not those "
            "that the model was trained on."
        )
    return dataset


def _of_test(
    classifier: Classifier, dataset: Dataset, found: Array, labels: Array, count: int
) -> list[Sample]:
    """Random test images, half of them wrongly predicted where there are as many."""
    order = np.random.default_rng(0).permutation(len(labels))
    right = found[order].argmax(1) == labels[order]
    wrong = order[~right][: count // 2]
    chosen = [*order[right][: count - len(wrong)], *wrong]
    chosen += [k for k in order[~right][len(wrong) :]][: count - len(chosen)]
    names = classifier.classes
    return [
        Sample(
            f"test image {k}",
            _uri(np.asarray(dataset.test.images[k])),
            names[labels[k]],
            names[int(found[k].argmax())],
            float(found[k].max()),
        )
        for k in chosen
    ]


def _of_files(classifier: Classifier, files: Sequence[Path]) -> list[Sample]:
    """Files as the model sees them; the folder's name is the true class if it is one."""
    wanted, names = classifier.description, classifier.classes
    if wanted.channels not in (1, 3):
        raise UserError(
            f"The model takes images of {wanted.channels} channels, and image files have 1 or 3: "
            "leave --samples out, or give test:N."
        )
    found = []
    for file in files:
        try:
            planes = decode(file, size=wanted.size, channels=wanted.channels)
        except UnreadableError as error:
            raise UserError(f"The sample {file} cannot be read as an image: {error}.") from None
        row = classifier.predict(torch.from_numpy(np.array(planes[None]))).numpy()[0]
        parent = file.absolute().parent.name
        true = parent if parent in names else None
        predicted = names[int(row.argmax())]
        found.append(Sample(file.name, _uri(planes), true, predicted, float(row.max())))
    return found


def _uri(planes: Array) -> str:
    """Planes `(C, H, W)` as a small picture that carries nothing but its pixels."""
    values = planes if planes.dtype == np.uint8 else np.nan_to_num(planes).clip(0, 1) * 255
    pixels = np.rint(values).astype(np.uint8)
    grey = pixels.shape[0] != 3
    image = Image.fromarray(pixels[0] if grey else np.ascontiguousarray(pixels.transpose(1, 2, 0)))
    small = max(image.size) <= 64
    if max(image.size) > _SIDE:
        image.thumbnail((_SIDE, _SIDE))
    buffer, kind = io.BytesIO(), "png" if small else "jpeg"
    image.save(buffer, format=kind, optimize=True)
    return f"data:image/{kind};base64,{base64.b64encode(buffer.getvalue()).decode()}"
