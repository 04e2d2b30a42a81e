"""Rules for operators that make, cut, join, index and rearrange tensors and compute nothing."""

from __future__ import annotations

import sys
from typing import Any

from torch import Tensor
from torch.utils._pytree import tree_leaves

from sfumato.privacy.checks.isolation_proof.calls import Call, apart, is_zero, linear, rule
from sfumato.privacy.checks.isolation_proof.values import (
    Refused,
    Rows,
    Shared,
    Size,
    Total,
    Unwritten,
    Value,
    aligned,
    by_shape,
    reshaped,
    symbolic,
)


def _shape(call: Call) -> Any:
    output = call.outputs[0]
    assert output is not None
    return output.shape


@rule(
    "empty", "empty_like", "empty_strided", "empty_permuted", "new_empty", "new_empty_strided",
    sizes=("size", "stride"), overwrites=True,
)  # fmt: skip
def _unwritten(call: Call) -> Value:
    return Unwritten()


@rule(
    "zeros", "zeros_like", "new_zeros", "ones", "ones_like", "new_ones", "full", "full_like",
    "new_full", "scalar_tensor", "fill", sizes=("size",), overwrites=True,
)  # fmt: skip
def _filled(call: Call) -> Value:
    number = call.get("fill_value", call.get("value", call.get("s")))
    if isinstance(number, Tensor):
        call.require_shared("value")
    like = call.of("self")
    if isinstance(like, Rows) and not call.name.startswith("new_"):
        return like
    zero = "zero" in call.name or (isinstance(number, int | float) and number == 0)
    return by_shape(_shape(call)) or Shared(zero=zero)


@rule("rand", "randn", "randint", "rand_like", "randn_like", "randint_like", sizes=("size",),
      overwrites=True)  # fmt: skip
@rule("uniform", "normal_functional", "exponential", "log_normal", "cauchy", "geometric",
      overwrites=True)  # fmt: skip
def _drawn(call: Call) -> Value:
    """Rule for numbers that depend on the argument's shape alone, or that are drawn at random."""
    like = call.of("self")
    return like if isinstance(like, Rows) else by_shape(_shape(call)) or Shared()


@rule("bernoulli", overwrites=True)
def _bernoulli(call: Call) -> Value:
    """Rule for draws whose probabilities are an argument, or the numbers of a tensor."""
    value = call.of("self")
    if "p" in call.arguments:
        return _drawn(call)
    if isinstance(value, Rows | Shared):
        return value
    raise Refused("probabilities depend on the batch")


def _refuse_total() -> Value:
    raise Refused("a sum over the batch is used in a way that is not linear")


@rule("copy", overwrites=True)
def _copy(call: Call) -> Value:
    source, base = call.of("src"), call.of("self")
    dims, own = call.ndim("self"), call.ndim("src")
    if isinstance(source, Rows):
        return source.at(source.dim + dims - own)
    if isinstance(source, Shared):
        like = base if isinstance(base, Rows) else by_shape(_shape(call))
        return like or source
    return source


@rule(
    "alias", "detach", "_to_copy", "lift_fresh", "lift_fresh_copy", "contiguous",
    "_conj", "_conj_physical", "resolve_conj", "resolve_neg", "_neg_view", "view_as_real",
    "view_as_complex", "real", "imag",
)  # fmt: skip
def _same(call: Call) -> Value:
    value, output = call.values()[0], call.outputs[0]
    if isinstance(value, Total) and output is not None and not output.is_floating_point():
        raise Refused("a sum over the batch is rounded to whole numbers")
    return value


@rule("view", "_unsafe_view", "reshape", "view_copy", "_reshape_copy", "_reshape_alias",
      sizes=("size", "shape", "stride"))  # fmt: skip
def _view(call: Call) -> Value:
    value = call.of("self")
    if "dtype" in call.arguments:
        raise Refused("a view as another type")
    return reshaped(value, call.shape("self"), _shape(call)) if isinstance(value, Rows) else value


