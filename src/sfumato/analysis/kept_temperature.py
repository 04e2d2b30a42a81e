"""Temperature scaling for good: a temperature fitted on held-out images, kept with the weights."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import numpy.typing as npt

from sfumato.analysis.calibration import Scores, fit_temperature, scores
from sfumato.analysis.classification import softmax
from sfumato.errors import UserError
from sfumato.training import temperature as temperatures
from sfumato.training.classifier import digest_of, read_weights, weights_path
from sfumato.training.temperature import Temperature

_DIGITS = 4
"""Significant digits of a temperature: more would tell more of the images and change nothing."""

_HOPELESS = 0.99 * temperatures.LIMIT
"""A temperature that is at the end of where it is sought."""


def keep_temperature(
    source: str | Path, logits: npt.ArrayLike, labels: npt.ArrayLike, *, fitted_on: str
) -> Temperature:
    """Fit a temperature on held-out images, and keep it in a new file beside a run's weights.

    From then on `sfumato.load`, `predict`, `evaluate`, `report`, `card` and `export` divide logits
    by it. No prediction changes, and no file of the run.

    *Guarantee:* The temperature is computed without noise. The run's guarantee stays as it is if
    the images were not trained on; nothing protects the images that it is fitted on.

    Args:
        source: A run folder or a weights file.
        logits: `(n, classes)`, of the model without a temperature.
        labels: `(n,)`.
        fitted_on: The images in words, such as `200 validation images of 'scans'`.

    Raises:
        UserError: If there is a temperature already, or none is the most likely.
    """
    path = weights_path(Path(source))
    temperatures.check_free(path)
    z, y = np.asarray(logits, dtype=np.float64), np.asarray(labels)
    value = float(f"{fit_temperature(z, y):.{_DIGITS}g}")
    perfect = bool((z[np.arange(len(y)), y] >= z.max(1)).all())
    if perfect or value > _HOPELESS:
        why = "every prediction is right" if perfect else "predictions are no better than chance"
        raise UserError(
            f"No temperature suits these {len(y):,} images: {why}, so that the likelihood has no "
            "largest value. Give more images, or others."
        )
    found = Temperature(
        value,
        digest_of(read_weights(path)[1]),
        fitted_on,
        _numbers(scores(softmax(z), y)),
        _numbers(scores(softmax(z, value), y)),
    )
    temperatures.write(path, found)
    return found


def _numbers(found: Scores) -> dict[str, float]:
    return {"nll": found.nll, "ece": found.ece, "brier": found.brier}
