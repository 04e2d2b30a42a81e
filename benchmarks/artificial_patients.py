"""Accuracy against the number of images of a patient: CIFAR-10 in patients of equal sizes.

    python benchmarks/artificial_patients.py make DATA_ROOT patients.npz --images 5
    sfumato train last-layer --data patients.npz --unit patient --epsilon 8 --seed 0
    python benchmarks/artificial_patients.py draw

All images of a patient have one label. `draw` makes the picture of docs/patients.md out of the
accuracies in `artificial_patients.json`.
"""

from __future__ import annotations

import argparse
import json
import statistics
from pathlib import Path

import numpy as np

from sfumato.charts import png
from sfumato.charts.chart import Axis, Chart, Series, value_axis
from sfumato.data import load

HERE = Path(__file__).resolve().parent
RECORD = HERE / "artificial_patients.json"
PICTURE = HERE.parent / "docs" / "images" / "patients-cifar10.png"


def make(root: Path, out: Path, images: int) -> None:
    """Write CIFAR-10 with the patients of its training images into an `.npz` file."""
    data = load("cifar10", root=root)
    labels = np.asarray(data.train.labels)
    units = np.empty(len(labels), dtype=np.int64)
    count = 0
    for label in range(len(data.classes)):
        own = np.flatnonzero(labels == label)
        units[own] = count + np.arange(len(own)) // images
        count = int(units[own].max()) + 1
    np.savez(
        out, x_train=data.train.images, y_train=labels, units_train=units,
        x_test=data.test.images, y_test=data.test.labels,
        units_test=count + np.arange(len(data.test.labels)),
    )  # fmt: skip
    print(f"{out}: {len(labels)} images of {count} patients")


def draw() -> None:
    """Draw the accuracies of the record."""
    record = json.loads(RECORD.read_text())
    sizes = [int(size) for size in record["accuracies"]]
    every = [tuple(values) for values in record["accuracies"].values()]
    points = tuple((s, statistics.median(v)) for s, v in zip(sizes, every, strict=True))
    spans = tuple((min(values), max(values)) for values in every)
    y = value_axis("test accuracy", [a for values in every for a in values], percent=True)
    x = Axis(
        "images of a patient", 0.9, 22, log=True, at=tuple(sizes), names=tuple(map(str, sizes))
    )
    series = Series(points=points, spans=spans, marker="circle")
    title = f"CIFAR-10, one patient protected, ε = {record['epsilon']:g}"
    png.draw([[Chart(x=x, y=y, items=(series,))]], PICTURE, width=5.4, height=3.4, title=title)
    print(PICTURE)


def main() -> None:
    arguments = argparse.ArgumentParser()
    commands = arguments.add_subparsers(dest="command", required=True)
    making = commands.add_parser("make")
    making.add_argument("root", type=Path)
    making.add_argument("out", type=Path)
    making.add_argument("--images", type=int, default=5)
    commands.add_parser("draw")
    a = arguments.parse_args()
    if a.command == "make":
        make(a.root, a.out, a.images)
    else:
        draw()


if __name__ == "__main__":
    main()
