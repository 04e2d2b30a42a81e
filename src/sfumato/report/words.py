"""Numbers as people write them."""

from __future__ import annotations

NONE = "–"


def percent(value: float | None, decimals: int = 1) -> str:
    """A share as `92.1 %`; a dash for none and for NaN."""
    return NONE if value is None or value != value else f"{100 * value:.{decimals}f} %"


def count(value: int | None) -> str:
    """A whole number with thin spaces between thousands."""
    return NONE if value is None else f"{value:,}".replace(",", "\u202f")


def duration(seconds: float | None) -> str:
    """A time in seconds, minutes or hours."""
    if seconds is None:
        return NONE
    if seconds < 100:
        return f"{seconds:.0f} s"
    minutes = seconds / 60
    return f"{minutes:.0f} min" if minutes < 100 else f"{minutes / 60:.1f} h"


def power(value: float) -> str:
    """A small number as people write it: 10⁻⁵, 2·10⁻⁶."""
    mantissa, _, exponent = f"{value:.3e}".partition("e")
    if int(exponent) > -3:
        return f"{value:g}"
    raised = str(int(exponent)).translate(str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹"))
    first = float(mantissa)
    return f"10{raised}" if first == 1 else f"{first:g}·10{raised}"
