"""The order of jobs: value per minute, and what a budget would run."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from tiny_rows import row

from sfumato.reproduce import job_order
from sfumato.reproduce.job import Job


def job(name: str, published: float | None = 50.0, seed: int = 0) -> Job:
    return Job(row(name, published), "published", seed)


def order(
    jobs: Sequence[Job],
    minutes: Mapping[str, float],
    *,
    begun: str = "",
    reached: str = "",
    kinds: Mapping[str, str] | None = None,
) -> str:
    """The order as a text of names and seeds."""
    found = job_order.ordered(
        jobs,
        minutes=lambda j: minutes[j.row.name],
        begun=lambda j: f"{j.row.name}{j.seed}" in begun.split(),
        reached=lambda r: r.name in reached.split(),
        kind=lambda j: (kinds or {}).get(j.row.name, j.row.name),
    )
    return " ".join(f"{j.row.name}{j.seed}" for j in found)


def test_published_numbers_come_first_and_cheap_runs_before_others() -> None:
    jobs = [job("figure", None), job("long"), job("short"), job("endless")]
    minutes = {"figure": 1.0, "long": 9.0, "short": 2.0, "endless": math.inf}
    assert order(jobs, minutes) == "short0 long0 endless0 figure0"


def test_first_seeds_come_before_second_ones() -> None:
    jobs = [job(n, p, seed) for seed in (0, 1) for n, p in (("figure", None), ("row", 50.0))]
    assert order(jobs, {"figure": 1.0, "row": 9.0}) == "row0 figure0 row1 figure1"


def test_numbers_that_were_reached_wait_for_those_that_were_not() -> None:
    jobs = [job("figure", None), job("done"), job("open")]
    minutes = {"figure": 1.0, "done": 1.0, "open": 9.0}
    assert order(jobs, minutes, reached="done") == "open0 done0 figure0"


def test_interrupted_runs_go_on_first_whatever_they_are() -> None:
    jobs = [job("row"), job("figure", None), job("figure", None, seed=1), job("row", seed=1)]
    minutes = {"figure": 9.0, "row": 1.0}
    assert order(jobs, minutes, begun="figure1") == "figure1 row0 figure0 row1"


def test_runs_of_one_kind_follow_each_other() -> None:
    """By their mean: what takes 1 and 9 minutes comes after 4, and before 6."""
    jobs = [job(n) for n in "abcd"]
    minutes = {"a": 6.0, "b": 9.0, "c": 4.0, "d": 1.0}
    assert order(jobs, minutes, kinds={"b": "same", "d": "same"}) == "c0 d0 b0 a0"
    alike = dict.fromkeys("abcd", 1.0)
    assert order(jobs, alike) == "a0 b0 c0 d0"
    assert order(jobs, alike, kinds={"a": "same", "c": "same"}) == "a0 c0 b0 d0"


def choose(left: float | None, *minutes: float, begun: str = "") -> int:
    jobs = [job(f"{i}") for i in range(len(minutes))]
    return job_order.choose(
        jobs,
        left,
        minutes=lambda j: minutes[int(j.row.name)],
        begun=lambda j: j.row.name in begun.split(),
    )


def test_what_fits_is_preferred_and_else_the_first_is_begun() -> None:
    assert choose(10, 3, 5, 1) == 0
    assert choose(4, 9, 5, 4) == 2
    assert choose(2, 9, 5, 4) == 0
    assert choose(4, 9, 5, 4, begun="0") == 0, "an interrupted run goes on"
    assert choose(None, 9, 1) == 0, "without a limit everything fits"


def test_the_plan_of_a_budget_ends_with_the_run_that_it_cuts() -> None:
    jobs = [job(n) for n in "abcd"]
    minutes = {"a": 3.0, "b": 8.0, "c": 5.0, "d": 9.0}

    def planned(budget: float | None) -> list[tuple[str, float, bool]]:
        found = job_order.planned(
            jobs, budget, minutes=lambda j: minutes[j.row.name], begun=lambda _: False
        )
        return [(p.job.row.name, p.ends, p.cut) for p in found]

    assert planned(0) == []
    assert planned(8) == [("a", 3, False), ("c", 8, False)]
    assert planned(9) == [("a", 3, False), ("c", 8, False), ("b", 16, True)]
    assert [name for name, *_ in planned(None)] == ["a", "b", "c", "d"]
