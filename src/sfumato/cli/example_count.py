"""The number of training examples that `budget` and `plan` are told: a number, or the data."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import typer

from sfumato.cli.terminal import echo
from sfumato.cli.unit_options import columns_of
from sfumato.errors import UserError, nearest
from sfumato.text import DATA_FILES

TRAINING_EXAMPLES = {
    "digits": 1438,
    "mnist": 60_000,
    "fashion-mnist": 60_000,
    "cifar10": 50_000,
    "cifar100": 50_000,
    "imagenette": 9_469,
    "tiny-imagenet": 100_000,
}

DATA: Any = typer.Option(
    None, help="Instead of --examples: a folder, a table, an .npz, or a name such as cifar10."
)


def examples_of(
    examples: int | None,
    data: str | None,
    *,
    unit: str | None,
    unit_pattern: str | None,
    columns: str | None,
) -> int:
    """The number that is given, or that of the training images or units that are found.

    What is found is said on stderr.

    Args:
        examples: The number.
        data: The data.
        unit: The unit of privacy; one image if None.
        unit_pattern: A pattern of paths that names it.
        columns: Columns of a table.

    Raises:
        UserError: Neither is given, or both, or the data are not known.
    """
    from sfumato.privacy.accounting.budget import check_examples

    if (examples is None) == (data is None):
        raise UserError(
            "Say how many training examples there are: --examples N, or --data with a folder of "
            f"images, a table, an .npz, or one of {', '.join(TRAINING_EXAMPLES)}"
            f"{'' if data is None else ' (not both)'}."
        )
    if data in TRAINING_EXAMPLES:
        return TRAINING_EXAMPLES[data]
    if data is not None:
        return _found(data, unit or "image", unit_pattern or "", columns_of(columns) or ())
    assert examples is not None
    check_examples(examples)
    return examples


def _found(data: str, unit: str, pattern: str, columns: Any) -> int:
    path = Path(data).expanduser()
    if not path.exists() and path.suffix not in DATA_FILES and "/" not in data:
        raise UserError(
            f"The size of '{data}' is not known here.{nearest(data, TRAINING_EXAMPLES)} Give "
            "a folder of images, or the number of training examples with --examples."
        )
    from sfumato.data.loading import count_examples

    count = count_examples(data, unit=unit, unit_pattern=pattern, columns=columns)
    echo(f"{data}: {count:,} {unit}s to train on, the others are set aside for testing.", err=True)
    return count
