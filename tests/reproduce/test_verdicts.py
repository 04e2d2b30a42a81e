"""Verdicts on results, and the standing of rows over their settings."""

from __future__ import annotations

import pytest
from tiny_rows import entry, row

from sfumato.reproduce.verdicts import standing, verdict


@pytest.mark.parametrize(
    ("published", "ours", "said"),
    [
        (71.8, 71.76, "reached, +0.0"),
        (71.8, 71.74, "**missed** by 0.1"),
        (71.86, 71.85, "**missed** by 0.01"),
        (34.0, 35.26, "reached, +1.3"),
        (None, 50.0, ""),
    ],
)
def test_verdicts_round_to_the_published_digits(
    published: float | None, ours: float, said: str
) -> None:
    assert verdict(published, ours) == said


def test_a_row_stands_where_its_best_setting_does() -> None:
    subject = row("a", 60.0)
    assert standing(subject, []) is None
    found = [entry(subject, 0.55), entry(subject, 0.58, seed=1), entry(subject, 0.4, seed=2)]
    now = standing(subject, found)
    assert now is not None and (now.setting, now.above) == ("published", -5.0)
    assert now.median == pytest.approx(55)
    assert not now.reached and now.missed_by_more_than(1)
    now = standing(subject, [*found, entry(subject, 0.61, setting="best")])
    assert now is not None and (now.setting, now.above, now.reached) == ("best", 1.0, True)


def test_a_miss_of_one_point_as_printed_is_no_more_than_one_point() -> None:
    for published, ours, far in (
        (60.0, 0.5896, False),
        (60.0, 0.5894, True),
        (60.25, 0.5924, True),
    ):
        now = standing(row("a", published), [entry(row("a", published), ours)])
        assert now is not None and now.missed_by_more_than(1) is far
    now = standing(row("a"), [entry(row("a"), 0.1)])
    assert now is not None and not now.reached and not now.missed_by_more_than(1)
