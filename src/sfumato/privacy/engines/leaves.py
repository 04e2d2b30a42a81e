"""The per-example leaves of one pass: tensors whose gradients are per-example gradients."""

from __future__ import annotations

from collections.abc import Callable

from torch import Tensor, nn

from sfumato.privacy.engines.keyed_draws import KeyedDraws
from sfumato.privacy.engines.results import Deferred


class NotPerOperator(Exception):
    """Use of a parameter that only an engine for the whole model can follow."""


class Leaves:
    """The per-example leaves of one pass, created as operators ask for them.

    Args:
        examples: Examples in the batch.
        views: Rows per example.
        parameters: The trained parameters by identity.

    Attributes:
        of_parameter: Leaves by the identity of their parameters.
        of_derived: Tensors that are computed from parameters, each with its leaf, by identity and
            version: what is changed in place is another tensor.
        draws: The random numbers of this pass; None for those of PyTorch's own generators.
        deferred: By the identity of a parameter, for each use the leaf that receives the gradients
            of the operator's output, and the parameter's gradients as a function of these.
    """

    def __init__(
        self,
        examples: int,
        views: int,
        parameters: dict[int, nn.Parameter],
        draws: KeyedDraws | None = None,
    ) -> None:
        self.examples, self.views, self.draws = examples, views, draws
        self.rows = examples * views
        self._parameters = parameters
        self.of_parameter: dict[int, Tensor] = {}
        self.of_derived: dict[tuple[int, int], tuple[Tensor, Tensor]] = {}
        self.deferred: dict[int, list[tuple[Tensor, Callable[[Tensor], Deferred]]]] = {}

    def of(self, tensor: Tensor | None) -> Tensor | None:
        """The leaf of a parameter or of a tensor computed from some, the same each time."""
        if tensor is None or not tensor.requires_grad:
            return None
        if id(tensor) not in self._parameters:
            key = id(tensor), tensor._version
            if key not in self.of_derived:
                self.of_derived[key] = tensor, self._new(tensor)
            return self.of_derived[key][1]
        if id(tensor) not in self.of_parameter:
            self.of_parameter[id(tensor)] = self._new(tensor)
        return self.of_parameter[id(tensor)]

    def value(self, tensor: Tensor) -> Tensor:
        """The value that operators compute with, without a graph."""
        return tensor.detach()

    def defer(self, weight: Tensor, leaf: Tensor, found: Callable[[Tensor], Deferred]) -> None:
        """Keep a leaf for the gradients of an operator's output instead of those of its weight.

        Args:
            weight: The weight, a parameter.
            leaf: The leaf.
            found: From the gradients of the output to those of the weight.
        """
        self.deferred.setdefault(id(weight), []).append((leaf, found))

    def _new(self, tensor: Tensor) -> Tensor:
        return tensor.detach().expand(self.examples, *tensor.shape).requires_grad_()
