"""Printed description of an image set: parts, units, shape, notes and images per class."""

from __future__ import annotations

from typing import TYPE_CHECKING

from sfumato.cli.terminal import Terminal, echo

if TYPE_CHECKING:
    from sfumato.data import Dataset

_LONGEST_CLASS_TABLE = 30


def describe(dataset: Dataset, unit: str) -> None:
    """Print what a data set holds.

    Args:
        dataset: The images.
        unit: The word for a unit of privacy.
    """
    import numpy as np
    from rich.table import Table

    parts = dataset.parts()
    echo(f"{dataset.name}, from {dataset.source}")
    counts = ", ".join(f"{len(part):,} {name}" for name, part in parts.items())
    echo(f"Images: {counts}")
    if dataset.train.units is not None:
        counts = ", ".join(f"{part.examples:,} {name}" for name, part in parts.items())
        echo(f"Units of privacy ({unit}): {counts}")
    height, width = dataset.size
    kind = dataset.train.images.dtype.name
    echo(f"Size: {dataset.channels}×{height}×{width} (channels×height×width), {kind}")
    echo(f"Normalisation (constants): mean {dataset.mean}, deviation {dataset.std}")
    echo(f"Fingerprint of train: {dataset.fingerprint()}")
    for note in dataset.notes:
        echo(f"Note: {note}")
    if dataset.skipped:
        echo(f"Skipped as unreadable: {len(dataset.skipped)}")
        for path in dataset.skipped:
            echo(f"  {path}")
    table = Table(box=None, pad_edge=False)
    table.add_column("class")
    for name in parts:
        table.add_column(name, justify="right", no_wrap=True)
    classes = len(dataset.classes)
    per_class = [np.bincount(part.labels, minlength=classes) for part in parts.values()]
    for label, name in enumerate(dataset.classes[:_LONGEST_CLASS_TABLE]):
        table.add_row(name, *(f"{count[label]:,}" for count in per_class))
    echo()
    Terminal().print(table)
    if classes > _LONGEST_CLASS_TABLE:
        low, high = per_class[0].min(), per_class[0].max()
        echo(f"… {classes} classes in all, with {low:,} to {high:,} training images each.")
