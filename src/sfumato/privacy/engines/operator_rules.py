"""Per-example gradients of single operators: the rules.

A rule runs an operator in which weights meet the batch on plain values, and ties a *leaf* of shape
`(examples, *shape)` for each weight into the graph. Where a weight is small the leaf is used in its
place; where it is large (filters, matrices) the leaf is never read, and an autograd function
defines its gradient. In both cases `torch.autograd.grad(loss, leaf)` returns per-example gradients,
without hooks and without state on parameters.

A batch has `rows = examples * views` rows in example-major order. Gradients are summed over the
views of an example here; the mean is taken in the loss.
"""

from __future__ import annotations

from string import ascii_letters
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from sfumato.privacy.engines import autograd_functions
from sfumato.privacy.engines.contact_rule import Met, Rule, named
from sfumato.privacy.engines.contacts import Contact
from sfumato.privacy.engines.convolution_rules import CONVOLUTIONS
from sfumato.privacy.engines.embedding_bag_rule import BAGS
from sfumato.privacy.engines.leaves import NotPerOperator
from sfumato.privacy.engines.product_rules import PRODUCTS, Product, methods, read, run
from sfumato.privacy.engines.products import Equation
from sfumato.privacy.engines.recurrent_rules import CELLS, RECURRENT, cell_products


def broadcasting(met: Met, function: Rule, args: Any, kwargs: dict[str, Any]) -> Any:
    """An elementwise operator, or a product of matrices: leaves in the place of weights."""
    args, kwargs = met.with_leaves(args, kwargs)
    return function(*args, **kwargs)


def distance(met: Met, function: Rule, args: Any, kwargs: dict[str, Any]) -> Tensor:
    """A distance or a similarity between a batch and a weight, which takes a dimension away."""
    # Rows lie where they do in the batch: the result has a dimension less.
    args, kwargs = met.with_leaves(args, kwargs, met.contact.place)
    y: Tensor = function(*args, **kwargs)
    return y


def distances(met: Met, function: Rule, args: Any, kwargs: dict[str, Any]) -> Tensor:
    """`torch.cdist` between the rows of a batch and of a weight, or of stacks of both."""
    place, source = met.contact.place, met.contact.source
    matrices = len(args) > 1 and all(t.dim() == 2 for t in args[:2])
    if source not in (0, 1) or place.dim or not matrices:
        return distance(met, function, args, kwargs)
    # Each row of the batch is a matrix of one row, beside the weight of its example.
    rows, weight = args[source].unsqueeze(1), met.per_row(args[1 - source], 3, place)
    pair = (rows, weight) if source == 0 else (weight, rows)
    y: Tensor = function(*pair, *args[2:], **kwargs).squeeze(1 + source)
    return y if source == 0 else y.t()