@rule("permute", "transpose", "t", "permute_copy", "transpose_copy", "t_copy")
def _permute(call: Call) -> Value:
    value, ndim = call.of("self"), call.ndim("self")
    if not isinstance(value, Rows):
        return value
    order = list(range(ndim))
    if "dims" in call.arguments:
        order = [int(dim) % ndim for dim in call.arguments["dims"]]
    elif ndim > 1:
        a, b = (call.dim("dim0"), call.dim("dim1")) if "dim0" in call.arguments else (0, 1)
        order[a], order[b] = b, a
    return value.at(order.index(value.dim))


@rule("expand", "expand_copy", sizes=("size",))
def _expand(call: Call) -> Value:
    value, new = call.of("self"), _shape(call)
    if isinstance(value, Rows):
        return value.at(value.dim + len(new) - call.ndim("self"))
    if isinstance(value, Total):
        return value
    return by_shape(new) or value


@rule("repeat", sizes=("repeats",))
def _repeat(call: Call) -> Value:
    value, old, times = call.of("self"), call.shape("self"), call.arguments["repeats"]
    extra = len(times) - len(old)
    if isinstance(value, Rows):
        dim = value.dim + extra
        if any(symbolic(t) for t in times):
            raise Refused("rows are repeated as often as there are rows")
        return Rows(dim, value.outer * int(times[dim]), value.inner)
    if isinstance(value, Shared):
        return by_shape(_shape(call)) or value
    return value  # A total that is repeated: every copy is a total.


@rule("unsqueeze", "unsqueeze_copy")
def _unsqueeze(call: Call) -> Value:
    value, dim = call.of("self"), call.dim("dim", extra=1)
    return value.at(value.dim + (dim <= value.dim)) if isinstance(value, Rows) else value


@rule("squeeze", "squeeze_copy")
def _squeeze(call: Call) -> Value:
    value, old = call.of("self"), call.shape("self")
    if not isinstance(value, Rows):
        return value
    dims = range(len(old))
    if "dim" in call.arguments:
        dims = [int(d) % len(old) for d in tree_leaves(call.arguments["dim"])]  # type: ignore[assignment]
    gone = [d for d in set(dims) if not symbolic(old[d]) and old[d] == 1]
    return value.at(value.dim - sum(d < value.dim for d in gone))


@rule("select", "select_copy")
def _select(call: Call) -> Value:
    value, dim = call.of("self"), call.dim("dim")
    if not isinstance(value, Rows):
        return value
    apart(value, [dim], "it takes one position")
    return value.at(value.dim - (dim < value.dim))


@rule("slice", "slice_copy", sizes=("end",))
def _slice(call: Call) -> Value:
    value, dim = call.of("self"), call.dim("dim")
    if isinstance(value, Rows) and dim == value.dim:
        if not _whole(call, call.shape("self")[dim]):
            raise Refused("it takes a part of the batch")
    elif symbolic(call.get("end")):
        raise Refused("it cuts at a position that depends on the size of the batch")
    return value


def _whole(call: Call, size: Size) -> bool:
    """Tell whether a slice along the batch is all of it."""
    end = call.get("end", sys.maxsize)
    to_the_end = end.node.expr == size.node.expr if symbolic(end) else end >= sys.maxsize
    return not call.get("start", 0) and call.get("step", 1) == 1 and bool(to_the_end)


@rule("split", "split_with_sizes", "unbind", "split_copy", "unbind_copy", "split_with_sizes_copy")
def _split(call: Call) -> Value:
    value, dim = call.of("self"), call.dim("dim")
    if not isinstance(value, Rows):
        return value
    apart(value, [dim], "it cuts")
    return value.at(value.dim - (dim < value.dim)) if "unbind" in call.name else value


