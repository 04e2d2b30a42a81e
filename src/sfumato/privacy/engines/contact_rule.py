"""A contact in one pass, as its rule is given it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from sfumato.privacy.engines.contacts import Contact
from sfumato.privacy.engines.leaves import Leaves, NotPerOperator
from sfumato.privacy.engines.row_place import Place


@dataclass(frozen=True)
class Met:
    """A contact in one pass.

    Attributes:
        contact: The operator's place in the model.
        leaves: The leaves of the pass.
        deferred: Positions of the arguments whose gradients are not materialised.
    """

    contact: Contact
    leaves: Leaves
    deferred: frozenset[int] = frozenset()

    @property
    def copies(self) -> int:
        """Indices of the rows' dimension that belong to one example."""
        return self.leaves.views * self.contact.place.each

    def per_row(self, weight: Any, dims: int, place: Place | None = None) -> Any:
        """A weight's leaf, arranged to broadcast over a batch; any other value as it is."""
        if not isinstance(weight, Tensor) or (leaf := self.leaves.of(weight)) is None:
            return weight
        return self.spread(leaf, tuple(weight.shape), dims, place or self.contact.output)

    def with_leaves(
        self, args: Any, kwargs: dict[str, Any], place: Place | None = None
    ) -> tuple[list[Any], dict[str, Any]]:
        """The arguments of a call, with leaves in the place of weights.

        Args:
            args: Positional arguments.
            kwargs: Named arguments.
            place: The place of rows in the batch; that in the result if None.
        """
        given = [*args, *kwargs.values()]
        dims = max(t.dim() for t in given if isinstance(t, Tensor))
        marked = {weight.position for weight in self.contact.weights}
        values = [self.per_row(t, dims, place) if k in marked else t for k, t in enumerate(given)]
        return values[: len(args)], dict(zip(kwargs, values[len(args) :], strict=True))

    def spread(self, leaf: Tensor, shape: tuple[int, ...], dims: int, place: Place) -> Tensor:
        """A leaf of a weight of this shape, arranged to broadcast over a batch."""
        spread = place.spread(leaf, shape, dims, self.leaves.views)
        if spread is None:
            raise NotPerOperator("a parameter has an entry for each row of the batch")
        return spread


Rule = Callable[..., Any]
"""From a contact, its function and its arguments to the result."""


def named(names: tuple[str, ...], args: Any, kwargs: dict[str, Any]) -> dict[str, Any]:
    """Arguments by name."""
    return {**dict(zip(names, args, strict=False)), **kwargs}
