"""Rules of products: linear layers, products of matrices and of stacks of them, and `einsum`.

A call is read as one product of a batch and a weight (see `products`), whichever function it is of.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from string import ascii_letters
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from sfumato.privacy.engines.autograd_functions import cast_values
from sfumato.privacy.engines.book_keeping import DeferredProduct
from sfumato.privacy.engines.contact_rule import Met, Rule, named
from sfumato.privacy.engines.contacts import Contact
from sfumato.privacy.engines.leaves import Leaves, NotPerOperator
from sfumato.privacy.engines.products import LINEAR, Equation, product
from sfumato.privacy.engines.row_place import Place
from sfumato.privacy.engines.stored_gradients import zeros


@dataclass(frozen=True)
class Product:
    """A call read as a product.

    Attributes:
        equation: Its equation.
        batch: The argument that belongs to the batch.
        weight: The other one.
        at: The positions of both among the arguments.
        bias: What is added to the product, or None.
    """

    equation: Equation
    batch: Tensor
    weight: Tensor
    at: tuple[int, int]
    bias: Tensor | None = None


Reading = Callable[[Contact, Any, Any, dict[str, Any]], Product | None]
"""From a contact, its function and its arguments to the product, or None if it is none."""


def read(contact: Contact, function: Any, args: Any, kwargs: dict[str, Any]) -> Product | None:
    """A call as a product of a batch and one weight; None if it is no such product."""
    found = READINGS[function](contact, function, args, kwargs) if function in READINGS else None
    if found is None or found.at[0] != contact.source:
        return None
    weights = {weight.position for weight in contact.weights}
    known = found.at[1] in weights or not found.weight.requires_grad
    alone = weights <= {found.at[1]} or found.bias is not None
    fits = contact.place.dim < len(found.equation.batch)
    leads = fits and found.equation.batch[contact.place.dim] in found.equation.positions
    return found if known and alone and leads else None


def multiplied(met: Met, function: Rule, args: Any, kwargs: dict[str, Any]) -> Tensor:
    """A product, or an operator that is none and whose weights are replaced by their leaves."""
    found = read(met.contact, function, args, kwargs)
    if found is not None:
        return run(met, found)
    if function in _EINSUM:
        return _einsum_of_leaves(met, args, kwargs)
    if function not in _MATMUL or any(t.dim() < 2 for t in (*args, *kwargs.values())):
        raise NotPerOperator("a parameter is multiplied otherwise than by a matrix on the right")
    args, kwargs = met.with_leaves(args, kwargs)
    y: Tensor = function(*args, **kwargs)
    return y


def run(met: Met, own: Product) -> Tensor:
    """Run a product on vectors, those of an example beside each other."""
    equation, place, leaves = own.equation, met.contact.place, met.leaves
    rows = equation.batch[place.dim]
    x = place.leading(own.batch, leaves.rows)
    letters = rows + equation.batch.replace(rows, "")
    size = dict(zip(letters, x.shape, strict=True))
    size |= zip(equation.weight, own.weight.shape, strict=True)
    to_vectors, order, to_result = _orders(equation, rows)
    groups, _, inputs = equation.sizes(tuple(own.weight.shape))
    vectors = _permuted(x, to_vectors).reshape(-1, groups, inputs)
    y = of_vectors(
        leaves, vectors, own.weight, own.bias, equation, deferred=own.at[1] in met.deferred
    )
    y = _permuted(y.view([size[a] for a in order]), to_result)
    # Views may follow, as they may after a product of matrices.
    return met.contact.output.back(y, leaves.rows).contiguous()


def _permuted(t: Tensor, order: list[int]) -> Tensor:
    """The dimensions of a tensor in another order, or the tensor if it has this order."""
    return t if order == list(range(t.dim())) else t.permute(order)


@cache
def _orders(equation: Equation, rows: str) -> tuple[list[int], str, list[int]]:
    """The order of dimensions of a batch whose rows lead, and that of the result before and after.

    Returns:
        The dimensions of the batch in the order of rows, positions, groups and inputs; the letters
        of the result in the order of rows, positions, groups and outputs; and their dimensions in
        the order of the result, rows first.
    """
    batch, result = (
        rows + letters.replace(rows, "") for letters in (equation.batch, equation.result)
    )
    first = rows + equation.positions.replace(rows, "")
    own = first + equation.groups + equation.inputs
    alone = "".join(a for a in batch if a not in own)
    order = first + equation.groups + equation.outputs
    return [batch.index(a) for a in alone + own], order, [order.index(a) for a in result]


def of_vectors(
    leaves: Leaves,
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    equation: Equation = LINEAR,
    *,
    deferred: bool = False,
) -> Tensor:
    """A product of vectors and a weight, tied to their leaves.

    Args:
        leaves: The leaves of the pass.
        x: The vectors `(vectors, groups, inputs)`, those of an example beside each other.
        weight: The weight.
        bias: What is added to the results, or None.
        equation: The product.
        deferred: Whether the weight's gradients are not materialised.

    Returns:
        The results `(vectors, outputs)`, or `(vectors, groups, outputs)` with several groups.
    """
    shift = None if bias is None else leaves.value(bias)
    x, value, shift = cast_values(x, leaves.value(weight), shift)
    if not deferred:
        own = leaves.of(weight), leaves.of(bias), None
        return product(x, value, shift, *own, equation, leaves.examples)
    groups, outputs, _ = equation.sizes(tuple(weight.shape))
    leaf = zeros(x, len(x), outputs) if groups == 1 else zeros(x, len(x), groups, outputs)
    kept, shape, views = x.detach(), tuple(weight.shape), len(x) // leaves.examples

    def found(d: Tensor) -> DeferredProduct:
        return DeferredProduct(kept, d.reshape(-1, groups, outputs), views, shape, equation)

    leaves.defer(weight, leaf, found)
    return product(x, value, shift, None, leaves.of(bias), leaf, equation, leaves.examples)


def _linear(contact: Contact, function: Any, args: Any, kwargs: dict[str, Any]) -> Product | None:
    """`F.linear` on inputs of any number of dimensions."""
    own = named(("input", "weight", "bias"), args, kwargs)
    x, weight, bias = own["input"], own["weight"], own.get("bias")
    if bias is not None and (weight.dim() != 2 or bias.dim() != 1):
        return None
    given = [id(t) for t in (*args, *kwargs.values())]
    at = given.index(id(x)), given.index(id(weight))
    return Product(_on_the_right(x.dim(), "oi"[-weight.dim() :]), x, weight, at, bias)


@cache
def _on_the_right(dims: int, weight: str) -> Equation:
    """The product of vectors in the last of some dimensions, and a matrix or a vector."""
    first = ascii_letters[26:][: dims - 1]
    return Equation(first + "i", weight, first + weight.replace("i", ""))


def _matmul(contact: Contact, function: Any, args: Any, kwargs: dict[str, Any]) -> Product | None:
    """A product of matrices, of stacks of them, or of vectors."""
    given = [*args, *kwargs.values()]
    if len(given) != 2 or not all(isinstance(t, Tensor) and t.dim() for t in given):
        return None
    # Arguments that are all named may have any order.
    turned = function in _REFLECTED or (not args and next(iter(kwargs)) != "input")
    sides = given[::-1] if turned else given
    terms = _matmul_terms(*(tuple(t.shape) for t in sides))
    first = 0 if sides[0] is given[contact.source or 0] else 1
    equation = Equation(terms[first], terms[1 - first], terms[2])
    at = (1 - first, first) if turned else (first, 1 - first)
    return Product(equation, sides[first], sides[1 - first], at)


def _matmul_terms(left: tuple[int, ...], right: tuple[int, ...]) -> tuple[str, str, str]:
    """The letters of both sides of a product of matrices, and of its result."""
    stacks = left[:-2], right[:-2]
    count = max(map(len, stacks))
    terms, result = ["", ""], ""
    for k in range(count):
        sizes = [s[k - count] if len(s) >= count - k else 0 for s in stacks]
        letter, alone = ascii_letters[26 + k], ascii_letters[k]
        shared = sizes[0] == sizes[1] and (sizes[0] != 1)
        holder = 0 if sizes[0] > 1 or not sizes[1] else 1
        for side in (0, 1):
            if sizes[side]:
                terms[side] += letter if shared or side == holder else alone
        result += letter
    terms[0] += "xy" if len(left) > 1 else "y"
    terms[1] += "yz" if len(right) > 1 else "y"
    result += ("x" if len(left) > 1 else "") + ("z" if len(right) > 1 else "")
    return terms[0], terms[1], result


def _inner(contact: Contact, function: Any, args: Any, kwargs: dict[str, Any]) -> Product | None:
    """`torch.inner`, and `torch.tensordot` over one dimension, with a matrix on the right."""
    own = named(("x", "weight", "dims"), args, kwargs)
    x, weight = [t for t in own.values() if isinstance(t, Tensor)][:2]
    if weight.dim() != 2:
        return None
    if function in _INNER:
        return Product(_on_the_right(x.dim(), "oi"), x, weight, (0, 1))
    if own.get("dims") not in (1, [[-1], [0]], ([-1], [0]), ((-1,), (0,))):
        return None
    return Product(_on_the_right(x.dim(), "io"), x, weight, (0, 1))


def _addmm(contact: Contact, function: Any, args: Any, kwargs: dict[str, Any]) -> Product | None:
    """`torch.addmm` of a bias, a batch and a matrix."""
    if kwargs or len(args) != 3 or args[0].dim() != 1:
        return None
    return Product(_on_the_right(2, "io"), args[1], args[2], (1, 2), args[0])


def _einsum(contact: Contact, function: Any, args: Any, kwargs: dict[str, Any]) -> Product | None:
    """`torch.einsum` of two tensors."""
    tensors = _operands(args)
    if not isinstance(args[0], str) or kwargs or len(tensors) != 2 or contact.source is None:
        return None
    terms, arrow, right = _spelled_out(args[0], tensors)
    at = contact.source - 1
    batch, weight = terms[at], terms[1 - at]
    once = all(len(set(term)) == len(term) for term in (*terms, right))
    size = dict(zip(batch + weight, (*tensors[at].shape, *tensors[1 - at].shape), strict=True))
    alone = [a for a in size if (a in batch) + (a in weight) + (a in right) < 2]
    fits = all(size[a] == tensors[at].shape[k] for k, a in enumerate(batch))
    if not arrow or not once or not fits or any(size[a] != 1 for a in alone):
        return None
    if not _of_one_type(*tensors):
        return None
    return Product(Equation(batch, weight, right), tensors[at], tensors[1 - at], (at + 1, 2 - at))


def _of_one_type(first: Tensor, second: Tensor) -> bool:
    """Tell whether two tensors have one type, or are cast to one as `torch.autocast` does."""
    floating = first.is_floating_point() and second.is_floating_point()
    cast = floating and torch.is_autocast_enabled(first.device.type)
    return cast or first.dtype == second.dtype


def _operands(args: Any) -> list[Tensor]:
    return list(args[1]) if isinstance(args[1], list | tuple) else list(args[1:])


def _einsum_of_leaves(met: Met, args: Any, kwargs: dict[str, Any]) -> Tensor:
    """`torch.einsum` with an equation, in which a weight's leaf has the letter of the rows."""
    if not isinstance(args[0], str) or kwargs or met.contact.source is None:
        raise NotPerOperator("torch.einsum is used without an equation")
    tensors = _operands(args)
    terms, arrow, right = _spelled_out(args[0], tensors)
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