@rule("unfold", "unfold_copy", "glu")
def _unfold(call: Call) -> Value:
    value, name = call.of("self"), "dim" if "dim" in call.arguments else "dimension"
    if isinstance(value, Rows):
        return apart(value, [call.dim(name)], "it takes windows")
    return value if isinstance(value, Shared) or call.name != "glu" else _refuse_total()


@rule("diagonal", "diagonal_copy")
def _diagonal(call: Call) -> Value:
    value = call.of("self")
    if not isinstance(value, Rows):
        return value
    dims = call.dim("dim1"), int(call.get("dim2", 1)) % call.ndim("self")
    apart(value, dims, "it takes a diagonal")
    return value.at(value.dim - sum(d < value.dim for d in dims))


@rule("cat", "stack")
def _cat(call: Call) -> Value:
    tensors = call.arguments["tensors"]
    # An empty vector is skipped, whatever the shape of the others.
    given = [t for t in tensors if t.dim() != 1 or symbolic(t.shape[0]) or t.shape[0]]
    given = given if call.name == "cat" else list(tensors)
    values = [call.value_of(t) for t in given]
    if any(isinstance(v, Total) for v in values):
        return linear(values)
    if all(isinstance(v, Shared) for v in values):
        return Shared()
    if len(set(values)) > 1 or not isinstance(values[0], Rows):
        raise Refused("it joins tensors with different rows")
    dim = int(call.get("dim", 0)) % (given[0].dim() + (call.name == "stack"))
    if call.name == "stack":
        return values[0].at(values[0].dim + (dim <= values[0].dim))
    return apart(values[0], [dim], "it joins tensors")


@rule("flip", "roll")
def _turned(call: Call) -> Value:
    value, dims = call.of("self"), call.get("dims", [])
    if not isinstance(value, Rows):
        return value
    every = [int(d) % call.ndim("self") for d in tree_leaves(dims)] or range(call.ndim("self"))
    return apart(value, every, f"a {call.name}")


@rule("tril", "triu")
def _triangle(call: Call) -> Value:
    value, ndim = call.of("self"), call.ndim("self")
    return apart(value, (ndim - 2, ndim - 1), "a triangle") if isinstance(value, Rows) else value


