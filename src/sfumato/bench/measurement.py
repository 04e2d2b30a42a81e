"""The measurement of one contender in one case: every time, and statistics of them."""

from __future__ import annotations

import statistics
from dataclasses import asdict, dataclass, field
from typing import Any

from sfumato.bench.cases import Case


@dataclass
class Measurement:
    """The measurement of one contender in one case.

    Attributes:
        contender: The contender.
        case: The case.
        how: Its method of computation.
        times: Seconds of every timed step.
        first_step: Seconds until the end of the first step, preparation and compilation included.
        peak_memory: Most bytes that PyTorch had reserved on the device during the timed steps;
            memory of captured graphs counts, although it is no longer allocated.
        start_memory: The same during preparation and warm-up.
        note: A remark that a reader needs to compare.
        reason: The reason why there is no measurement, if there is none.
        paired: Whether its steps took turns with those of the others, one by one.
        unsupported: Whether it was never tried, as it is not installed or does not support the
            case.
    """

    contender: str
    case: Case
    how: str = ""
    times: list[float] = field(default_factory=list)
    first_step: float | None = None
    peak_memory: int | None = None
    start_memory: int | None = None
    note: str = ""
    reason: str = ""
    paired: bool = False
    unsupported: bool = False

    @property
    def seconds(self) -> float:
        """Median time of a step."""
        return statistics.median(self.times)

    @property
    def speed(self) -> float | None:
        """Views per second at the median, if measured."""
        return self.case.views_per_step / self.seconds if self.times else None

    def quartiles(self) -> tuple[float, float]:
        """Views per second at the slower and the faster quartile of steps."""
        if len(self.times) < 2:
            return (self.speed or 0.0,) * 2
        fast, _, slow = statistics.quantiles(self.times, n=4, method="inclusive")
        return self.case.views_per_step / slow, self.case.views_per_step / fast

    def to_dict(self) -> dict[str, Any]:
        """Plain values for the record, with a summary."""
        content = asdict(self)
        if self.times:
            low, high = self.quartiles()
            content |= {
                "views_per_second": round(self.speed or 0.0, 1),
                "views_per_second_quartiles": [round(low, 1), round(high, 1)],
                "views_per_second_range": [
                    round(self.case.views_per_step / t, 1)
                    for t in (max(self.times), min(self.times))
                ],
            }
        return content

    @classmethod
    def from_dict(cls, content: dict[str, Any]) -> Measurement:
        """Read a measurement back; summaries are computed anew from the times."""
        known = {k: v for k, v in content.items() if not k.startswith("views_per_second")}
        return cls(**known | {"case": Case(**content["case"])})
