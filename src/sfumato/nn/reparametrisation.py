"""Interfaces of reparametrised weights, W = f(theta).

A parametrisation (`torch.nn.utils.parametrize`) with these methods is trained by the compiled pass
at no extra cost: per-example gradients are taken of W, norms are taken through the pullback, and
only the clipped sum is mapped to theta.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Protocol, runtime_checkable

from torch import Tensor, nn


@runtime_checkable
class Reparametrisation(Protocol):
    """A parametrisation whose derivative is known in closed form."""

    def forward(self, raw: Tensor) -> Tensor:
        """The weight W as a function of the raw parameter."""
        ...

    def pullback(self, raw: Tensor, gradient: Tensor) -> tuple[Tensor, ...]:
        """Gradients `(..., *W.shape)` of W as gradients of the parameters behind it.

        The transposed derivative of `forward`: linear in `gradient`, with any number of leading
        dimensions. The raw parameter comes first, then the parametrisation's own.
        """
        ...


@runtime_checkable
class LinearExpansion(Reparametrisation, Protocol):
    """A reparametrisation that ends in a linear map from fewer numbers, such as a basis."""

    def expand(self, coefficients: Tensor) -> Tensor:
        """The linear map from coefficients to W."""
        ...

    def pullback_expanded(self, coefficients: Tensor, projected: Tensor) -> Tensor:
        """The part of `pullback` below the linear map."""
        ...


class FilterStandardisation(nn.Module, ABC):
    """A reparametrisation that standardises each filter and may scale it by a gain.

    A base class, not a protocol: from Python 3.12 on `isinstance` does not find a module's
    parameters among the members of a protocol.

    Attributes:
        gain: One factor per filter, or None.
        eps: The constant of the form.
    """

    gain: nn.Parameter | None
    eps: float

    @property
    @abstractmethod
    def plain(self) -> bool:
        """Tell whether the form divides by the standard deviation, not by the norm."""

    @abstractmethod
    def bare(self, raw: Tensor) -> Tensor:
        """The standardised weight without the gain."""

    @abstractmethod
    def pullback(self, raw: Tensor, gradient: Tensor) -> tuple[Tensor, ...]:
        """See `Reparametrisation.pullback`."""
