"""The time of training on several GPUs, from the speed of one and the bytes that they exchange."""

from __future__ import annotations

from dataclasses import dataclass

from sfumato.errors import UserError

_BYTES = 8 + 4
"""Bytes that a rank sends for a parameter: of its sum in float64, and of its mean in float32."""


@dataclass(frozen=True)
class Cost:
    """Cost of a step on several GPUs.

    A step is its views at the speed of one GPU, shared among all, and then one sum over ranks, in
    which each GPU sends all parts but its own, and receives the noisy means of the others' parts.

    Attributes:
        gpus: Number of GPUs.
        speed: Views per second on one of them, as `sfumato bench` measures.
        parameters: Number of trained parameters.
        bandwidth: Gigabytes per second that one GPU sends to the others.
    """

    gpus: int
    speed: float
    parameters: int = 0
    bandwidth: float = 10.0

    def __post_init__(self) -> None:
        if self.gpus < 1 or self.parameters < 0:
            raise UserError(
                f"--gpus {self.gpus} and --parameters {self.parameters}: there is at least one "
                "GPU, and no negative number of parameters."
            )
        if not (0 < self.speed < float("inf") and 0 < self.bandwidth < float("inf")):
            raise UserError("--speed and --bandwidth are positive numbers.")

    def step_seconds(self, views: float) -> float:
        """Seconds of one step of so many views."""
        sent = _BYTES * self.parameters * (self.gpus - 1) / self.gpus
        return views / (self.gpus * self.speed) + sent / (self.bandwidth * 1e9)
