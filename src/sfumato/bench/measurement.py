"""What one contender did in one case: every time, and what follows from them."""

from __future__ import annotations

import statistics
from dataclasses import asdict, dataclass, field
from typing import Any

from sfumato.bench.cases import Case


@dataclass
class Measurement:
    """What one contender did in one case.

    Attributes:
        contender: Who.
        case: What.
        how: In what way it computed.
        times: Seconds of every timed step.
        first_step: Seconds from nothing to the end of the first step, compilation included.
        peak_memory: Most bytes that PyTorch had reserved on the device during the timed steps:
            what a captured graph holds on to counts, although nobody allocates it any more.
        start_memory: The same during preparation and warm-up.
        note: What a reader must know to compare.
        reason: Why there is no measurement, if there is none.
        paired: Whether its steps took turns with those of the others, one by one.
        unsupported: Whether it was never tried, as it is not installed or cannot do this at all.
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
        """Plain values for the record, with the summary that people look for."""
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
