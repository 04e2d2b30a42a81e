"""Published numbers that we miss: how many, by how much, and why."""

from __future__ import annotations

from collections.abc import Sequence

from sfumato.reproduce.results_file import Entry
from sfumato.reproduce.row import Row
from sfumato.reproduce.verdicts import standing, verdict

POINTS = 1.0
"""Points below a published number from which on a row needs an explanation."""

HEADING = "Missed by more than one point"
_UNEXPLAINED = "Not yet explained."


def section(rows: Sequence[Row], entries: Sequence[Entry]) -> list[str]:
    """A section of a page with a paragraph for each row that misses its number by far.

    A row counts with the best of its settings. There is no section if there is no such row.
    """
    lines = []
    for row in rows:
        found = standing(row, entries)
        if found is not None and found.missed_by_more_than(POINTS):
            by = verdict(row.published, found.median).replace("*", "")
            numbers = f"published {row.published:g}, ours {found.median:.2f}, {by}"
            lines += [f"**{row.name}** ({numbers}): {row.missed or _UNEXPLAINED}", ""]
    return [f"## {HEADING}", "", *lines] if lines else []


def totals(rows: Sequence[Row], entries: Sequence[Entry]) -> str:
    """A sentence that counts the rows with a published number: run, reached and missed."""
    numbered = [row for row in rows if row.published is not None]
    found = [place for row in numbered if (place := standing(row, entries))]
    reached = sum(place.reached for place in found)
    far = sum(place.missed_by_more_than(POINTS) for place in found)
    return (
        f"Of {len(rows)} rows {len(numbered)} have a published number, and {len(found)} of these "
        f"were run: {reached} reached it, {len(found) - reached - far} missed it by up to "
        f"{POINTS:g} point, {far} by more. A row has reached its number if one of its settings has."
    )
