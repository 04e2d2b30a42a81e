"""Rules for operators that compute: elementwise ones, reductions and products."""

from __future__ import annotations

import re
from collections.abc import Sequence

import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves

from sfumato.privacy.checks.isolation_proof.calls import Call, apart, linear, rule
from sfumato.privacy.checks.isolation_proof.values import (
    Refused,
    Rows,
    Shared,
    Size,
    Total,
    Value,
    aligned,
)

NOT_LINEAR = "a sum over the batch is used in a way that is not linear"


def elementwise(call: Call) -> Value:
    """Rule for operators that compute each position from the inputs at that position."""
    values = [(call.value_of(t), t.shape) for t in call.tensors().values()]
    if any(isinstance(v, Total) for v, _ in values):
        return _linear_elementwise(call)
    return aligned(values)


def _linear_elementwise(call: Call) -> Value:
    """Rule for elementwise operators that are linear in a sum over the batch."""
    name = call.name
    if name in ("clone", "neg", "positive"):
        return call.of("self")
    if name in ("add", "sub", "rsub") and isinstance(call.get("other"), Tensor):
        return linear(call.values("self", "other"))
    if name == "mul":
        others = [v for v in call.values() if not isinstance(v, Total)]
        if len(call.values()) - len(others) == 1 and all(isinstance(v, Shared) for v in others):
            return Total()
    if name in ("div", "true_divide") and call.get("rounding_mode") is None:
        sides = call.of("self"), call.of("other")
        if isinstance(sides[0], Total) and isinstance(sides[1], Shared):
            return Total()
    if name == "where" and isinstance(call.of("condition"), Shared):
        return linear(call.values("self", "other"))
    if name == "masked_fill" and isinstance(call.of("mask"), Shared):
        value = call.get("value")
        if isinstance(value, Tensor) or value == 0:
            return linear(call.values("self", "value") if isinstance(value, Tensor) else [Total()])
    if gradient := _linear_gradient(call):
        return gradient
    raise Refused(NOT_LINEAR)


def _linear_gradient(call: Call) -> Value | None:
    """The value of a derivative applied to a sum over the batch: linear in its first argument."""
    first = next(iter(call.arguments))
    if not re.search(r"_backward(_data)?$", call.name) or not first.startswith("grad"):
        return None
    others = [call.value_of(t) for name, t in call.tensors().items() if name != first]
    fits = isinstance(call.of(first), Total) and all(isinstance(v, Shared) for v in others)
    return Total() if fits else None


_REDUCTIONS = (
    "sum", "mean", "nansum", "prod", "amax", "amin", "max", "min", "any", "all", "argmax", "argmin",
    "var", "std", "var_mean", "std_mean", "logsumexp", "linalg_vector_norm", "norm", "median",
    "nanmedian", "mode", "kthvalue", "count_nonzero", "aminmax",
)  # fmt: skip


def _reduced_dims(call: Call, ndim: int) -> list[int]:
    given = [int(dim) % max(1, ndim) for dim in tree_leaves(call.get("dim", []))]
    if "kthvalue" in call.name or call.name in ("median", "nanmedian", "mode"):
        return given or ([ndim - 1] if "dim" in call.arguments else list(range(ndim)))
    return given or list(range(ndim))


@rule(*_REDUCTIONS)
def _reduction(call: Call) -> Value | list[Value]:
    value, ndim = call.of("self"), call.ndim("self")
    dims = _reduced_dims(call, ndim)
    if isinstance(value, Total):
        return Total() if call.name in ("sum", "mean") else _not_linear()
    if not isinstance(value, Rows):
        return value
    if value.dim in dims:
        if call.name == "sum":
            return Total()
        raise Refused("it reduces the batch")
    if call.get("keepdim", False):
        return value
    return value.at(value.dim - sum(d < value.dim for d in set(dims)))


def _not_linear() -> Value:
    raise Refused(NOT_LINEAR)


@rule(
    "_softmax", "_log_softmax", "_safe_softmax", "_softmax_backward_data",
    "_log_softmax_backward_data", "cumsum", "cumprod", "cummax", "cummin", "logcumsumexp", "sort",
    "argsort", "topk", "glu_backward",
)  # fmt: skip
def _along(call: Call) -> Value:
    """Rule for operators that compute along one dimension and keep the others apart."""
    if any(isinstance(v, Total) for v in call.values()):
        if call.name == "cumsum":
            return call.of("self")
        return _linear_gradient(call) or _not_linear()
    rows, first = call.rows(), next(iter(call.tensors()))
    dim = int(call.get("dim", -1)) % max(1, call.ndim(first))
    return apart(rows, [dim], f"{call.name}")


