"""The temperature of a classifier: fitted after training, kept in a file beside the weights.

The weights file stays as the run wrote it, so that its digests, its signature and `--resume` are
not touched; removing the file restores the probabilities that the run released.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path

from sfumato.errors import UserError
from sfumato.io import json_lines
from sfumato.io.atomic import write_whole

FILE = "temperature.json"
LIMIT = 1e3
"""Temperatures lie between 1/LIMIT and LIMIT."""


@dataclass(frozen=True)
class Temperature:
    """A number that logits are divided by before they become probabilities.

    Attributes:
        value: The number; above 1 probabilities become less certain.
        weights: Digest of the tensors that it was fitted for.
        fitted_on: The images that it was fitted on, in words.
        before: Scores on these images without it, by name.
        after: Scores with it.
    """

    value: float
    weights: str
    fitted_on: str
    before: Mapping[str, float] = field(default_factory=dict)
    after: Mapping[str, float] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if type(self.value) not in (int, float) or not 1 / LIMIT <= self.value <= LIMIT:
            raise ValueError(f"the temperature is no number from {1 / LIMIT:g} to {LIMIT:g}")
        if type(self.weights) is not str or type(self.fitted_on) is not str:
            raise ValueError("the weights or the images are not named by a text")
        for scores in (self.before, self.after):
            if not isinstance(scores, Mapping) or any(
                type(v) not in (int, float) or not math.isfinite(v) for v in scores.values()
            ):
                raise ValueError("a score is no number")

    @property
    def sentence(self) -> str:
        """The temperature, its images, and that the guarantee does not cover these."""
        return (
            f"Logits are divided by a temperature of {self.value:g}, fitted on {self.fitted_on}. "
            "That number is exact: the privacy guarantee is about training images and does not "
            "cover the images that it was fitted on."
        )


def place(weights: Path) -> Path:
    """The file of the temperature for a weights file."""
    return weights.with_name(FILE)


def read(weights: Path) -> Temperature | None:
    """The temperature that is kept beside a weights file, if there is one.

    Raises:
        UserError: If the file cannot be read.
    """
    path = place(weights)
    if not path.is_file():
        return None
    try:
        return Temperature(**json_lines.parse(path.read_bytes()))
    except (OSError, ValueError, TypeError) as error:
        raise UserError(
            f"{path} cannot be read as a temperature ({error}): remove it, and fit another with "
            "`sfumato calibrate`."
        ) from None


def check_fits(found: Temperature, weights: Path, digest: str) -> None:
    """Refuse a temperature that was fitted for other weights.

    Raises:
        UserError: It was.
    """
    if found.weights != digest:
        raise UserError(
            f"{place(weights)} was fitted for other weights than those of {weights}: remove it, "
            "and fit another with `sfumato calibrate`."
        )


def write(weights: Path, temperature: Temperature) -> Path:
    """Keep a temperature beside a weights file, in a new file.

    Raises:
        UserError: If there is one already, or nothing can be written there.
    """
    path = place(weights)
    check_free(weights)
    try:
        write_whole(path, (json.dumps(asdict(temperature), indent=2) + "\n").encode())
    except OSError as error:
        raise UserError(f"{path} cannot be written: {error.strerror}.") from None
    return path


def check_free(weights: Path) -> None:
    """Refuse weights that have a temperature already.

    Raises:
        UserError: They have.
    """
    path = place(weights)
    if path.exists() or path.is_symlink():
        raise UserError(
            f"{path} holds a temperature already and is left alone: `sfumato calibrate RUN "
            "--remove` removes it."
        )


def remove(weights: Path) -> Path:
    """Remove the temperature of a weights file.

    Raises:
        UserError: If there is none.
    """
    path = place(weights)
    if not (path.exists() or path.is_symlink()):
        raise UserError(f"There is no {path}: these weights have no temperature.")
    path.unlink()
    return path
