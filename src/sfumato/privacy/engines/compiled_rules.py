"""Rules of the compiled pass: convolutions by the operators of `sfumato.kernels`, norm and Mish.

Like `autograd_functions` they run an operator's forward pass on plain values and define
gradients for leaves that are never read. A convolution has leaves for what is stored of an
example's filter gradient: the gradient itself, statistics of it, its squared norm, or the gradient
of the layer's output, from which the weighted sum is computed later.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from sfumato.kernels.definitions import Geometry, padded
from sfumato.privacy.engines.autograd_functions import over_positions


@dataclass
class FilterLeaves:
    """A convolution's values, and the leaves for what is stored of its gradients.

    Attributes:
        weight: The filters' value, and `bias` the bias's.
        bias_leaf: `(examples, out)`, or None.
        geometry: The convolution's geometry, and the views.
        direction: `(out, kh, kw, in)` for the statistics, or None.
        factors: `(out,)` for ghost norms of centred gradients, or None.
        gradient: Leaf for gradients `(examples, out, kh, kw, padded(in))`, or None if they are not
            stored.
        statistics: Leaf for statistics `(examples, 1 or 3, out)`, or None.
        ghost: Leaf for squared norms `(examples,)`, or None.
        output: Leaf for gradients of the output, or None.
    """

    weight: Tensor
    bias: Tensor | None
    bias_leaf: Tensor | None
    geometry: Geometry
    direction: Tensor | None = None
    factors: Tensor | None = None
    gradient: Tensor | None = None
    statistics: Tensor | None = None
    ghost: Tensor | None = None
    output: Tensor | None = None


class _Filters(torch.autograd.Function):
    """A convolution whose backward pass gives each leaf its statistic or gradient."""

    @staticmethod
    def forward(
        ctx: Any,
        x: Tensor,
        weight: Tensor,
        bias: Tensor | None,
        direction: Tensor | None,
        factors: Tensor | None,
        bias_leaf: Tensor | None,
        gradient: Tensor | None,
        statistics: Tensor | None,
        ghost: Tensor | None,
        output: Tensor | None,
        numbers: tuple[int, ...],
        views: int,
    ) -> Tensor:
        ctx.channels = x.shape[1]
        if direction is None and factors is None:
            x, weight = _filled(x), _filled(weight)
        ctx.save_for_backward(x, weight, direction, factors)
        ctx.settings = list(numbers), views
        y: Tensor = torch.ops.aten.convolution(
            x, weight, bias, numbers[2:4], numbers[4:6], numbers[6:8], False, (0, 0), 1
        )
        return y

    @staticmethod
    def backward(ctx: Any, d: Tensor) -> tuple[Tensor | None, ...]:
        x, weight, direction, factors = ctx.saved_tensors
        numbers, views = ctx.settings
        needs_x = ctx.needs_input_grad[0]
        # Stating the memory format here lets the compiler arrange it where it creates the tensors.
        x, d = (t.contiguous(memory_format=torch.channels_last) for t in (x, d))
        needs_bias, needs_gradient, needs_statistics, needs_ghost, needs_output = (
            ctx.needs_input_grad[5:10]
        )
        dx = db = grads = statistics = norms = None
        if needs_x:
            dx = torch.ops.aten.convolution_backward(
                d, x, weight, None, numbers[2:4], numbers[4:6], numbers[6:8], False, (0, 0), 1,
                [True, False, False],
            )[0][:, : ctx.channels]  # fmt: skip
        if needs_bias:
            db = over_positions(d, views)
        if needs_statistics:
            kept, statistics = torch.ops.sfumato.conv_gradients(
                x, d, direction, numbers, views, needs_gradient
            )
            grads = kept if needs_gradient else None
        if needs_ghost:
            norms = torch.ops.sfumato.ghost_norms(x, d, factors, numbers, views)
        return (
            dx, None, None, None, None, db, grads, statistics, norms,
            d if needs_output else None, None, None,
        )  # fmt: skip


def _filled(t: Tensor) -> Tensor:
    """`(rows, channels, H, W)` in half precision, with channels padded as gradients are.

    Matrix units want a multiple of eight, and the compiler writes the zeros in the same kernel as
    the tensor.
    """
    missing = padded(t.shape[1]) - t.shape[1] if t.element_size() == 2 else 0
    return torch.nn.functional.pad(t, (0, 0, 0, 0, 0, missing)) if missing else t


_filters: Callable[..., Tensor] = _Filters.apply


def filters(leaves: FilterLeaves, x: Tensor) -> Tensor:
    """A convolution over `rows = examples * views` inputs."""
    y = _filters(
        x, leaves.weight, leaves.bias, leaves.direction, leaves.factors, leaves.bias_leaf,
        leaves.gradient, leaves.statistics, leaves.ghost, leaves.output,
        tuple(leaves.geometry.numbers), leaves.geometry.views,
    )  # fmt: skip
    return y


class _Projection(torch.autograd.Function):
    """A product with a matrix whose backward pass gives each leaf its statistic or gradient."""

    @staticmethod
    def forward(
        ctx: Any,
        x: Tensor,
        weight: Tensor,
        bias: Tensor | None,
        bias_leaf: Tensor | None,
        gradient: Tensor | None,
        statistics: Tensor | None,
        ghost: Tensor | None,
        output: Tensor | None,
        numbers: tuple[int, ...],
        examples: int,
    ) -> Tensor:
        ctx.save_for_backward(x, weight)
        ctx.settings = list(numbers), examples
        return torch.nn.functional.linear(x, weight, bias)

    @staticmethod
    def backward(ctx: Any, d: Tensor) -> tuple[Tensor | None, ...]:
        x, weight = ctx.saved_tensors
        numbers, examples = ctx.settings
        needs_x, _, _, needs_bias, needs_gradient, needs_statistics, needs_ghost, needs_output = (
            ctx.needs_input_grad[:8]
        )
        dx = db = grads = statistics = norms = None
        d = d.contiguous()
        if needs_x:
            dx = d @ weight
        if needs_bias:
            db = d.view(examples, -1, d.shape[1]).sum(1)
        # Vectors of one example are the positions of an image in channels_last.
        images = [t.reshape(examples, -1, 1, t.shape[1]).permute(0, 3, 1, 2) for t in (x, d)]
        if needs_statistics:
            kept, statistics = torch.ops.sfumato.conv_gradients(
                *images, None, numbers, 1, needs_gradient
            )
            grads = kept if needs_gradient else None
        if needs_ghost:
            norms = torch.ops.sfumato.ghost_norms(*images, None, numbers, 1)
        output = d if needs_output else None
        return dx, None, None, db, grads, statistics, norms, output, None, None


_projection: Callable[..., Tensor] = _Projection.apply


def projection(leaves: FilterLeaves, x: Tensor, examples: int) -> Tensor:
    """A product of a matrix and `(examples * positions, in)` vectors."""
    return _projection(
        x, leaves.weight, leaves.bias, leaves.bias_leaf, leaves.gradient, leaves.statistics,
        leaves.ghost, leaves.output, tuple(leaves.geometry.numbers), examples,
    )  # fmt: skip


class _Outputs(torch.autograd.Function):
    """A linear layer whose leaf receives the gradients of its outputs."""

    @staticmethod
    def forward(
        ctx: Any,
        x: Tensor,
        weight: Tensor,
        bias: Tensor | None,
        bias_leaf: Tensor | None,
        output: Tensor,
        views: int,
    ) -> Tensor:
        # The input too, so that autograd reports a change in place of what norms will need.
        ctx.save_for_backward(weight, x)
        ctx.views = views
        return torch.nn.functional.linear(x, weight, bias)

    @staticmethod
    def backward(ctx: Any, d: Tensor) -> tuple[Tensor | None, ...]:
        weight, _ = ctx.saved_tensors
        dx = d @ weight if ctx.needs_input_grad[0] else None
        db = over_positions(d, ctx.views) if ctx.needs_input_grad[3] else None
        return dx, None, None, db, d, None


_outputs: Callable[..., Tensor] = _Outputs.apply


def linear(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    bias_leaf: Tensor | None,
    output: Tensor,
    views: int,
) -> Tensor:
    """A linear layer on `(rows, in)` whose `output` leaf receives the gradients of its outputs."""
    return _outputs(x, weight, bias, bias_leaf, output, views)


class _GroupNorm(torch.autograd.Function):
    """Group norm with two sums over positions and one elementwise pass, forward and backward.

    Mean and variance of a group follow from those of its channels. The gradients of gain and shift,
    and the two means that the input's gradient needs, follow from two sums per channel. So all sums
    run over spatial positions alone, along which channels are adjacent in memory. They are in
    float32 whatever the precision of the input.
    """

    @staticmethod
    def forward(
        ctx: Any,
        x: Tensor,
        weight: Tensor | None,
        bias: Tensor | None,
        weight_leaf: Tensor | None,
        bias_leaf: Tensor | None,
        groups: int,
        eps: float,
        views: int,
    ) -> Tensor:
        rows, channels = x.shape[:2]
        own = _spread(x)
        wide = own.to(torch.promote_types(x.dtype, torch.float32))
        spread, centre = torch.var_mean(wide, 2, correction=0)
        centre, spread = (t.view(rows, groups, -1) for t in (centre, spread))
        mean = centre.mean(2, keepdim=True)
        variance = spread.mean(2, keepdim=True) + (centre - mean).square().mean(2, keepdim=True)
        inverse = (variance + eps).rsqrt()
        scale = inverse.expand(rows, groups, channels // groups)
        if weight is not None:
            scale = scale * weight.to(wide.dtype).view(1, groups, -1)
        shift = -mean * scale
        if bias is not None:
            shift = shift + bias.to(wide.dtype).view(1, groups, -1)
        each = rows, channels, *(1,) * (x.dim() - 2)
        # The result is not a view, so it may be changed in place afterwards.
        y = x.to(wide.dtype) * scale.reshape(each) + shift.reshape(each)
        ctx.save_for_backward(x, weight, mean, inverse)
        ctx.settings = groups, views
        return y.to(x.dtype)

    @staticmethod
    def backward(ctx: Any, d: Tensor) -> tuple[Tensor | None, ...]:
        x, weight, mean, inverse = ctx.saved_tensors
        groups, views = ctx.settings
        needs_x, _, _, needs_weight, needs_bias = ctx.needs_input_grad[:5]
        rows, channels = x.shape[:2]
        precision = mean.dtype
        each = channels // groups
        middle = mean.expand(rows, groups, each).reshape(rows, channels, 1)
        steep = inverse.expand(rows, groups, each).reshape(rows, channels, 1)
        dy = _spread(d).to(precision)
        centred = _spread(x).to(precision) - middle
        sums = dy.sum(2)
        products = (dy * centred).sum(2) * steep.squeeze(2)
        dx = dw = db = None
        if needs_x:
            gain = torch.ones_like(sums[:1]) if weight is None else weight.to(precision).view(1, -1)
            count = each * centred.shape[2]
            first, second = (
                (t * gain).view(rows, groups, each).sum(2, keepdim=True) / count
                for t in (sums, products)
            )
            first = first.expand(rows, groups, each).reshape(rows, channels, 1)
            second = second.expand(rows, groups, each).reshape(rows, channels, 1)
            dx = steep * (dy * gain.unsqueeze(2) - first - centred * steep * second)
            dx = dx.to(x.dtype).view(x.shape)
        if needs_weight:
            dw = products.view(-1, views, channels).sum(1)
        if needs_bias:
            db = sums.view(-1, views, channels).sum(1)
        return dx, None, None, dw, db, None, None, None


def _spread(t: Tensor) -> Tensor:
    """Reshape to `(rows, channels, positions)`."""
    return t.flatten(2) if t.dim() > 2 else t.unsqueeze(2)


_group_norm: Callable[..., Tensor] = _GroupNorm.apply


def group_norm(
    x: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    weight_leaf: Tensor | None,
    bias_leaf: Tensor | None,
    groups: int,
    eps: float,
    views: int,
) -> Tensor:
    """Group norm of `(rows, channels, ...)`; the leaves receive per-example gradients."""
    return _group_norm(x, weight, bias, weight_leaf, bias_leaf, groups, eps, views)


class _Mish(torch.autograd.Function):
    """`x tanh(log(1 + exp x))` with one exponential and one division, shared with its derivative.

    With e = exp x and n = e (e + 2) the hyperbolic tangent is n / (n + 2). PyTorch's own takes an
    exponential, a logarithm and a tangent each time, and a compiled pass takes it several times.

    The output is never another view of the same tensor: traced by PyTorch 2.11, such an output
    loses its gradient (pytorch/pytorch#180642).
    """

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.save_for_backward(x)
        e = _exponential(x)
        n = e * (e + 2)
        return _like(x, x * (n / (n + 2)))

    @staticmethod
    def backward(ctx: Any, d: Tensor) -> Tensor:
        (x,) = ctx.saved_tensors
        e = _exponential(x)
        n = e * (e + 2)
        inverse = 1 / (n + 2)
        slope = inverse * (n + 4 * x * e * (e + 1) * inverse)
        return _like(x, d * slope)


def _exponential(x: Tensor) -> Tensor:
    """The exponential in float32 at least, of inputs up to 20, beyond which mish is x."""
    return x.clamp(max=20.0).to(torch.promote_types(x.dtype, torch.float32)).exp()


def _like(x: Tensor, y: Tensor) -> Tensor:
    """`y` in the precision of `x`."""
    return y if y.dtype == x.dtype else y.to(x.dtype)


_mish: Callable[..., Tensor] = _Mish.apply


def mish(x: Tensor) -> Tensor:
    """Mish, in place of `nn.Mish`."""
    return _mish(x)
