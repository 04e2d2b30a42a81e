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

from sfumato.kernels.definitions import Geometry
from sfumato.privacy.engines import autograd_functions
from sfumato.privacy.engines.compiled_rules import linear as output_linear
from sfumato.privacy.engines.contact_rule import Met, Rule, named
from sfumato.privacy.engines.convolution_rules import CONVOLUTIONS
from sfumato.privacy.engines.embedding_bag_rule import BAGS
from sfumato.privacy.engines.leaves import NotPerOperator
from sfumato.privacy.engines.recurrent_rules import RECURRENT
from sfumato.privacy.engines.row_place import Place


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


def linear(met: Met, function: Rule, args: Any, kwargs: dict[str, Any]) -> Tensor:
    """`F.linear` on inputs of any number of dimensions."""
    return _affine(met, **named(("input", "weight", "bias"), args, kwargs))


def _affine(met: Met, input: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    leaf = None if met.deferred else met.leaves.of(weight)
    return _matrix(met, input, met.leaves.value(weight), leaf, bias, weight)


def _matrix(
    met: Met,
    x: Tensor,
    values: Tensor,
    leaf: Tensor | None,
    bias: Tensor | None,
    weight: Tensor | None = None,
) -> Tensor:
    """A product with a matrix, on `(positions, in)` with those of an example beside each other."""
    leaves, place = met.leaves, met.contact.place
    leading = place.leading(x, leaves.rows)
    shift = None if bias is None else leaves.value(bias)
    # In two dimensions the result is not a view, so it may be changed in place afterwards.
    flat, values, shift = autograd_functions.cast_values(
        leading.reshape(-1, x.shape[-1]), values, shift
    )
    if met.deferred and weight is not None:
        positions = flat.shape[0] // leaves.examples
        at = Geometry((1, 1), (1, 1), (0, 0), (1, 1), positions)
        output = leaves.defer(weight, flat, at, flat.shape[0], weight.shape[0])
        y = output_linear(flat, values, shift, leaves.of(bias), output, positions)
    else:
        y = autograd_functions.linear(flat, values, shift, leaf, leaves.of(bias), leaves.examples)
    return place.back(y.view(*leading.shape[:-1], y.shape[-1]), leaves.rows)


def matrix_product(met: Met, function: Rule, args: Any, kwargs: dict[str, Any]) -> Tensor:
    """A product with a weight: a matrix on the right is a linear operator."""
    given = [*args, *kwargs.values()]
    if function in _REFLECTED:
        given.reverse()
    x, weight = given[0], given[1]
    at = 0 if function in _REFLECTED else 1
    right = [weight.position for weight in met.contact.weights] == [at]
    if right and not kwargs and weight.dim() == 2:
        leaf = met.leaves.of(weight)
        turned = None if leaf is None else leaf.transpose(1, 2)
        return _matrix(met, x, met.leaves.value(weight).t(), turned, None)
    if right and not kwargs and weight.dim() == 1:
        leaf = met.leaves.of(weight)
        row = None if leaf is None else leaf.unsqueeze(1)
        return _matrix(met, x, met.leaves.value(weight).unsqueeze(0), row, None).squeeze(-1)
    if weight.dim() < 2 or x.dim() < 2:
        raise NotPerOperator("a parameter is a vector on the left of a product")
    y: Tensor = broadcasting(met, function, args, kwargs)
    return y


def inner_product(met: Met, function: Rule, args: Any, kwargs: dict[str, Any]) -> Tensor:
    """`torch.inner` of a batch and a weight, and `torch.tensordot` over one dimension."""
    own = named(("x", "weight", "dims"), args, kwargs)
    x, weight = [t for t in own.values() if isinstance(t, Tensor)][:2]
    if [w.position for w in met.contact.weights] != [1] or weight.dim() != 2:
        raise NotPerOperator("a parameter is no matrix on the right of a product")
    value, leaf = met.leaves.value(weight), met.leaves.of(weight)
    if function in _INNER:
        return _matrix(met, x, value, leaf, None)
    if own.get("dims") not in (1, [[-1], [0]], ([-1], [0]), ((-1,), (0,))):
        raise NotPerOperator("torch.tensordot is used otherwise than as a linear layer")
    return _matrix(met, x, value.t(), None if leaf is None else leaf.transpose(1, 2), None)


def bilinear(met: Met, function: Rule, args: Any, kwargs: dict[str, Any]) -> Tensor:
    """`F.bilinear`: a product of the second input and a matrix, then one with the first input."""
    own = named(("input1", "input2", "weight", "bias"), args, kwargs)
    first, second, weight = own["input1"], own["input2"], own["weight"]
    if met.contact.source != 0:
        raise NotPerOperator("torch.bilinear has a first input that is not the batch")
    leaf = met.leaves.of(weight)
    rows = None if leaf is None else leaf.flatten(1, 2)
    z = _matrix(met, second, met.leaves.value(weight).flatten(0, 1), rows, None)
    y = (z.view(*z.shape[:-1], *weight.shape[:2]) * first.unsqueeze(-2)).sum(-1)
    bias = own.get("bias")
    return y if bias is None else torch.add(y, met.per_row(bias, y.dim()))


def addmm(met: Met, function: Rule, args: Any, kwargs: dict[str, Any]) -> Tensor:
    """`torch.addmm` of a bias, a batch and a matrix."""
    if kwargs or len(args) != 3 or met.contact.source == 0 or args[0].dim() != 1:
        raise NotPerOperator("torch.addmm is used otherwise than as a linear layer")
    bias, x, weight = args
    leaf = met.leaves.of(weight)
    turned = None if leaf is None else leaf.transpose(1, 2)
    return _matrix(met, x, met.leaves.value(weight).t(), turned, bias)


def einsum(met: Met, function: Rule, args: Any, kwargs: dict[str, Any]) -> Tensor:
    """`torch.einsum` with an equation, in which a weight's leaf has the letter of the rows."""
    if not isinstance(args[0], str) or kwargs or met.contact.source is None:
        raise NotPerOperator("torch.einsum is used without an equation")
    tensors = list(args[1]) if isinstance(args[1], list | tuple) else list(args[1:])
    left, arrow, right = args[0].replace(" ", "").partition("->")
    terms, right = _spelled_out(left.split(","), right, tensors)
    letter = terms[met.contact.source - 1][met.contact.place.dim : met.contact.place.dim + 1]
    if not arrow or letter not in right or not letter:
        raise NotPerOperator("torch.einsum is used without letters for all dimensions")
    for at in (weight.position for weight in met.contact.weights):
        weight = tensors[at - 1]
        if letter in terms[at - 1]:
            raise NotPerOperator("a parameter has an entry for each row of the batch")
        dims = weight.dim() + 1
        place = Place(0, met.contact.place.each, met.contact.place.interleaved)
        tensors[at - 1] = met.per_row(weight, dims, place)
        terms[at - 1] = letter + terms[at - 1]
    return torch.einsum(f"{','.join(terms)}->{right}", *tensors)


def _spelled_out(terms: list[str], right: str, tensors: list[Tensor]) -> tuple[list[str], str]:
    """The terms of an equation with letters in the place of three dots."""
    free = [letter for letter in ascii_letters if letter not in "".join(terms)]
    pairs = list(zip(terms, tensors, strict=True))
    hidden = [t.dim() - len(term) + 3 if "." in term else 0 for term, t in pairs]
    letters = "".join(free[: max(hidden)])

    def spelled(term: str, count: int) -> str:
        return term.replace("...", letters[len(letters) - count :])

    return list(map(spelled, terms, hidden)), spelled(right, max(hidden))


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


_T = torch._C.TensorBase
_REFLECTED = (Tensor.__rmatmul__,)


def _methods(*names: str) -> list[Any]:
    """The functions of these names, in every form in which a mode sees them."""
    spaces = (torch, Tensor, _T, F)
    return [getattr(space, name) for name in names for space in spaces if hasattr(space, name)]


_ELEMENTWISE = _methods(
    "add", "add_", "sub", "sub_", "subtract", "rsub", "mul", "mul_", "multiply", "div", "div_",
    "divide", "true_divide", "maximum", "minimum", "where", "addcmul", "addcmul_", "lerp", "pow",
    "clamp", "__add__", "__radd__", "__iadd__", "__sub__", "__rsub__", "__isub__", "__mul__",
    "__rmul__", "__imul__", "__truediv__", "__rtruediv__", "__itruediv__", "__pow__", "__div__",
    "__rdiv__", "max", "min", "fmax", "fmin", "atan2", "arctan2", "hypot", "logaddexp",
    "logaddexp2", "copysign", "fmod", "remainder", "xlogy", "addcdiv", "baddbmm",
)  # fmt: skip

_INTERLEAVING, _INNER = _methods("repeat_interleave"), _methods("inner")
_STACKING = _methods("stack")

RULES: dict[Any, Rule] = {
    **dict.fromkeys(_ELEMENTWISE, broadcasting),
    **dict.fromkeys(_methods("expand", "expand_as", "broadcast_to", "repeat", "tile"), growing),
    **dict.fromkeys(_INTERLEAVING, growing),
    **dict.fromkeys((*_STACKING, *_methods("cat", "concat", "concatenate")), joining),
    **dict.fromkeys(_methods("masked_fill"), masked_fill),
    **dict.fromkeys(_methods("cosine_similarity", "pairwise_distance"), distance),
    **dict.fromkeys(_methods("cdist"), distances),
    **dict.fromkeys(
        _methods("matmul", "__matmul__", "__rmatmul__", "mm", "bmm", "mv"), matrix_product
    ),
    **dict.fromkeys((*_INNER, *_methods("tensordot")), inner_product),
    **dict.fromkeys(_methods("index_select"), index_select),
    **dict.fromkeys(_methods("addmm"), addmm),
    **dict.fromkeys(_methods("bilinear"), bilinear),
    **dict.fromkeys([torch.einsum, torch.functional.einsum], einsum),
    **CONVOLUTIONS,
    **dict.fromkeys([F.layer_norm, F.rms_norm], layer_norm),
    F.linear: linear,
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