@rule("_fft_r2c", "_fft_c2c", "_fft_c2r")
def _fft(call: Call) -> Value:
    value, ndim = call.of("self"), call.ndim("self")
    if not isinstance(value, Rows):
        return value
    return apart(value, [int(d) % ndim for d in call.arguments["dim"]], "a Fourier transform")


def _product(a: Value, b: Value, contracted: tuple[int, int], free: tuple[int, int]) -> Value:
    """The value of a matrix product, summed over `contracted`; `free` are the other dimensions."""
    if isinstance(a, Shared) and isinstance(b, Shared):
        return Shared(zero=a.zero or b.zero)
    if isinstance(a, Total) or isinstance(b, Total):
        return Total() if isinstance(a, Shared) or isinstance(b, Shared) else _not_linear()
    if isinstance(a, Rows) and isinstance(b, Rows):
        if (a.dim, b.dim) == contracted and a.at(0) == b.at(0):
            return Total()
        raise Refused("a product of rows with other rows")
    for value, dim in zip((a, b), free, strict=True):
        if isinstance(value, Rows) and value.dim == dim:
            return value
    raise Refused("a product sums over the batch")


@rule("mm")
def _mm(call: Call) -> Value:
    return _product(call.of("self"), call.of("mat2"), (1, 0), (0, 1))


@rule("bmm")
def _bmm(call: Call) -> Value:
    a, b = call.values("self", "mat2")
    if isinstance(a, Rows) and isinstance(b, Rows) and a.dim == b.dim == 0:
        if a == b:
            return a
        raise Refused("a product of rows with other rows")
    return _product(a, b, (2, 1), (1, 2))


@rule("mv", "dot")
def _mv(call: Call) -> Value:
    a, b = call.values("self", "vec" if call.name == "mv" else "tensor")
    if call.name == "mv" and isinstance(a, Rows) and isinstance(b, Shared) and a.dim == 0:
        return a
    raise Refused("a product sums over the batch")


@rule("addmm", "baddbmm")
def _addmm(call: Call) -> Value:
    first, second = ("mat1", "mat2") if call.name == "addmm" else ("batch1", "batch2")
    a, b = call.values(first, second)
    if call.name == "addmm":
        product = _product(a, b, (1, 0), (0, 1))
    elif isinstance(a, Rows) and a == b and a.dim == 0:
        product = a
    else:
        product = _product(a, b, (2, 1), (1, 2))
    added = call.of("self")
    if isinstance(product, Total) or isinstance(added, Total):
        return linear([product, added])
    output = call.outputs[0]
    assert output is not None
    return aligned([(product, output.shape), (added, call.shape("self"))])


@rule("_trilinear")
def _trilinear(call: Call) -> Value:
    values: list[tuple[Value, list[Size]]] = []
    for tensor, places in (("i1", "expand1"), ("i2", "expand2"), ("i3", "expand3")):
        value, shape = call.of(tensor), list(call.shape(tensor))
        for place in sorted(call.arguments[places]):
            if isinstance(value, Rows):
                value = value.at(value.dim + (place <= value.dim))
            shape.insert(place, 1)
        values.append((value, shape))
    product, dims = aligned(values), set(call.arguments["sumdim"])
    if not isinstance(product, Rows):
        return product
    if product.dim in dims:
        return Total()
    return product.at(product.dim - sum(d < product.dim for d in dims))


@rule("bucketize", "searchsorted")
def _bucketize(call: Call) -> Value:
    call.require_shared("boundaries", "sorted_sequence", "sorter")
    if call.name == "searchsorted" and call.ndim("sorted_sequence") != 1:
        raise Refused("it searches in several tables")
    return call.of("self")


def total_of_gradient(call: Call) -> Sequence[Value] | None:
    """The values of a derivative that is applied to a sum over the batch, or None."""
    found = _linear_gradient(call)
    return None if found is None else call.every(found)


ELEMENTWISE_TOO = frozenset({
    "complex", "polar", "softplus_backward", "elu_backward", "leaky_relu_backward",
    "hardtanh_backward", "hardswish", "hardswish_backward", "hardsigmoid_backward",
    "softshrink_backward", "hardshrink_backward", "mish_backward", "log_sigmoid_forward",
    "log_sigmoid_backward", "_prelu_kernel", "_prelu_kernel_backward", "floor_divide",
})  # fmt: skip
"""Elementwise operators that PyTorch does not tag as such."""


def is_elementwise(operator: torch._ops.OpOverload) -> bool:
    """Tell whether an operator without side effects computes each position separately."""
    if operator._schema.is_mutable or torch.Tag.nondeterministic_seeded in operator.tags:
        return False
    return torch.Tag.pointwise in operator.tags or operator.overloadpacket.__name__ in (
        ELEMENTWISE_TOO
    )
