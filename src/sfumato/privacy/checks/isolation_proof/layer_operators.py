"""Rules for convolutions, norms, pooling, attention and dropout, and for their gradients.

Gradients need rules because the backward pass is followed too.
"""

from __future__ import annotations

import re

from torch import Tensor

from sfumato.privacy.checks.isolation_proof.calls import Call, apart, rule
from sfumato.privacy.checks.isolation_proof.values import (
    Refused,
    Rows,
    Shared,
    Total,
    Value,
    aligned,
    by_shape,
)

ROWS_FIRST = "its arguments do not have the batch in the first dimension"
STATISTICS = "it normalises with the statistics of the batch"


@rule("convolution")
def _convolution(call: Call) -> Value:
    call.require_shared("weight", "bias")
    return _first(call, "input")


def _first(call: Call, *names: str) -> Rows:
    rows = call.rows(*names)
    if rows.dim:
        raise Refused(ROWS_FIRST)
    return rows


@rule("convolution_backward")
def _convolution_backward(call: Call) -> list[Value]:
    call.require_shared("weight")
    return [_first(call, "grad_output", "input"), Total(), Total()]


@rule("native_group_norm", sizes=("N",))
def _group_norm(call: Call) -> list[Value]:
    call.require_shared("weight", "bias")
    _same_number(call)
    return call.every(_first(call, "input"))


def _same_number(call: Call) -> None:
    number, size = call.arguments["N"], call.shape("input")[0]
    if getattr(number, "node", None) is None or number.node.expr != size.node.expr:
        raise Refused("it takes its input for another number of rows")


@rule("native_group_norm_backward", sizes=("N",))
def _group_norm_backward(call: Call) -> list[Value]:
    call.require_shared("weight")
    _same_number(call)
    return [_first(call, "grad_out", "input", "mean", "rstd"), Total(), Total()]


@rule("native_layer_norm", "_fused_rms_norm")
def _layer_norm(call: Call) -> list[Value]:
    call.require_shared("weight", "bias")
    rows, ndim = call.rows("input"), call.ndim("input")
    own = range(ndim - len(call.arguments["normalized_shape"]), ndim)
    return call.every(apart(rows, own, "it normalises"))


@rule("native_layer_norm_backward", "_fused_rms_norm_backward")
def _layer_norm_backward(call: Call) -> list[Value]:
    call.require_shared("weight", "bias")
    rows, ndim = call.rows("grad_out", "input", "mean", "rstd"), call.ndim("input")
    own = range(ndim - len(call.arguments["normalized_shape"]), ndim)
    return [apart(rows, own, "it normalises"), *[Total()] * (len(call.outputs) - 1)]


@rule(
    "native_batch_norm", "_native_batch_norm_legit", "_native_batch_norm_legit_functional",
    "_native_batch_norm_legit_no_training", "_batch_norm_no_update",
)  # fmt: skip
def _batch_norm(call: Call) -> list[Value]:
    rows = call.rows("input")
    given = [
        n for n in ("weight", "bias", "running_mean", "running_var") if call.get(n) is not None
    ]
    if rows.dim == 1:
        # Channels are normalised separately, and each belongs to one example, as in instance norm.
        if any(call.of(n) != rows.at(0) for n in given):
            raise Refused(STATISTICS)
        return [rows, *[rows.at(0)] * (len(call.outputs) - 1)]
    if call.get("training", call.name.count("no_") == 0) or call.get("running_mean") is None:
        raise Refused(STATISTICS)
    call.require_shared(*given)
    return [rows, *[Shared()] * (len(call.outputs) - 1)]


@rule("native_batch_norm_backward")
def _batch_norm_backward(call: Call) -> list[Value]:
    rows = call.rows("grad_out", "input")
    given = [
        n for n in ("weight", "running_mean", "running_var", "save_mean", "save_invstd")
        if call.get(n) is not None
    ]  # fmt: skip
    if rows.dim == 1:
        if any(call.of(n) != rows.at(0) for n in given):
            raise Refused(STATISTICS)
        return [rows, rows.at(0), rows.at(0)]
    if call.get("train", True) or call.get("running_mean") is None:
        raise Refused(STATISTICS)
    call.require_shared(*given)
    return [rows, Total(), Total()]


_SPATIAL = re.compile(
    r"(_?adaptive_(avg|max)_pool|avg_pool|max_pool|reflection_pad|replication_pad"
    r"|_?upsample_(nearest|nearest_exact|linear|bilinear|bicubic|trilinear))"
    r"(?P<dims>[123])d(_aa)?(_with_indices)?(_backward)?"
)
SPATIAL_SIZES = frozenset({"input_size"})


def is_spatial(name: str) -> bool:
    """Tell whether an operator works on the last one, two or three dimensions, each image apart."""
    return _SPATIAL.fullmatch(name) is not None


def spatial(call: Call) -> Value:
    """Rule for pooling, padding and resizing of the last dimensions."""
    match = _SPATIAL.fullmatch(call.name)
    assert match is not None
    rows, first = call.rows(), next(iter(call.tensors()))
    ndim, own = call.ndim(first), int(match["dims"])
    return apart(rows, range(ndim - own, ndim), call.name)


@rule("im2col", "col2im")
def _columns(call: Call) -> Value:
    rows = _first(call, "self")
    if call.ndim("self") < (4 if call.name == "im2col" else 3):
        raise Refused(ROWS_FIRST)
    return rows


@rule("pixel_shuffle", "pixel_unshuffle")
def _pixel_shuffle(call: Call) -> Value:
    value, ndim = call.of("self"), call.ndim("self")
    return apart(value, range(ndim - 3, ndim), call.name) if isinstance(value, Rows) else value


@rule("grid_sampler_2d", "grid_sampler_3d", "grid_sampler_2d_backward", "grid_sampler_3d_backward")
def _grid_sampler(call: Call) -> Value:
    return _first(call)


@rule("native_dropout")
def _dropout(call: Call) -> list[Value]:
    """Rule for dropout: every number is kept or dropped by its own draw."""
    value = call.of("input")
    if isinstance(value, Total):
        raise Refused("a sum over the batch is dropped at random")
    return call.every(value)


_ATTENTION = (
    "_scaled_dot_product_flash_attention_for_cpu", "_scaled_dot_product_flash_attention",
    "_scaled_dot_product_efficient_attention", "_scaled_dot_product_cudnn_attention",
)  # fmt: skip


@rule(*_ATTENTION, *(f"{name}_backward" for name in _ATTENTION))
def _attention(call: Call) -> list[Value]:
    """Rule for attention within each image and head: the first two dimensions stay apart."""
    rows = call.rows("query", "key", "value", "out", "grad_out", "logsumexp")
    apart(rows, (2, 3), "attention")
    for name in ("attn_mask", "attn_bias"):
        if call.get(name) is not None:
            aligned([(rows, call.shape("query")), (call.of(name), call.shape(name))])
    found: list[Value] = []
    for output in call.outputs:
        own = by_shape(output.shape) if isinstance(output, Tensor) else None
        if own is None and output is not None and output.numel() and "backward" in call.name:
            raise Refused("the gradient of a bias of attention sums over the batch")
        if own is not None and own.dim != rows.dim:
            raise Refused("attention returns rows in another dimension")
        found.append(Shared() if own is None else rows)
    return found