def growing(met: Met, function: Rule, args: Any, kwargs: dict[str, Any]) -> Any:
    """A weight that is expanded or repeated to the rows of a batch."""
    with torch.no_grad():
        shape = function(*args, **kwargs).shape
    spread = met.per_row(args[0], len(shape))
    if all(have in (1, want) for have, want in zip(spread.shape, shape, strict=True)):
        return spread.expand(shape)
    if function in _INTERLEAVING:
        raise NotPerOperator("a parameter is repeated along two dimensions")
    return spread.repeat(*(want // have for want, have in zip(shape, spread.shape, strict=True)))


def joining(met: Met, function: Rule, args: Any, kwargs: dict[str, Any]) -> Tensor:
    """`torch.cat` and `torch.stack` of a weight that is listed once for each row of the batch."""
    own = {"dim": 0, **named(("tensors", "dim"), args, kwargs)}
    listed: Any = own["tensors"]
    leaves, place = met.leaves, met.contact.output
    if (
        met.contact.source is not None
        or len(listed) != leaves.rows
        or set(own) > {"tensors", "dim"}
    ):
        raise NotPerOperator("a parameter is joined with something else than itself")
    if (leaf := leaves.of(listed[0])) is None:
        raise NotPerOperator("a parameter that is not trained is joined with itself")
    rows = leaf.unsqueeze(1).expand(-1, leaves.views, *leaf.shape[1:]).flatten(0, 1)
    if function in _STACKING:
        return rows.movedim(0, place.dim)
    return rows.movedim(0, place.dim).flatten(place.dim, place.dim + 1)


def masked_fill(met: Met, function: Rule, args: Any, kwargs: dict[str, Any]) -> Tensor:
    """`torch.masked_fill` of a batch with a weight, or of a weight by a mask of the batch."""
    own = named(("input", "mask", "value"), *met.with_leaves(args, kwargs))
    return torch.where(own["mask"], own["value"], own["input"])


def bilinear(met: Met, function: Rule, args: Any, kwargs: dict[str, Any]) -> Tensor:
    """`F.bilinear`: a product of the second input and a matrix, then one with the first input."""
    own = named(("input1", "input2", "weight", "bias"), args, kwargs)
    first, second, weight = own["input1"], own["input2"], own["weight"]
    if met.contact.source != 0:
        raise NotPerOperator("torch.bilinear has a first input that is not the batch")
    letters = ascii_letters[26:][: second.dim() - 1]
    z = run(met, Product(Equation(letters + "j", "oij", letters + "oi"), second, weight, (1, 2)))
    y = (z * first.unsqueeze(-2)).sum(-1)
    bias = own.get("bias")
    return y if bias is None else torch.add(y, met.per_row(bias, y.dim()))


def layer_norm(met: Met, function: Rule, args: Any, kwargs: dict[str, Any]) -> Tensor:
    """`F.layer_norm` and `F.rms_norm`."""
    names: tuple[str, ...] = ("input", "normalized_shape", "weight", "bias", "eps")
    if function is F.rms_norm:
        names = ("input", "normalized_shape", "weight", "eps")
    own = named(names, args, kwargs)
    weight, bias = own.pop("weight", None), own.pop("bias", None)
    y: Tensor = function(**own)
    dims = y.dim()
    y = y if weight is None else y * met.per_row(weight, dims)
    return y if bias is None else y + met.per_row(bias, dims)


def group_norm(met: Met, function: Rule, args: Any, kwargs: dict[str, Any]) -> Tensor:
    """`F.group_norm`."""
    own = named(("input", "num_groups", "weight", "bias", "eps"), args, kwargs)
    x, weight, bias = own["input"], own.get("weight"), own.get("bias")
    leaves = met.leaves.of(weight), met.leaves.of(bias)
    plain = x.device.type == "cpu" and not torch.is_autocast_enabled("cpu") and x.dim() > 2
    if plain and met.contact.place.leads and None not in leaves and x.dtype == weight.dtype:  # type: ignore[union-attr]
        eps = own.get("eps", 1e-5)
        values = met.leaves.value(weight), met.leaves.value(bias)  # type: ignore[arg-type]
        return autograd_functions.group_norm(
            x, *values, *leaves, own["num_groups"], eps, met.copies
        )
    y = F.group_norm(x, own["num_groups"], eps=own.get("eps", 1e-5))
    return _by_channel(met, y, weight, bias)


def channel_norm(met: Met, function: Rule, args: Any, kwargs: dict[str, Any]) -> Tensor:
    """`F.instance_norm`, and `F.batch_norm` by the running statistics of evaluation."""
    names: tuple[str, ...] = ("input", "running_mean", "running_var", "weight", "bias")
    names += ("training" if function is F.batch_norm else "use_input_stats", "momentum", "eps")
    own = named(names, args, kwargs)
    weight, bias = own.pop("weight", None), own.pop("bias", None)
    if function is F.batch_norm and own.get("training", False):
        raise NotPerOperator("batch norm mixes examples in training")
    return _by_channel(met, function(**own), weight, bias)


def _by_channel(met: Met, y: Tensor, weight: Tensor | None, bias: Tensor | None) -> Tensor:
    """Apply a norm's gain and shift, which belong to the second dimension."""
    for value, combine in ((weight, torch.mul), (bias, torch.add)):
        if value is None:
            continue
        shape = (*value.shape, *(1,) * (y.dim() - 2))
        leaf = met.leaves.of(value)
        row = met.leaves.value(value).view(shape)
        if leaf is not None:
            own = leaf.reshape(leaf.shape[0], *shape)
            row = met.spread(own, shape, y.dim(), met.contact.place)
        y = combine(y, row)
    return y


def prelu(met: Met, function: Rule, args: Any, kwargs: dict[str, Any]) -> Tensor:
    """`F.prelu`: a slope for negative inputs, one or one per channel."""
    own = named(("input", "weight"), args, kwargs)
    x, weight = own["input"], own["weight"]
    if weight.numel() > 1:
        return torch.where(x > 0, x, _by_channel(met, x, weight, None))
    return torch.where(x > 0, x, x * met.per_row(weight, x.dim()))


def embedding(met: Met, function: Rule, args: Any, kwargs: dict[str, Any]) -> Tensor:
    """`F.embedding`, whose padding row receives nothing, and a weight indexed by the batch."""
    if function is F.embedding:
        own = named(("input", "weight", "padding_idx", "max_norm"), args, kwargs)
        indices, weight, padding = own["input"], own["weight"], own.get("padding_idx")
        if own.get("max_norm") is not None or kwargs.get("scale_grad_by_freq"):
            raise NotPerOperator("an embedding is rescaled as it is read")
        padding = padding + len(weight) if padding is not None and padding < 0 else padding
    else:
        (weight, indices), padding = args, None
        if not isinstance(indices, Tensor) or indices.dtype != torch.long:
            raise NotPerOperator("a parameter is indexed by several values of the batch")
    rows = met.leaves.rows
    value, leaf = met.leaves.value(weight), met.leaves.of(weight)
    entries, own = len(weight), weight.shape[1:]
    y = autograd_functions.embedding(
        met.contact.place.leading(indices, rows), value.reshape(entries, -1),
        None if leaf is None else leaf.reshape(len(leaf), entries, -1), padding, met.copies,
    )  # fmt: skip
    return met.contact.output.back(y.reshape(*y.shape[:-1], *own), rows)


def index_select(met: Met, function: Rule, args: Any, kwargs: dict[str, Any]) -> Tensor:
    """`torch.index_select` of a weight's entries by the batch."""
    own = named(("input", "dim", "index"), args, kwargs)
    if own["dim"] != 0 or own["index"].dtype != torch.long:
        raise NotPerOperator("a parameter is indexed along another dimension than its first")
    return embedding(met, Tensor.__getitem__, (own["input"], own["index"]), {})


def assignment(met: Met, function: Rule, args: Any, kwargs: dict[str, Any]) -> None:
    """A weight that is written to the same place of every row."""
    target, index, weight = args
    first = index[0] if isinstance(index, tuple) else index
    every = first is Ellipsis or (isinstance(first, slice) and first == slice(None))
    shape = target.detach()[index].shape
    rows = met.contact.place
    if not (every and rows.dim == 0 and shape and shape[0] == len(target)):
        raise NotPerOperator("a parameter is written to some rows of the batch")
    function(target, index, met.per_row(weight, len(shape), rows))


def attention(met: Met, function: Rule, args: Any, kwargs: dict[str, Any]) -> Tensor:
    """`F.scaled_dot_product_attention` with a learned bias, query, key or value."""
    args, kwargs = met.with_leaves(args, kwargs)
    y: Tensor = function(*args, **kwargs)
    return y


def products_of(
    contact: Contact, function: Any, args: Any, kwargs: dict[str, Any]
) -> list[Product]:
    """The products with weights that a call consists of, as far as they may be deferred."""
    if function in CELLS:
        return cell_products(function, args, kwargs)
    found = read(contact, function, args, kwargs)
    return [] if found is None else [found]


_T = torch._C.TensorBase

_ELEMENTWISE = methods(
    "add", "add_", "sub", "sub_", "subtract", "rsub", "mul", "mul_", "multiply", "div", "div_",
    "divide", "true_divide", "maximum", "minimum", "where", "addcmul", "addcmul_", "lerp", "pow",
    "clamp", "__add__", "__radd__", "__iadd__", "__sub__", "__rsub__", "__isub__", "__mul__",
    "__rmul__", "__imul__", "__truediv__", "__rtruediv__", "__itruediv__", "__pow__", "__div__",
    "__rdiv__", "max", "min", "fmax", "fmin", "atan2", "arctan2", "hypot", "logaddexp",
    "logaddexp2", "copysign", "fmod", "remainder", "xlogy", "addcdiv", "baddbmm",
)  # fmt: skip

_INTERLEAVING = methods("repeat_interleave")
_STACKING = methods("stack")

RULES: dict[Any, Rule] = {
    **dict.fromkeys(_ELEMENTWISE, broadcasting),
    **dict.fromkeys(methods("expand", "expand_as", "broadcast_to", "repeat", "tile"), growing),
    **dict.fromkeys(_INTERLEAVING, growing),
    **dict.fromkeys((*_STACKING, *methods("cat", "concat", "concatenate")), joining),
    **dict.fromkeys(methods("masked_fill"), masked_fill),
    **dict.fromkeys(methods("cosine_similarity", "pairwise_distance"), distance),
    **dict.fromkeys(methods("cdist"), distances),
    **dict.fromkeys(methods("index_select"), index_select),
    **dict.fromkeys(methods("bilinear"), bilinear),
    **PRODUCTS,
    **CONVOLUTIONS,
    **dict.fromkeys([F.layer_norm, F.rms_norm], layer_norm),
    F.group_norm: group_norm,
    F.instance_norm: channel_norm,
    F.batch_norm: channel_norm,
    F.prelu: prelu,
    torch.prelu: prelu,
    F.embedding: embedding,
    Tensor.__getitem__: embedding,
    _T.__getitem__: embedding,
    Tensor.__setitem__: assignment,
    _T.__setitem__: assignment,
    F.scaled_dot_product_attention: attention,
    **BAGS,
    **RECURRENT,
}
"""The rule of each operator in which a weight may meet the batch."""
