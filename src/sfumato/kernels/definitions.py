"""Definitions of the operators, in plain PyTorch.

For examples b, views v, output channels o, filter taps (i, j) and input channels c, the gradient of
an example's loss with respect to the filters of a convolution is

    G[b, o, i, j, c] = sum over views v and output positions (h, w) of
                       d[b, v, o, h, w] * x[b, v, c, h * stride + i * dilation - padding, ...]

with d the gradient of the loss with respect to the convolution's output.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

Pair = tuple[int, int]

GHOST_STEP = 64
"""Most channels that the kernel of ghost norms processes at once."""

GHOST_LONGEST = 64
"""Most views times positions for which ghost norms are computed: the size of a kernel's tile."""


@dataclass(frozen=True)
class Geometry:
    """The geometry of a convolution with one group, and the number of views.

    Attributes:
        kernel: Height and width of the filters.
        stride: As in `torch.nn.Conv2d`, and so are `padding` and `dilation`.
        padding: Zeros added on both sides.
        dilation: Distance between taps.
        views: Rows per example, contracted together with the positions.
    """

    kernel: Pair
    stride: Pair
    padding: Pair
    dilation: Pair
    views: int

    @classmethod
    def of(cls, numbers: list[int], views: int) -> Geometry:
        """Construct from the eight numbers of `numbers`, as operators take them."""
        a, b, c, d, e, f, g, h = numbers
        return cls((a, b), (c, d), (e, f), (g, h), views)

    @property
    def numbers(self) -> list[int]:
        """Kernel, stride, padding and dilation in one list."""
        return [*self.kernel, *self.stride, *self.padding, *self.dilation]


