"""Random small programs, with parameters owned anywhere, against one example at a time.

A program works on tokens `(rows, tokens, channels)`. Each step meets the batch with a parameter in
another operator, in another place of the rows: first, second, merged with the tokens in either
order.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from sfumato.privacy.clipping import Flat
from sfumato.privacy.engines.compiled import Compiled
from sfumato.privacy.engines.objective import Objective
from sfumato.privacy.engines.one_at_a_time import one_at_a_time
from sfumato.privacy.engines.operators import Operators
from sfumato.privacy.engines.storage_plan import Storage
from thinning import one_in
from uncompiled import run_without_code

TOKENS, CHANNELS = 4, 4
SIDE = 2
Step = Callable[["Program", str, Tensor], Tensor]


class Program(nn.Module):
    """Steps in order; parameters belong to the program, to a list, or to a module elsewhere."""

    def __init__(self, steps: list[str], seed: int) -> None:
        super().__init__()
        torch.manual_seed(seed)
        self.steps = steps
        self.elsewhere = nn.Module()
        self.listed = nn.ParameterList()
        self._where: dict[str, tuple[str, str | int]] = {}
        for k, step in enumerate(steps):
            for name, shape in PARAMETERS[step].items():
                self._own(f"{name}{k}", torch.randn(shape) * 0.4)
        self.head = nn.Linear(CHANNELS, 3)
        self.double()

    def _own(self, name: str, value: Tensor) -> None:
        parameter, turn = nn.Parameter(value), len(self._where) % 3
        if turn == 0:
            self.register_parameter(name, parameter)
        elif turn == 1:
            self.elsewhere.register_parameter(name, parameter)
        else:
            self._where[name] = "listed", len(self.listed)
            self.listed.append(parameter)
            return
        self._where[name] = ("", "elsewhere")[turn], name

    def own(self, name: str) -> Tensor:
        """A parameter, wherever it is kept."""
        where, key = self._where[name]
        if where == "listed":
            return self.listed[key]  # type: ignore[index]
        return getattr(self.elsewhere if where else self, key)  # type: ignore[arg-type]

    def forward(self, x: Tensor) -> Tensor:
        for k, step in enumerate(self.steps):
            x = torch.tanh(STEPS[step](self, str(k), x))
        return self.head(x.mean(1))


C, T = CHANNELS, TOKENS


def _image(x: Tensor) -> Tensor:
    return x.transpose(1, 2).reshape(x.shape[0], C, SIDE, SIDE)


def _tokens(x: Tensor) -> Tensor:
    return x.flatten(2).transpose(1, 2)


def _with_token(m: Program, k: str, x: Tensor) -> Tensor:
    token = m.own("t" + k).expand(x.shape[0], -1, -1)
    return torch.cat([token, x], 1)[:, :-1] * 0.5 + x


def _attention(m: Program, k: str, x: Tensor) -> Tensor:
    q, key, v = F.linear(x, m.own("w" + k)).view(len(x), T, 3, 2, C // 2).permute(2, 0, 3, 1, 4)
    return (
        F.scaled_dot_product_attention(q, key, v, attn_mask=m.own("b" + k))
        .flatten(2)[:, :, : T * C // 2]
        .reshape(len(x), T, C)
    )


STEPS: dict[str, Step] = {
    "linear": lambda m, k, x: F.linear(x, m.own("w" + k), m.own("b" + k)),
    "product": lambda m, k, x: x @ m.own("w" + k),
    "vector": lambda m, k, x: x * (x @ m.own("v" + k)).unsqueeze(-1),
    "left product": lambda m, k, x: m.own("t" + k) @ x,
    "einsum": lambda m, k, x: torch.einsum("btc,cd->btd", x, m.own("w" + k)),
    "addmm": lambda m, k, x: torch.addmm(
        m.own("b" + k), x.reshape(-1, C), m.own("w" + k)
    ).view_as(x),
    "rows second": lambda m, k, x: F.linear(x.transpose(0, 1), m.own("w" + k)).transpose(0, 1),
    "merged": lambda m, k, x: F.linear(x.reshape(-1, C), m.own("w" + k)).view_as(x),
    "interleaved": lambda m, k, x: F.linear(x.transpose(0, 1).reshape(-1, C), m.own("w" + k))
    .view(T, -1, C)
    .transpose(0, 1),
    "interleaved gain": lambda m, k, x: (x.transpose(0, 1).reshape(-1, C) * m.own("v" + k))
    .view(T, -1, C)
    .transpose(0, 1),
    "add": lambda m, k, x: x + m.own("p" + k),
    "add in place": lambda m, k, x: (x * 1).add_(m.own("v" + k)),
    "subtract from": lambda m, k, x: m.own("v" + k) - x,
    "multiply": lambda m, k, x: m.own("v" + k) * x,
    "divide": lambda m, k, x: x / (2 + m.own("v" + k).square()),
    "where": lambda m, k, x: torch.where(x > 0, x, m.own("v" + k) * 0.3),
    "token": _with_token,
    "repeat": lambda m, k, x: x + m.own("t" + k).repeat(x.shape[0], T, 1),
    "zeros": lambda m, k, x: x + (torch.zeros(len(x), 1, C, dtype=x.dtype) + m.own("v" + k)),
    "layer norm": lambda m, k, x: F.layer_norm(x, (C,), m.own("v" + k), m.own("b" + k)),
    "rms norm": lambda m, k, x: F.rms_norm(x, (C,), m.own("v" + k)),
    "group norm": lambda m, k, x: _tokens(
        F.group_norm(_image(x), 2, m.own("v" + k), m.own("b" + k))
    ),
    "convolution": lambda m, k, x: _tokens(F.conv2d(_image(x), m.own("f" + k), padding=1)),
    "depthwise": lambda m, k, x: _tokens(
        F.conv2d(_image(x), m.own("d" + k), padding="same", groups=C)
    ),
    "convolution 1d": lambda m, k, x: F.conv1d(
        x.transpose(1, 2), m.own("l" + k), padding="same"
    ).transpose(1, 2),
    "prelu": lambda m, k, x: _tokens(F.prelu(_image(x), m.own("v" + k))),
    "attention bias": _attention,
    "table": lambda m, k, x: x + m.own("p" + k).flatten(0, 1)[torch.tensor([0, 0, 2, 3])],
    "twice": lambda m, k, x: F.linear(F.linear(x, m.own("w" + k)), m.own("w" + k)),
    "scaled weight": lambda m, k, x: F.linear(x, m.own("w" + k) * m.own("v" + k).exp()),
    "parts": lambda m, k, x: torch.cat(
        [F.linear(x, part) for part in m.own("w" + k).chunk(2, 0)], -1
    ),
}  # fmt: skip

_V, _W, _P = {"v": (C,)}, {"w": (C, C)}, {"p": (1, T, C)}
PARAMETERS: dict[str, dict[str, tuple[int, ...]]] = {
    "linear": _W | {"b": (C,)}, "product": _W, "vector": _V, "left product": {"t": (T, T)},
    "einsum": _W, "addmm": _W | {"b": (C,)}, "rows second": _W, "merged": _W, "interleaved": _W,
    "interleaved gain": _V, "add": _P, "add in place": _V, "subtract from": _V, "multiply": _V,
    "divide": _V, "where": _V, "token": {"t": (1, 1, C)}, "repeat": {"t": (1, 1, C)}, "zeros": _V,
    "layer norm": _V | {"b": (C,)}, "rms norm": _V, "group norm": _V | {"b": (C,)},
    "convolution": {"f": (C, C, 3, 3)}, "depthwise": {"d": (C, 1, 3, 3)},
    "convolution 1d": {"l": (C, C, 3)}, "prelu": _V,
    "attention bias": {"w": (3 * C, C), "b": (2, T, T)}, "table": _P, "twice": _W,
    "scaled weight": _W | _V, "parts": _W,
}  # fmt: skip


def _compare(steps: list[str], examples: int, views: int, seed: int, book_keeping: bool) -> None:
    model = Program(steps, seed)
    x = torch.randn(examples * views, T, C, dtype=torch.float64)
    y = torch.arange(examples) % 3
    engine = Operators(Objective(model, views=views), book_keeping=book_keeping)
    ours, reference = engine.gradients(x, y), one_at_a_time(model, x, y, views=views)
    assert not engine.program(x).opaque
    for name, a, b in zip(ours.names, ours.tensors, reference.tensors, strict=True):
        if b is None or a is None:
            assert a is None or not bool(a.any()), name
            continue
        torch.testing.assert_close(a, b, rtol=1e-9, atol=1e-12, msg=f"{name} of {steps}")
    weights = Flat(0.01).weights(ours.squared_norms())
    for example in range(examples):
        alone = torch.zeros_like(weights)
        alone[example] = weights[example]
        added = sum(float(part.square().sum()) for part in ours.weighted_sum(alone))
        assert added**0.5 <= 0.01 * (1 + 1e-6)


@settings(max_examples=40, deadline=None, derandomize=True)
@given(
    st.lists(st.sampled_from(sorted(STEPS)), min_size=1, max_size=4),
    st.sampled_from([(1, 1), (2, 1), (3, 1), (2, 2), (1, 3)]),
    st.integers(0, 2**16),
    st.booleans(),
)
def test_gradients_of_random_programs_are_those_of_one_example_at_a_time(
    steps: list[str], size: tuple[int, int], seed: int, book_keeping: bool
) -> None:
    _compare(steps, *size, seed, book_keeping)


def _compare_compiled(
    steps: list[str], examples: int, views: int, seed: int, storage: Storage | None
) -> None:
    """The same for the compiled pass, traced whole but run without code generation."""
    model = Program(steps, seed)
    x = torch.randn(examples * views, T, C, dtype=torch.float64)
    y = torch.arange(examples) % 3
    with pytest.MonkeyPatch.context() as patch:
        run_without_code(patch)
        ours = Compiled(
            Objective(model, views=views), x, examples, torch.float64, storage=storage
        ).gradients(x, y)
        reference = one_at_a_time(model, x, y, views=views)
        said = ours.squared_norms()
        wanted = reference.squared_norms()
        assert bool((said >= wanted).all()), steps
        torch.testing.assert_close(said, wanted, rtol=1e-3, atol=1e-12, msg=str(steps))
        weights = torch.arange(examples * len(ours.names)).view(examples, -1).double() / 4
        sums = zip(ours.weighted_sum(weights), reference.weighted_sum(weights), strict=True)
        for name, (a, b) in zip(ours.names, sums, strict=True):
            atol = 1e-6 * float(b.abs().max()) + 1e-12
            torch.testing.assert_close(a.double(), b, rtol=0, atol=atol, msg=f"{name} of {steps}")


STORED: tuple[Storage | None, ...] = (None, "norm-only", "ghost", "materialise")


@pytest.mark.parametrize(
    "case", one_in(11, [(step, k) for step in sorted(STEPS) for k in range(4)])
)
def test_every_step_can_be_compiled(case: tuple[str, int]) -> None:
    step, k = case
    _compare_compiled([step], 2 + k % 2, 1 + k // 2, 7, STORED[k])


def test_a_program_of_several_steps_can_be_compiled() -> None:
    _compare_compiled(["scaled weight", "interleaved gain", "token"], 2, 2, 7, None)


@pytest.mark.slow
@settings(max_examples=12, deadline=None, derandomize=True)
@given(
    st.lists(st.sampled_from(sorted(STEPS)), min_size=2, max_size=4),
    st.sampled_from([(1, 1), (3, 1), (2, 2)]),
    st.integers(0, 2**16),
    st.sampled_from(STORED),
)
def test_random_programs_can_be_compiled(
    steps: list[str], size: tuple[int, int], seed: int, storage: Storage | None
) -> None:
    _compare_compiled(steps, *size, seed, storage)


def test_every_step_has_a_rule() -> None:
    for step in STEPS:
        for examples, views in ((3, 1), (2, 2)):
            _compare([step], examples, views, 7, True)