def _spelled_out(equation: str, tensors: list[Tensor]) -> tuple[list[str], str, str]:
    """The terms of an equation, letters in the place of three dots, its arrow and its result."""
    left, arrow, right = equation.replace(" ", "").partition("->")
    terms = left.split(",")
    free = [letter for letter in ascii_letters if letter not in left]
    pairs = list(zip(terms, tensors, strict=True))
    hidden = [t.dim() - len(term) + 3 if "." in term else 0 for term, t in pairs]
    letters = "".join(free[: max(hidden)])

    def spelled(term: str, count: int) -> str:
        return term.replace("...", letters[len(letters) - count :])

    return list(map(spelled, terms, hidden)), arrow, spelled(right, max(hidden))


def methods(*names: str) -> list[Any]:
    """The functions of these names, in every form in which a mode sees them."""
    spaces = (torch, Tensor, torch._C.TensorBase, F)
    return [getattr(space, name) for name in names for space in spaces if hasattr(space, name)]


_REFLECTED = (Tensor.__rmatmul__,)
_EINSUM = (torch.einsum, torch.functional.einsum)
_INNER, _TENSORDOT = methods("inner"), methods("tensordot")
_MATMUL = methods("matmul", "__matmul__", "__rmatmul__", "mm", "bmm", "mv")

READINGS: dict[Any, Reading] = {
    F.linear: _linear,
    **dict.fromkeys(_MATMUL, _matmul),
    **dict.fromkeys((*_INNER, *_TENSORDOT), _inner),
    **dict.fromkeys(methods("addmm"), _addmm),
    **dict.fromkeys(_EINSUM, _einsum),
}
"""The reading of each function's calls as products."""

PRODUCTS: dict[Any, Rule] = dict.fromkeys(READINGS, multiplied)
"""The rules of products by their functions."""