def padded(channels: int) -> int:
    """Channels of gradients in memory: few as they are, many padded to a multiple of eight."""
    return -(-channels // 8) * 8 if channels > 16 else channels


def grouped_gradients(x: Tensor, d: Tensor, at: Geometry, groups: int) -> Tensor:
    """`(examples, out, kh, kw, in / groups)` gradients of a convolution with groups."""
    parts = zip(x.chunk(groups, 1), d.chunk(groups, 1), strict=True)
    return torch.cat([conv_gradients(own, back, at) for own, back in parts], 1).to(x.dtype)


def conv_gradients(x: Tensor, d: Tensor, at: Geometry) -> Tensor:
    """`(examples, out, kh, kw, in)` gradients, accumulated in float32 at least."""
    wide = torch.promote_types(x.dtype, torch.float32)
    rows, channels = x.shape[:2]
    columns = F.unfold(
        x.to(wide), at.kernel, dilation=at.dilation, padding=at.padding, stride=at.stride
    )
    examples = rows // at.views
    a = d.to(wide).reshape(examples, at.views, d.shape[1], -1).transpose(1, 2).flatten(2)
    b = columns.view(examples, at.views, *columns.shape[1:]).transpose(1, 2).flatten(2)
    grads = torch.bmm(a, b.transpose(1, 2))
    return grads.view(examples, -1, channels, *at.kernel).permute(0, 1, 3, 4, 2).contiguous()


def filter_statistics(grads: Tensor, direction: Tensor | None) -> Tensor:
    """Per example and filter: the sum of squares, and, given a direction, the sum and the product.

    Args:
        grads: `(examples, out, kh, kw, in)`.
        direction: `(out, kh, kw, in)`, or None.

    Returns:
        `(examples, 1 or 3, out)`: sums of g², of g, and of g times the direction.
    """
    wide = grads.to(torch.promote_types(grads.dtype, torch.float32))
    over = (2, 3, 4)
    found = [wide.square().sum(over)]
    if direction is not None:
        found += [wide.sum(over), (wide * direction).sum(over)]
    return torch.stack(found, 1)


def weighted_sum(x: Tensor, d: Tensor, weights: Tensor, at: Geometry) -> Tensor:
    """Sum over examples of weight times gradient, `(out, kh, kw, in)`, in float32 at least.

    An example of weight zero adds exactly nothing, whatever its gradient holds.
    """
    return row_sum(conv_gradients(x, d, at), weights)


def row_sum(rows: Tensor, weights: Tensor) -> Tensor:
    """Sum over examples of weight times the example's row, in float32 at least.

    An example of weight zero adds exactly nothing, whatever its row holds.
    """
    wide = rows.to(torch.promote_types(rows.dtype, torch.float32))
    column = weights.to(wide.dtype).view(-1, *(1,) * (rows.dim() - 1))
    return torch.where(column == 0, 0.0, wide * column).sum(0)


def segment_norms(rows: Tensor, starts: Tensor) -> Tensor:
    """Squared norms `(examples, segments)` of the parts of each row that begin at `starts`.

    Args:
        rows: `(examples, numbers)`.
        starts: `(segments + 1,)` offsets in increasing order, with the end of the last segment.
    """
    wide = rows.to(torch.promote_types(rows.dtype, torch.float32)).square()
    at = starts.tolist()
    return torch.stack([wide[:, a:b].sum(1) for a, b in itertools.pairwise(at)], 1)


FACTORS = ("scale", "shrink", "squares", "gain")
"""Factors per filter of a standardised weight; its transposed derivative maps a gradient g to

    gain * (scale * (g - mean of g) - shrink * (g . centred) * centred)

with `centred` the raw filter without its mean and `squares` the squared norm of that; and the gain
has the gradient scale * (g . centred).
"""

TINY = 1e-20
"""Smallest variance in the plain form, because the square root has no gradient at 0."""


def standardise(
    raw: Tensor, gain: Tensor | None, plain: bool, eps: float
) -> tuple[Tensor, Tensor, Tensor]:
    """Standardised filters, and the factors of their derivative.

    Args:
        raw: `(out, ...)`, the raw filters.
        gain: `(out,)`, or None for a gain of 1.
        plain: Whether filters are divided by their standard deviation plus `eps`; else by the norm
            of the centred filter, the square of which is at least `eps`.
        eps: The constant.

    Returns:
        The filters and the centred raw filters, both shaped as `raw`, and `(4, out)` as `FACTORS`.
    """
    flat = raw.flatten(1)
    centred = flat - flat.mean(1, keepdim=True)
    squares = centred.square().sum(1)
    if plain:
        deviation = (squares / flat.shape[1]).clamp_min(TINY).sqrt()
        scale = 1 / (deviation + eps)
        shrink = scale.square() / (deviation * flat.shape[1])
    else:
        scale = squares.clamp_min(eps).rsqrt()
        shrink = torch.where(squares > eps, scale.pow(3), 0.0)
    factors = torch.stack(
        [scale, shrink, squares, torch.ones_like(scale) if gain is None else gain]
    )
    weight = centred * (scale * factors[3]).unsqueeze(1)
    return weight.view(raw.shape), centred.view(raw.shape), factors


def write_standardised(
    raw: Tensor,
    gain: Tensor | None,
    value: Tensor,
    centred: Tensor,
    direction: Tensor,
    factors: Tensor,
    plain: bool,
    eps: float,
) -> None:
    """Write the results of `standardise` into existing tensors.

    Args:
        raw: The raw filters `(out, in, kh, kw)`.
        gain: `(out,)`, or None for a gain of 1.
        value: Receives the filters, shaped as `raw`.
        centred: Receives the centred filters, `(out, kh, kw, in)`.
        direction: Receives the same, rounded to its own precision.
        factors: Receives `(4, out)`, see `FACTORS`.
        plain: See `standardise`, and so for `eps`.
        eps: The constant.
    """
    weight, without_mean, found = standardise(raw, gain, plain, eps)
    value.copy_(weight)
    for into in (centred, direction):
        into.copy_(without_mean.permute(0, 2, 3, 1))
    factors.copy_(found)


_LOST = 1e-5
"""Relative error that exceeds that of float32 sums over a filter."""


def filter_norms(statistics: Tensor, factors: Tensor, entries: int, rounding: float) -> Tensor:
    """Squared norms of gradients of standardised filters, from three numbers for each filter.

    Args:
        statistics: `(examples, 3, out)` of `filter_statistics` along the centred filters.
        factors: `(4, out)`, see `FACTORS`.
        entries: Numbers of a filter.
        rounding: Relative rounding of the entries of the direction.

    Returns:
        `(examples, 2)`: of the raw weight's gradient, and of the gain's, rounded up by the possible
        error of the statistics.
    """
    squared, total, along = statistics.unbind(1)
    scale, shrink, squares, gain = factors
    slack = rounding * (squared * squares).sqrt()
    least = (along.abs() - slack).clamp_min(0)
    own = scale.square() * (squared - total.square() / entries)
    own = own + (shrink.square() * squares - 2 * scale * shrink) * least.square()
    own = own.clamp_min(0) + _LOST * scale.square() * squared
    most = (scale * (along.abs() + slack)).square()
    return torch.stack([(own * gain.square()).sum(1), most.sum(1)], 1)


def filter_pullback(total: Tensor, centred: Tensor, factors: Tensor) -> tuple[Tensor, Tensor]:
    """A gradient of standardised filters as gradients of the raw weight and of the gain.

    Args:
        total: `(out, ...)`, the gradient.
        centred: `(out, ...)`, the raw filters without their means.
        factors: `(4, out)`, see `FACTORS`.
    """
    scale, shrink, _, gain = factors.unsqueeze(-1)
    g, c = total.flatten(1), centred.flatten(1)
    along = (g * c).sum(1, keepdim=True)
    own = gain * (scale * (g - g.mean(1, keepdim=True)) - shrink * along * c)
    return own.view(total.shape), (scale * along).squeeze(1)


UNIT = 2.0**-23
"""Relative loss per term of a float32 sum: matrix units truncate instead of rounding."""

UNIT_DOUBLE = 2.0**-52
"""The same in float64."""


def ghost_rounding(
    channels: int, taps: int, filters: int, length: int, unit: float, *, centred: bool = False
) -> float:
    """Bound on the error of a ghost norm, relative to the sum without cancellation.

    The error of a product of two vectors is their number of entries, in units, times their lengths,
    in whatever order it is summed: small entries can vanish beside a large one. Patches are summed
    tap by tap, each separately; where a tap is one step of a kernel, its compiler may merge them.
    The products of the sums that centring subtracts have twice the error. The sum over pairs of
    positions is then taken by rows.

    Args:
        channels: Entries of a filter at one of its taps.
        taps: Number of taps.
        filters: Number of filters.
        length: Views times positions.
        unit: Relative loss per term of a sum, in the precision of the sums.
        centred: Whether filters' means are subtracted.
    """
    own = channels + taps if channels > GHOST_STEP else channels * taps
    patches = (3 if centred else 1) * own
    return (patches + filters + 2 * length + 16) * unit


def ghost_norms(
    x: Tensor,
    d: Tensor,
    scales: Tensor | None,
    at: Geometry,
    *,
    unit: float = UNIT_DOUBLE,
    later: float = 0.0,
) -> Tensor:
    """Squared norm of each example's gradient without the gradient, `(examples,)` in float64.

    With A[t, t'] the product of the input patches at two positions and B[t, t'] that of the output
    gradients there, the squared norm is the sum of A * B. Where terms cancel, rounding could make
    it too small, so a fraction (`ghost_rounding`) of the sum without cancellation, the square of
    the sum over t of sqrt(A[t, t] * B[t, t]), is added.

    Args:
        x: Inputs; `d` are the gradients of the outputs.
        scales: `(out,)`: the norm is that of each filter's gradient without its mean, times its
            scale. None for the gradient as it is.
        at: The convolution's geometry.
        unit: Relative loss per term of a sum; see `ghost_rounding`.
        later: The relative rounding of the gradient's own sum over positions, which comes later.

    Guarantee: Never below the squared norm, whatever cancels.
    """
    wide = torch.float64
    a = _patch_products(x.to(wide), d.shape[2:], at)
    q = _by_positions(d.to(wide), at.views)
    if scales is not None:
        q = q * scales.to(wide)
    entries = x.shape[1] * at.kernel[0] * at.kernel[1]
    rounding = ghost_rounding(
        x.shape[1],
        at.kernel[0] * at.kernel[1],
        d.shape[1],
        a.shape[1],
        unit,
        centred=scales is not None,
    )
    b = torch.bmm(q, q.transpose(1, 2))
    most = (a * b).diagonal(dim1=1, dim2=2).clamp_min(0).sqrt().sum(1).square()
    if scales is not None:
        ones = x.new_ones((1, x.shape[1], *at.kernel), dtype=wide)
        sums = F.conv2d(x.to(wide), ones, None, at.stride, at.padding, at.dilation)
        sums = sums.reshape(a.shape[0], -1)
        a = a - sums.unsqueeze(1) * sums.unsqueeze(2) / entries
    found = (a * b).sum((1, 2)).clamp_min(0) + rounding * most
    return (found.sqrt() + later * most.sqrt()).square() if later else found


def _by_positions(t: Tensor, views: int) -> Tensor:
    """Reshape to `(examples, views * positions, channels)`."""
    channels_last = t.permute(0, 2, 3, 1)
    return channels_last.reshape(t.shape[0] // views, -1, t.shape[1])


def _patch_products(x: Tensor, output: torch.Size, at: Geometry) -> Tensor:
    """Products of all pairs of an example's patches, from the products of its pixels.

    The patches at two positions consist of pixels at equal offsets from them, so their product is
    the sum over offsets of the products of two pixels: a sum of shifted parts of the pixels'
    matrix.
    """
    height, width = x.shape[2:]
    (kh, kw), (sh, sw), (ph, pw), (dh, dw) = at.kernel, at.stride, at.padding, at.dilation
    pixels = _by_positions(x, at.views)
    products = torch.bmm(pixels, pixels.transpose(1, 2))
    products = products.view(-1, at.views, height, width, at.views, height, width)
    products = F.pad(products, (pw, pw, ph, ph, 0, 0, pw, pw, ph, ph))
    rows, columns = output
    total: Tensor | None = None
    for i in range(kh):
        for j in range(kw):
            down = slice(i * dh, i * dh + (rows - 1) * sh + 1, sh)
            right = slice(j * dw, j * dw + (columns - 1) * sw + 1, sw)
            part = products[:, :, down, right, :, down, right]
            total = part.clone() if total is None else total.add_(part)
    assert total is not None
    length = at.views * rows * columns
    return total.reshape(-1, length, length)
