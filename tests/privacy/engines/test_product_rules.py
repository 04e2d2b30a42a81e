"""Products of a batch and a weight, whichever function they are written with."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from sfumato.privacy import PerExample
from sfumato.privacy.checks.agreement import errors
from sfumato.privacy.clipping import Flat
from sfumato.privacy.engines import book_keeping
from sfumato.privacy.engines.book_keeping import DeferredProduct
from sfumato.privacy.engines.contact_rule import Met
from sfumato.privacy.engines.leaves import NotPerOperator
from sfumato.privacy.engines.objective import Objective
from sfumato.privacy.engines.one_at_a_time import one_at_a_time
from sfumato.privacy.engines.operators import Operators

Multiply = Callable[[Tensor, Tensor], Tensor]


class Multiplying(nn.Module):
    """A product with one weight, between functions without parameters.

    The rows of the batch lie in dimension `rows`, and in dimension `after` of the product.
    """

    def __init__(
        self, multiply: Multiply, own: tuple[int, ...], weight: tuple[int, ...],
        rows: int = 0, after: int = 0,
    ) -> None:  # fmt: skip
        super().__init__()
        self.own, self.rows, self.after, self.multiply = own, rows, after, multiply
        self.weight = nn.Parameter(torch.randn(weight))

    def forward(self, x: Tensor) -> Tensor:
        x = x.view(len(x), *self.own).movedim(0, self.rows)
        y = self.multiply(x.sin(), self.weight).movedim(self.after, 0).unsqueeze(-1).flatten(1)
        turns = torch.arange(3 * y.shape[1], dtype=y.dtype).cos().view(-1, 3)
        return (y * y.tanh()) @ turns


def compare(model: Multiplying, examples: int, views: int, dtype: torch.dtype) -> None:
    """Gradients, norms and clipped sums of a model are those of the reference."""
    x = torch.randn(examples * views, torch.Size(model.own).numel(), dtype=dtype)
    y, model, bound = torch.arange(examples) % 3, model.to(dtype), 1e-9
    bound = 1e-9 if dtype is torch.float64 else 1e-3
    reference, rule = one_at_a_time(model, x, y, views=views), Flat(0.1)
    for book_keeping_ in (True, False):
        engine = Operators(Objective(model, views=views), book_keeping=book_keeping_)
        found = engine.gradients(x, y)
        assert max(errors(found, reference).values(), default=0) < bound
        norms = found.squared_norms()
        torch.testing.assert_close(norms, reference.squared_norms(), rtol=bound, atol=1e-9)
        sums = [g.weighted_sum(rule.weights(g.squared_norms())) for g in (found, reference)]
        torch.testing.assert_close(sums[0][0].to(sums[1][0]), sums[1][0], rtol=0, atol=bound)
        for n in range(examples):
            alone = torch.zeros(examples, 1, dtype=torch.float64)
            alone[n] = rule.weights(norms)[n, :1]
            assert float(found.weighted_sum(alone)[0].double().norm()) <= rule.clip


@st.composite
def equations(draw: st.DrawFn) -> tuple[str, str, str, dict[str, int]]:
    """Letters of a batch, a weight and their product in any order, and the sizes of dimensions."""
    sizes = {a: draw(st.integers(1, 3)) for a in "ghijopqr"}
    groups, inputs, outputs, positions = (
        own[: draw(st.integers(0, 2))] for own in ("gh", "ij", "op", "qr")
    )
    terms = ["n" + positions + groups + inputs, groups + outputs + inputs, ""]
    terms[2] = "n" + positions + groups + outputs
    batch, weight, result = ("".join(draw(st.permutations(term))) for term in terms)
    return batch, weight, result, sizes


@settings(max_examples=60, deadline=None, derandomize=True)
@given(equations(), st.sampled_from([1, 4]), st.sampled_from([1, 2]), st.booleans())
def test_einsum_in_any_order_has_the_gradients_of_one_example_at_a_time(
    equation: tuple[str, str, str, dict[str, int]], examples: int, views: int, wide: bool
) -> None:
    batch, weight, result, sizes = equation
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(book_keeping, "_SMALLEST_MATRIX", 1)
        shapes = (tuple(sizes[a] for a in term.replace("n", "")) for term in (batch, weight))
        model = Multiplying(
            lambda x, w: torch.einsum(f"{batch},{weight}->{result}", x, w),
            *shapes, batch.index("n"), result.index("n"),
        )  # fmt: skip
        compare(model, examples, views, torch.float64 if wide else torch.float32)


PRODUCTS: dict[str, tuple[Multiply, tuple[int, ...], tuple[int, ...]]] = {
    "a linear layer": (lambda x, w: F.linear(x, w), (9,), (90, 9)),
    "of tokens": (lambda x, w: F.linear(x, w), (2, 9), (90, 9)),
    "a matrix on the right": (lambda x, w: x @ w, (9,), (9, 90)),
    "a matrix on the left": (lambda x, w: w @ x, (9, 2), (90, 9)),
    "a matrix on the left, reflected": (lambda x, w: x.__rmatmul__(w), (9, 2), (90, 9)),
    "a stack of matrices": (lambda x, w: x.unsqueeze(-2) @ w, (4, 9), (4, 9, 90)),
    "a stack of which every row has the same": (
        lambda x, w: (w @ x[:, :, None, :, None]).squeeze(-1), (4, 9), (1, 4, 3, 20, 9)
    ),
    "a stack on one side": (lambda x, w: x[:, None] @ w, (2, 9), (4, 9, 90)),
    "mixed experts": (lambda x, w: torch.einsum("bd,edh->beh", x, w), (9,), (4, 9, 90)),
    "one matrix for each expert": (
        lambda x, w: torch.einsum("beh,ehd->bed", x, w), (4, 9), (4, 9, 90)
    ),
    "splines": (lambda x, w: torch.einsum("bik,oik->bo", x, w), (6, 8), (90, 6, 8)),
    "splines on edges": (lambda x, w: torch.einsum("ijk,jlk->ijl", x, w), (6, 8), (6, 90, 8)),
    "the other way round": (lambda x, w: torch.einsum("oi,bi->bo", w, x), (9,), (90, 9)),
    "named arguments": (lambda x, w: torch.matmul(other=w, input=x), (9,), (9, 90)),
    "a named weight before the batch": (lambda x, w: F.linear(weight=w, input=x), (9,), (90, 9)),
    "addmm": (lambda x, w: torch.addmm(torch.ones(90, dtype=x.dtype), x, w), (9,), (9, 90)),
}  # fmt: skip


@pytest.mark.parametrize("views", [1, 2])
@pytest.mark.parametrize("name", PRODUCTS)
def test_a_product_is_not_materialised_where_it_is_cheaper(
    name: str, views: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    torch.manual_seed(0)
    monkeypatch.setattr(book_keeping, "_SMALLEST_MATRIX", 500)
    multiply, own, weight = PRODUCTS[name]
    model = Multiplying(multiply, own, weight)
    compare(model, 3, views, torch.float64)
    compare(model, 3, views, torch.float32)
    x, y = torch.randn(3 * views, torch.Size(own).numel()), torch.arange(3)
    parts = Operators(Objective(model, views=views)).gradients(x, y).parts
    assert isinstance(parts[0], DeferredProduct)


@pytest.mark.parametrize("name", PRODUCTS)
def test_no_leaf_of_a_product_is_read(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The weight of an example is a copy of the matrix, which takes as much as its gradient."""

    def refuse(*_: object) -> None:
        raise AssertionError("a leaf is read")

    monkeypatch.setattr(Met, "per_row", refuse)
    multiply, own, weight = PRODUCTS[name]
    x = torch.randn(3, torch.Size(own).numel())
    engine = Operators(Objective(Multiplying(multiply, own, weight)), book_keeping=False)
    assert engine.gradients(x, torch.arange(3)).parts[0] is not None


