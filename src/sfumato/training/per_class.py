"""Settings that have a number for each class."""

from __future__ import annotations

from collections.abc import Sequence

from sfumato.errors import UserError

_LARGEST = 1e6


def check_numbers(setting: str, numbers: Sequence[float], example: str) -> None:
    """Refuse numbers that are not finite, not positive or out of proportion.

    Args:
        setting: Name of the setting.
        numbers: Its value.
        example: A sensible number and its effect, for the message.

    Raises:
        UserError: If there is such a number.
    """
    for value in numbers:
        if not 1 / _LARGEST <= value <= _LARGEST:
            raise UserError(
                f"{setting} has the number {value:g}: give numbers from {1 / _LARGEST:g} to "
                f"{_LARGEST:g}, such as {example}."
            )


def check_count(setting: str, numbers: Sequence[float], classes: Sequence[str]) -> None:
    """Refuse more or fewer numbers than there are classes.

    Args:
        setting: Name of the setting.
        numbers: Its value.
        classes: Names of the classes, in their order.

    Raises:
        UserError: If the counts differ.
    """
    if len(numbers) != len(classes):
        shown = ", ".join(classes[:10]) + (", ..." if len(classes) > 10 else "")
        raise UserError(
            f"{setting} has {len(numbers)} numbers, but there are {len(classes)} classes: give one "
            f"for each, in this order: {shown}."
        )
