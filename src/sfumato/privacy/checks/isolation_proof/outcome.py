"""The outcome of an attempt to prove isolation."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Proof:
    """The outcome of an attempt to prove isolation.

    Attributes:
        proved: Whether examples are proved not to reach each other.
        operators: The number of operators followed.
        reason: Why isolation is not proved: the operator, where it is, and what it does.
    """

    proved: bool
    operators: int = 0
    reason: str = ""

    def __str__(self) -> str:
        if self.proved:
            return f"proved on a graph of {self.operators} operators, for every size of batch"
        return f"tested on random inputs (not proved: {self.reason})"