@pytest.mark.parametrize("groups", [1, 3])
def test_the_result_of_a_product_may_be_changed_in_place(groups: int) -> None:
    def multiply(x: Tensor, w: Tensor) -> Tensor:
        return torch.einsum("bgi,gio->bgo", x, w).mul_(2).relu_()

    compare(Multiplying(multiply, (groups, 5), (groups, 5, 4)), 1, 1, torch.float64)
    compare(Multiplying(multiply, (groups, 5), (groups, 5, 4)), 4, 1, torch.float64)


OTHERS: dict[str, tuple[Multiply, tuple[int, ...], tuple[int, ...]]] = {
    "three tensors": (
        lambda x, w: torch.einsum("bi,bj,ijk->bk", x, x.cos(), w), (4,), (4, 4, 3)
    ),
    "a sum over the weight alone": (
        lambda x, w: torch.einsum("bi,oij->bo", x, w), (4,), (3, 4, 2)
    ),
    "a sum over the batch alone": (lambda x, w: torch.einsum("bij,oi->bo", x, w), (4, 2), (3, 4)),
    "a diagonal": (lambda x, w: torch.einsum("bi,ii->bi", x, w), (4,), (4, 4)),
    "a weight twice": (lambda x, w: torch.einsum("bi,ij,kj->bk", x, w, w), (4,), (4, 4)),
    "a dimension of one": (lambda x, w: torch.einsum("bi,oi->bo", x, w), (1,), (3, 4)),
    "named square matrices": (lambda x, w: torch.matmul(other=w, input=x), (4, 4), (4, 4)),
    "a linear layer with a vector": (lambda x, w: F.linear(x, w), (3, 4), (4,)),
    "whole numbers": (lambda x, w: torch.einsum("bi,i->bi", (3 * x).long(), w), (4,), (4,)),
    "truth values": (lambda x, w: torch.einsum("bi,io->bio", x > 0, w), (4,), (4, 3)),
    "a matrix of complex numbers": (
        lambda x, w: torch.view_as_real(torch.complex(x, x.cos()) @ torch.view_as_complex(w)),
        (3, 4), (4, 5, 2),
    ),
    "a spectral convolution": (
        lambda x, w: torch.fft.irfft2(
            torch.einsum("bixy,ioxy->boxy", torch.fft.rfft2(x), torch.view_as_complex(w))
        ),
        (2, 4, 4), (2, 3, 4, 3, 2),
    ),
}  # fmt: skip


