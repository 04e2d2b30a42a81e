"""Measurements that need data and weights: test results and sample predictions.

Everything is measured on test images or on images that the user chose, never on training images.
"""

from __future__ import annotations

import base64
import io
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from PIL import Image

from sfumato import analysis
from sfumato.analysis.bootstrap import RESAMPLES, unit_word
from sfumato.analysis.classification import Array, Evaluation
from sfumato.analysis.inference import find_images
from sfumato.data import Dataset
from sfumato.data.adapt import align_labels
from sfumato.data.decode import UnreadableError, decode
from sfumato.errors import UserError
from sfumato.models import Code
from sfumato.run import Run
from sfumato.text import GIVEN, percent
from sfumato.training import classifier as classifiers
from sfumato.training import run_folder
from sfumato.training.classifier import Classifier
from sfumato.training.recipe_data import images_of

MOST_SAMPLES = 60
_SIDE = 96
_DISAGREE = 0.005


@dataclass(frozen=True)
class Choice:
    """Sample images to show: so many of the test set, or these files."""

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
        """Tell whether the prediction is correct; None if that is not known."""
        return None if self.true is None else self.true == self.predicted


@dataclass(frozen=True, eq=False)
class Measured:
    """The measurements of one run.

    Attributes:
        evaluation: Results on the test set, or None.
        missing: Why there are none, in a sentence.
        parameters: Of the network, or None.
        classes: How many there are, or None.
        samples: Sample predictions, if they were asked for.
        data: Name of the data that was given instead of the run's own; empty if none was.
        temperature: The temperature kept with the weights, in sentences; empty if there is none.
    """

    evaluation: Evaluation | None = None
    missing: str = ""
    parameters: int | None = None
    classes: int | None = None
    samples: tuple[Sample, ...] = ()
    data: str = ""
    temperature: str = ""


def disagreement(run: Run, measured: Measured) -> str:
    """A sentence on test results that differ from those the run reported; empty if none do."""
    e = measured.evaluation
    if e is None or run.accuracy is None or abs(run.accuracy - e.accuracy) <= _DISAGREE:
        return ""
    where = f"of '{measured.data}'" if measured.data else "as it is now"
    return (
        f"The run reported {percent(run.accuracy)} when it ended, but the weights reach "
        f"{percent(e.accuracy)} on the test set {where}: the data or the weights are not those of "
        "then."
    )


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
    data: object = None,
    root: str | Path | None = None,
    device: str | torch.device = "cpu",
    samples: Choice | None = None,
    trust_code: Iterable[Code] = (),
) -> list[Measured]:
    """Evaluate each run's weights on its own test set, or on that of other data.

    What cannot be measured says why and stops nothing else.

    Args:
        runs: The runs.
        data: A data set, folder or .npz with the models' classes, instead of each run's own.
        root: Where to look for data sets first.
        device: Where to compute.
        samples: Which sample images to show.
        trust_code: As for `sfumato.load`.
    """
    loaded = _Loaded(data, root)
    return [_measured(run, loaded, device, samples, trust_code) for run in runs]


def _measured(
    run: Run,
    loaded: _Loaded,
    device: str | torch.device,
    samples: Choice | None,
    trust_code: Iterable[Code],
) -> Measured:
    if not run.finished:
        reason = (
            f"its {run_folder.WEIGHTS} was removed"
            if run.weights_removed
            else "it has not finished"
        )
        return Measured(missing=f"The run has no weights to evaluate: {reason}.")
    try:
        classifier = classifiers.load(run.folder, device=device, trust_code=trust_code)
    except UserError as error:
        return Measured(missing=f"The weights cannot be used: {error}")
    parameters = sum(p.numel() for p in classifier.network.parameters())
    evaluation, missing, given, shown = None, "", "", []
    if samples is not None and samples.files:
        shown = _of_files(classifier, samples.files)
    try:
        dataset = loaded.of(run, classifier)
        own = loaded.data is None or run.recipe.data.name.startswith(GIVEN)
        given = "" if own else dataset.name
        outputs = analysis.logits(classifier, dataset.test)
        found = analysis.softmax(outputs)
        labels = align_labels(dataset.test.labels, dataset.classes, classifier.classes)
        units = dataset.test.units
        evaluation = analysis.evaluate_logits(
            outputs, labels, classifier.classes, units=units, resamples=RESAMPLES,
            unit=unit_word(run.recipe.data.unit, units),
        )  # fmt: skip
        if samples is not None and samples.count:
            shown = _of_test(classifier, dataset, found, labels, samples.count)
    except UserError as error:
        if loaded.data is not None:
            raise
        missing = f"The test set could not be used: {error}"
    about = classifier.temperature.sentence if classifier.temperature else ""
    return Measured(
        evaluation, missing, parameters, len(classifier.classes), tuple(shown), given, about
    )


class _Loaded:
    """The data of runs; the last one is kept for the next run."""

    def __init__(self, data: object, root: str | Path | None) -> None:
        self.data, self._root = data, root
        self._last: tuple[object, Dataset] | None = None

    def of(self, run: Run, classifier: Classifier) -> Dataset:
        """The run's own data as it was in training, or what was given instead."""
        d, wanted = run.recipe.data, classifier.description
        shape = wanted.channels, *wanted.size
        if self._last is None or self._last[0] != (d, shape):
            self._last = None
            dataset = images_of(run.recipe, data=self.data, root=self._root, shape=shape)
            self._last = (d, shape), dataset
        dataset = self._last[1]
        found = dataset.test.images.shape[1:]
        if found != shape:
            raise UserError(
                f"The images of '{dataset.name}' are {'×'.join(map(str, found))} (channels × "
                "height × width) and not those that the model was trained on: --data names others."
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
            planes = decode(file, size=wanted.size, channels=wanted.channels, bits=wanted.bits)
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
