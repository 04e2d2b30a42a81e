"""The order of jobs: the most valuable result per minute first."""

from __future__ import annotations

import statistics
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from sfumato.reproduce.job import Job
from sfumato.reproduce.row import Row

Minutes = Callable[[Job], float]
Begun = Callable[[Job], bool]


def ordered(
    jobs: Sequence[Job],
    *,
    minutes: Minutes,
    begun: Begun,
    reached: Callable[[Row], bool],
    kind: Callable[[Job], object],
) -> list[Job]:
    """Sort jobs by what they are worth per minute.

    Interrupted runs go on first. Then every row has its first seed before any has its second. Of
    these, rows with a published number come before others, and among them those that have not
    reached it in any setting. Of equal value, what takes fewer minutes comes first, and runs of one
    kind follow each other, so that kernels compiled for the first serve the next; kinds are sorted
    by the mean of their minutes.

    Args:
        jobs: The jobs; those that are alike in everything stay in this order.
        minutes: Estimates the minutes that a job will take.
        begun: Tells whether a job was interrupted.
        reached: Tells whether a row has reached its published number.
        kind: Names what runs must have in common to share a compilation.
    """
    taken = [minutes(job) for job in jobs]
    tiers = [_tier(job, begun(job), reached(job.row)) for job in jobs]
    kinds = [kind(job) for job in jobs]
    together: dict[object, list[int]] = defaultdict(list)
    for place, group in enumerate(zip(tiers, kinds, strict=True)):
        together[group].append(place)
    mean = {group: statistics.fmean(taken[i] for i in found) for group, found in together.items()}

    def key(place: int) -> tuple[object, ...]:
        group = tiers[place], kinds[place]
        return tiers[place], mean[group], together[group][0], taken[place], place

    return [jobs[place] for place in sorted(range(len(jobs)), key=key)]


def _tier(job: Job, begun: bool, reached: bool) -> tuple[int, int]:
    """The place of a job among others before minutes count."""
    value = 2 if job.row.published is None else int(reached)
    return (0 if begun else 1 + job.seed), value


def choose(waiting: Sequence[Job], left: float | None, *, minutes: Minutes, begun: Begun) -> int:
    """The position of the next job to run.

    It is the first that fits into what is left of the budget. If none does, the first is begun, to
    go on next time. A run that was interrupted goes on whether or not it fits.

    Args:
        waiting: The jobs in their order.
        left: Minutes that are left; None if there is no limit.
        minutes: Estimates the minutes that a job will take.
        begun: Tells whether a job was interrupted.
    """
    if left is None or begun(waiting[0]):
        return 0
    return next((i for i, job in enumerate(waiting) if minutes(job) <= left), 0)


@dataclass(frozen=True)
class Planned:
    """A job that a budget would run.

    Attributes:
        job: The job.
        minutes: Its estimated minutes.
        begun: Whether it was interrupted before.
        ends: Estimated minutes from the beginning of the budget to its end.
        cut: Whether the budget ends before.
    """

    job: Job
    minutes: float
    begun: bool
    ends: float
    cut: bool


def planned(
    jobs: Sequence[Job], budget: float | None, *, minutes: Minutes, begun: Begun
) -> list[Planned]:
    """The jobs that a budget would run, in that order, if every estimate were right.

    Args:
        jobs: The jobs in their order.
        budget: The budget in minutes; None if there is no limit.
        minutes: Estimates the minutes that a job will take.
        begun: Tells whether a job was interrupted.
    """
    waiting, found, used = list(jobs), list[Planned](), 0.0
    while waiting and (budget is None or used < budget):
        left = None if budget is None else budget - used
        job = waiting.pop(choose(waiting, left, minutes=minutes, begun=begun))
        took = minutes(job)
        used += took
        found.append(Planned(job, took, begun(job), used, budget is not None and used > budget))
    return found
