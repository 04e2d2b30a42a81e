"""Products of a batch and a weight, with per-example gradients of the weight.

Every product, whether of matrices, of stacks of them or by `torch.einsum`, is a product of matrices
once its dimensions are put in order: `(vectors, groups, inputs)` times `(groups, outputs, inputs)`
is `(vectors, groups, outputs)`. An example has the vectors of all its views and positions.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache, cached_property
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from sfumato.privacy.engines.autograd_functions import unobserved


@dataclass(frozen=True)
class Equation:
    """A product by the letters of its dimensions, as in `torch.einsum`.

    A letter of the batch alone, or of the weight alone, belongs to a dimension of size one.

    Attributes:
        batch: The letters of the batch.
        weight: The letters of the weight.
        result: The letters of the result.
    """

    batch: str
    weight: str
    result: str

    @cached_property
    def groups(self) -> str:
        """The letters of all three."""
        return "".join(a for a in self.weight if a in self.batch and a in self.result)

    @cached_property
    def inputs(self) -> str:
        """The letters that are summed over."""
        return "".join(a for a in self.weight if a in self.batch and a not in self.result)

    @cached_property
    def outputs(self) -> str:
        """The letters that the weight gives to the result."""
        return "".join(a for a in self.weight if a not in self.batch and a in self.result)

    @cached_property
    def positions(self) -> str:
        """The letters that the batch gives to the result."""
        return "".join(a for a in self.result if a in self.batch and a not in self.weight)

    @cached_property
    def arrangement(self) -> tuple[tuple[int, ...], ...]:
        """The dimensions of the weight that are groups, outputs and inputs."""
        parts = self.groups, self.outputs, self.inputs
        return tuple(tuple(map(self.weight.index, part)) for part in parts)

    @cached_property
    def _inputs_last(self) -> bool:
        """Tell whether inputs come after outputs in the weight, as they do in a linear layer."""
        return self.weight.endswith(self.inputs)

    @cached_property
    def _weight_order(self) -> list[int]:
        """The dimensions of the weight as alone, groups, outputs, inputs."""
        order = f"{self.groups}{self.outputs}{self.inputs}"
        alone = "".join(a for a in self.weight if a not in order)
        return [self.weight.index(a) for a in alone + order]

    def matrices(self, weight: Tensor) -> Tensor:
        """The weight as `(groups, outputs, inputs)`."""
        own = weight if self._in_order else weight.permute(self._weight_order)
        return own.reshape(self.sizes(weight.shape))

    @cached_property
    def _in_order(self) -> bool:
        """Tell whether the dimensions of the weight are in the order of groups, outputs, inputs."""
        return self._weight_order == sorted(self._weight_order)

    @cache  # noqa: B019
    def sizes(self, shape: tuple[int, ...]) -> tuple[int, int, int]:
        """The numbers of groups, outputs and inputs of a weight of this shape."""
        groups, outputs, inputs = (math.prod(shape[k] for k in part) for part in self.arrangement)
        return groups, outputs, inputs

    def gradients(self, d: Tensor, x: Tensor, shape: tuple[int, ...]) -> Tensor:
        """The gradients `(examples, *shape)` of a weight of this shape.

        Args:
            d: Gradients of the products `(examples, vectors, groups, outputs)`.
            x: The inputs `(examples, vectors, groups, inputs)`.
            shape: The shape of the weight.
        """
        # The order in which numbers lie in the weight, so that they need not be moved afterwards.
        rows, columns = (d, x) if self._inputs_last else (x, d)
        found = matrix_gradients(rows, columns)
        sides = (self.outputs, self.inputs) if self._inputs_last else (self.inputs, self.outputs)
        order = self.groups + "".join(sides)
        alone = "".join(a for a in self.weight if a not in order)
        size = dict(zip(self.weight, shape, strict=True))
        found = found.reshape(len(found), *(size[a] for a in alone + order))
        return found.permute(0, *(1 + (alone + order).index(a) for a in self.weight))


LINEAR = Equation("ni", "oi", "no")
"""The product of a linear layer on vectors."""


def matrix_gradients(d: Tensor, x: Tensor) -> Tensor:
    """Gradients `(examples, groups, out, in)` of matrices that all vectors of an example multiply.

    Args:
        d: Gradients of the products `(examples, vectors, groups, out)`.
        x: The inputs `(examples, vectors, groups, in)`.
    """
    if x.shape[1] == 1:
        # On a CPU the library is ten times slower with one vector than a plain product.
        return d[:, 0].unsqueeze(3) * x[:, 0].unsqueeze(2)
    if x.shape[2] == 1:
        return torch.bmm(d[:, :, 0].transpose(1, 2), x[:, :, 0]).unsqueeze(1)
    return d.permute(0, 2, 3, 1) @ x.transpose(1, 2)


class _Product(torch.autograd.Function):
    """Products of vectors and matrices, whose leaves receive per-example gradients.

    The leaf of the results receives their own gradients, instead of one for the weight. Results are
    `(vectors, groups, outputs)`, or `(vectors, outputs)` with one group.
    """

    @staticmethod
    def forward(
        ctx: Any,
        x: Tensor,
        weight: Tensor,
        bias: Tensor | None,
        weight_leaf: Tensor | None,
        bias_leaf: Tensor | None,
        result_leaf: Tensor | None,
        equation: Equation,
        examples: int,
    ) -> Tensor:
        # With a frozen weight x is not needed, so it may be changed in place.
        frozen = weight_leaf is None and result_leaf is None
        ctx.save_for_backward(None if frozen else x, weight)
        ctx.settings = equation, examples
        matrices = equation.matrices(weight)
        if len(matrices) == 1:
            return F.linear(x[:, 0], matrices[0], bias)
        y = torch.bmm(x.transpose(0, 1), matrices.transpose(1, 2)).transpose(0, 1)
        # A view of no other tensor, so that it may be changed in place afterwards.
        return y.clone(memory_format=torch.contiguous_format)

    @staticmethod
    @unobserved
    def backward(ctx: Any, saved: Any, d: Tensor) -> tuple[Tensor | None, ...]:
        x, weight = saved
        equation, examples = ctx.settings
        needs_x, _, _, needs_weight, needs_bias, needs_result = ctx.needs_input_grad[:6]
        dx = dw = db = None
        matrices = equation.matrices(weight).conj()
        ds = d.reshape(examples, -1, *matrices.shape[:2])
        if needs_x:
            if len(matrices) == 1:
                dx = (d @ matrices[0]).unsqueeze(1)
            else:
                dx = torch.bmm(d.transpose(0, 1), matrices).transpose(0, 1)
        if needs_weight:
            xs = x.conj().reshape(examples, -1, *x.shape[1:])
            dw = equation.gradients(ds, xs, tuple(weight.shape))
        if needs_bias:
            db = ds.sum((1, 2))
        return dx, None, None, dw, db, d if needs_result else None, None, None


product: Callable[..., Tensor] = _Product.apply