@pytest.mark.parametrize("views", [1, 2])
@pytest.mark.parametrize("name", OTHERS)
def test_other_equations_have_right_gradients_too(name: str, views: int) -> None:
    torch.manual_seed(0)
    compare(Multiplying(*OTHERS[name]), 3, views, torch.float64)


@pytest.mark.parametrize("groups", [1, 3])
def test_views_may_follow_a_product_of_matrices(groups: int) -> None:
    for own, weight in (((groups, 4, 3), (groups, 5, 4)), ((4, 3), (5, 4))):
        compare(
            Multiplying(lambda x, w: (w @ x).view(len(x), -1), own, weight), 4, 1, torch.float64
        )


@pytest.mark.parametrize("views", [1, 2])
@pytest.mark.parametrize("value", [0.0, 0.3])
def test_a_weight_of_zeros_does_not_hide_the_order_of_rows(views: int, value: float) -> None:
    """As of an adapter or a last layer at its start, on tokens before the rows of the batch."""

    def multiply(x: Tensor, w: Tensor) -> Tensor:
        tokens = x.transpose(0, 1).reshape(-1, 3)
        y = F.linear(tokens, w[:3]) * w[3] + w[4]
        y = torch.einsum("ni,io->no", tokens + y, w[5:])
        return y.view(4, len(x), 3).transpose(0, 1) + x

    model = Multiplying(multiply, (4, 3), (8, 3))
    with torch.no_grad():
        model.weight[:5] = value
    compare(model, 3, views, torch.float64)


def test_a_shift_of_all_outputs_together_is_no_bias_of_a_linear_layer() -> None:
    class Shifted(nn.Linear):
        def forward(self, x: Tensor) -> Tensor:
            return F.linear(x, self.weight, self.bias[0])

    model, x = Shifted(4, 3), torch.randn(3, 4)
    with pytest.raises(NotPerOperator):
        Operators(Objective(model)).gradients(x, torch.arange(3))


@pytest.mark.parametrize(
    "multiply", [F.linear, lambda x, w: torch.einsum("bi,oi->bo", x, w)], ids=["linear", "einsum"]
)
def test_a_product_that_is_differentiated_twice_is_left_to_other_engines(
    multiply: Multiply,
) -> None:
    def force(x: Tensor, w: Tensor) -> Tensor:
        with torch.enable_grad():
            x = x.detach().requires_grad_()
            energy = multiply(x, w).tanh().square().sum()
            return torch.autograd.grad(energy, x, create_graph=True)[0]

    model, x, y = Multiplying(force, (4,), (5, 4)), torch.randn(3, 4), torch.arange(3)
    with pytest.raises(NotPerOperator, match="twice"):
        Operators(Objective(model)).gradients(x, y)
    assert max(errors(PerExample(model)(x, y), one_at_a_time(model, x, y)).values()) < 1e-4
