"""Small data sets of patients, whose identifiers must not be found in anything written."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from PIL import Image

PATIENT = "Ginevra-Benci-"
"""The beginning of every identifier; long, so that compressed files do not hold it by chance."""


def write_patients(root: Path, patients: int = 30, *, side: int = 12) -> Path:
    """A folder for each patient, with one to three grey images, in folders of two classes."""
    random = np.random.default_rng(0)
    for k in range(patients):
        folder = root / ("benign", "malignant")[k % 2] / f"{PATIENT}{k:03d}"
        folder.mkdir(parents=True)
        for i in range(1 + k % 3):
            Image.fromarray(random.integers(0, 256, (side, side), np.uint8)).save(
                folder / f"{i}.png"
            )
    return root
