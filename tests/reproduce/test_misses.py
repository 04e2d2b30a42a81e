"""Misses: a paragraph for each that is large, and the counts of all."""

from __future__ import annotations

from tiny_rows import entry, row

from sfumato.reproduce import misses


def test_a_large_miss_has_a_paragraph_or_says_that_it_lacks_one() -> None:
    told, untold = row("told", 60.0, missed="Three ways were tried."), row("untold", 60.0)
    near, hit, open_ = row("near", 60.0), row("hit", 60.0, missed="Once."), row("open")
    every = [told, untold, near, hit, open_, row("waiting", 60.0)]
    accuracies = ((told, 0.5), (untold, 0.5899), (near, 0.59), (hit, 0.4), (open_, 0.1))
    entries = [entry(r, accuracy) for r, accuracy in accuracies]
    entries.append(entry(hit, 0.6, setting="best"))
    assert misses.section(every, entries) == [
        "## Missed by more than one point",
        "",
        "**told** (published 60, ours 50.00, missed by 10.0): Three ways were tried.",
        "",
    ]
    entries[1] = entry(untold, 0.589)
    assert misses.section([untold], entries)[2:] == [
        "**untold** (published 60, ours 58.90, missed by 1.1): Not yet explained.",
        "",
    ]
    assert misses.section([near, hit, open_], entries) == []
    assert misses.totals(every, entries).startswith(
        "Of 6 rows 5 have a published number, and 4 of these were run: 1 reached it, 1 missed it "
        "by up to 1 point, 2 by more."
    )