@rule("constant_pad_nd")
def _pad(call: Call) -> Value:
    value, pad, ndim = call.of("self"), call.arguments["pad"], call.ndim("self")
    if isinstance(value, Total) and call.get("value", 0):
        return _refuse_total()
    padded = [ndim - 1 - k // 2 for k, width in enumerate(pad) if symbolic(width) or width]
    return apart(value, padded, "padding") if isinstance(value, Rows) else value


@rule("select_scatter", "slice_scatter", "diagonal_scatter", sizes=("end",))
def _written_part(call: Call) -> Value:
    """A tensor with a part of it overwritten."""
    base, source = call.of("self"), call.of("src")
    if isinstance(base, Total) or isinstance(source, Total):
        return linear([base, source])
    dim = base.dim if isinstance(base, Rows) else -1
    if call.name == "diagonal_scatter":
        dims = [call.dim("dim1"), int(call.get("dim2", 1)) % call.ndim("self")]
    else:
        dims = [call.dim("dim")]
    gone = [] if call.name == "slice_scatter" else dims
    if call.name == "slice_scatter" and dims != [dim] and symbolic(call.get("end")):
        raise Refused("it writes at a position that depends on the size of the batch")
    along = call.name == "slice_scatter" and dims == [dim] and base == source
    if along and _whole(call, call.shape("self")[dim]):
        return base
    if not isinstance(base, Rows) or not isinstance(source, Rows):
        raise Refused("it writes rows into something that has none")
    apart(base, dims, "it writes into a part")
    if source != base.at(base.dim - sum(d < base.dim for d in gone)):
        raise Refused("rows are written over other rows")
    return base


def _indices(call: Call) -> tuple[Value, list[int], int, int]:
    """The value of all indices, the dimensions they index, where the results go, and how many.

    The fourth number is the number of dimensions of the indices themselves.
    """
    given = [(k, t) for k, t in enumerate(call.arguments["indices"]) if t is not None]
    if any(t.dtype.is_floating_point or t.element_size() == 1 for _, t in given):
        raise Refused("a mask takes a number of positions that depends on the data")
    positions = [k for k, _ in given]
    together = positions == list(range(positions[0], positions[-1] + 1))
    value = aligned([(call.value_of(t), t.shape) for _, t in given])
    return value, positions, positions[0] if together else 0, max(t.dim() for _, t in given)


def _kept(rows: Rows, positions: list[int], start: int, width: int) -> Rows:
    """The rows of a tensor that is indexed in other dimensions."""
    apart(rows, positions, "it takes positions")
    kept = rows.dim - sum(p < rows.dim for p in positions)
    return rows.at(kept if kept < start else kept + width)


@rule("index", "_unsafe_index")
def _index(call: Call) -> Value:
    base = call.of("self")
    value, positions, start, width = _indices(call)
    if isinstance(value, Shared):
        return _kept(base, positions, start, width) if isinstance(base, Rows) else base
    if isinstance(base, Shared) and isinstance(value, Rows):
        return value.at(start + value.dim)
    raise Refused("rows are taken at positions that depend on the data")


@rule("index_put", "_unsafe_index_put")
def _index_put(call: Call) -> Value:
    base, source = call.of("self"), call.of("values")
    value, positions, start, width = _indices(call)
    ndim = call.ndim("self") - len(positions) + width
    if isinstance(value, Shared) and isinstance(base, Rows):
        kept = _kept(base, positions, start, width)
        if isinstance(source, Shared):
            return base
        if isinstance(source, Rows) and source.at(source.dim + ndim - call.ndim("values")) == kept:
            return base
        raise Refused("rows are written over other rows")
    if call.get("accumulate", False) and (is_zero(base) or isinstance(base, Total)):
        if isinstance(value, Shared):
            return linear([base, source])
        own = source.at(source.dim + ndim - call.ndim("values")) if isinstance(source, Rows) else 0
        if isinstance(value, Rows) and own == value.at(start + value.dim):
            return Total()
    raise Refused("it writes at positions that depend on the data")


@rule("index_select", "index_add", "index_fill", "index_copy")
def _index_select(call: Call) -> Value:
    base, index, dim = call.of("self"), call.of("index"), call.dim("dim")
    others = [call.of(n) for n in ("source", "value") if isinstance(call.get(n), Tensor)]
    if isinstance(index, Shared):
        if isinstance(base, Rows):
            if any(other not in (base, Shared()) for other in others):
                raise Refused("rows are written over other rows")
            return apart(base, [dim], "it takes positions")
        return linear([base, *others]) if others or isinstance(base, Total) else base
    if isinstance(base, Shared) and isinstance(index, Rows):
        if call.name == "index_select":
            return index.at(dim)
        if call.name == "index_add" and base.zero and others == [index.at(dim)]:
            return Total()
    raise Refused("rows are taken at positions that depend on the data")


@rule("gather", "scatter", "scatter_add", "scatter_reduce")
def _gather(call: Call) -> Value:
    if any(isinstance(value, Total) for value in call.values()):
        call.require_shared("index")
        if call.get("reduce") is not None or call.get("value") is not None:
            return _refuse_total()
        return linear([call.of(n) for n in ("self", "src") if isinstance(call.get(n), Tensor)])
    return apart(call.rows(), [call.dim("dim")], "it takes positions")


@rule("embedding")
def _embedding(call: Call) -> Value:
    call.require_shared("weight")
    return call.of("indices")


@rule("embedding_dense_backward")
def _embedding_backward(call: Call) -> Value:
    if call.get("scale_grad_by_freq", False):
        raise Refused("gradients are divided by counts over the batch")
    call.rows("grad_output", "indices")
    return Total()
