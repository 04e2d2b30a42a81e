"""Statistics of a step, for whoever trains; not for release."""

from __future__ import annotations

import torch
from torch import Tensor

from sfumato.privacy.engines.results import PerExampleGradients
from sfumato.privacy.numerics.precision import widest


class BatchStatistics:
    """Counts and losses of a step, computed on private examples without noise: not for release.

    They stay on the device until one of them is read, so that a step does not wait for the last.

    Args:
        numbers: Examples, summed loss, correct, clipped and not finite ones, in this order; all
            zero if None.
    """

    def __init__(self, numbers: Tensor | None = None) -> None:
        self._numbers = numbers
        self._read: list[float] | None = None

    @classmethod
    def of(
        cls,
        gradients: PerExampleGradients,
        y: Tensor,
        *,
        drawn: Tensor,
        clipped: Tensor,
        squared: Tensor,
    ) -> BatchStatistics:
        """The statistics of one physical batch.

        Args:
            gradients: The gradients, with losses and outputs.
            y: The targets.
            drawn: Mask of the examples that are not padding.
            clipped: Mask of the examples whose gradients were shortened.
            squared: Squared norms `(examples, parameters)`.
        """
        outputs, losses = gradients.outputs, gradients.losses
        if outputs is None:
            return cls()
        finite = torch.isfinite(squared.sum(1))
        counted = drawn & finite
        first_view = outputs[:: len(outputs) // max(1, len(y))]
        right = torch.zeros_like(drawn)
        # Of a unit with several images, the first.
        first = y[:, 0] if y.dim() == 2 and not y.is_floating_point() else y
        if first_view.dim() == 2 and first.dim() == 1:
            right = first_view.argmax(1) == first
        wide = widest(outputs.device)
        return cls(
            torch.stack(
                [
                    drawn.sum().to(wide),
                    torch.where(counted & losses.isfinite(), losses.to(wide), 0).sum(),
                    (right & counted).sum().to(wide),
                    (clipped & counted).sum().to(wide),
                    (drawn & ~finite).sum().to(wide),
                ]
            )
        )

    @property
    def numbers(self) -> Tensor:
        """The numbers as they are summed, not yet read."""
        return torch.zeros(5, dtype=torch.float64) if self._numbers is None else self._numbers

    def __add__(self, other: BatchStatistics) -> BatchStatistics:
        mine, theirs = self._numbers, other._numbers
        if mine is None or theirs is None:
            return BatchStatistics(theirs if mine is None else mine)
        return BatchStatistics(mine + theirs.to(mine.device))

    def _at(self, place: int) -> float:
        if self._read is None:
            self._read = [0.0] * 5 if self._numbers is None else self._numbers.tolist()
        return self._read[place]

    @property
    def examples(self) -> int:
        """Drawn examples."""
        return int(self._at(0))

    @property
    def loss(self) -> float:
        """Sum of the losses of examples whose gradient is finite."""
        return self._at(1)

    @property
    def correct(self) -> int:
        """Examples whose first view, of the first image, is classified correctly."""
        return int(self._at(2))

    @property
    def clipped(self) -> int:
        """Examples whose gradient was shortened."""
        return int(self._at(3))

    @property
    def not_finite(self) -> int:
        """Examples left out because their gradient is not finite."""
        return int(self._at(4))

    def __repr__(self) -> str:
        names = ("examples", "loss", "correct", "clipped", "not_finite")
        return f"BatchStatistics({', '.join(f'{name}={getattr(self, name)}' for name in names)})"
