"""Recurrent layers and cells run by operators, with the gradients of one example at a time."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.utils import parametrizations
from torch.nn.utils.rnn import pad_packed_sequence
from torch.utils.checkpoint import checkpoint

from sfumato.privacy import PerExample
from sfumato.privacy.checks.agreement import errors
from sfumato.privacy.engines.compiled import Compiled, Fused, NotCompiled
from sfumato.privacy.engines.keyed_draws import RowSeeds
from sfumato.privacy.engines.leaves import NotPerOperator
from sfumato.privacy.engines.objective import Objective
from sfumato.privacy.engines.one_at_a_time import one_at_a_time
from sfumato.privacy.engines.operators import Operators
from thinning import with_slow
from uncompiled import run_without_code

INPUT, WIDTH, STEPS, CLASSES = 3, 4, 5, 3

Run = Callable[[Any, Tensor], Tensor]


class Reading(nn.Module):
    """A classifier of sequences `(rows, steps, 3)`, by named parts and a function of them."""

    def __init__(self, run: Run, **parts: nn.Module | nn.Parameter) -> None:
        super().__init__()
        for name, part in parts.items():
            setattr(self, name, part)
        self.run = run
        self.head = nn.LazyLinear(CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.head(self.run(self, x).flatten(1))
        return out


def everything(m: Any, x: Tensor) -> Tensor:
    """Outputs and final states, rows first."""
    first = m.rnn.batch_first
    out, states = m.rnn(x if first else x.transpose(0, 1))
    states = states if isinstance(states, tuple) else (states,)
    parts = [out if first else out.transpose(0, 1), *(t.transpose(0, 1) for t in states)]
    return torch.cat([part.flatten(1) for part in parts], 1)


def layer(kind: type[nn.RNNBase], run: Run = everything, **options: Any) -> nn.Module:
    return Reading(run, rnn=kind(INPUT, WIDTH, **options))


def learned_states(m: Any, x: Tensor) -> Tensor:
    return m.rnn(x, (m.h.expand(-1, len(x), -1), m.c.repeat(1, len(x), 1)))[0]


def states_of_the_batch(m: Any, x: Tensor) -> Tensor:
    h = x[:, 0].tanh().repeat(2, 1, 2)[:, :, :WIDTH].contiguous()
    return m.rnn(x[:, 1:], h)[0]


def only_the_state_of_the_cell(m: Any, x: Tensor) -> Tensor:
    return m.rnn(x)[1][1].transpose(0, 1)


def only_the_last(m: Any, x: Tensor) -> Tensor:
    return m.rnn(x)[0][:, -1]


def only_the_hidden_state(m: Any, x: Tensor) -> Tensor:
    return m.rnn(x)[1][0].transpose(0, 1)


def twice(m: Any, x: Tensor) -> Tensor:
    out, states = m.rnn(x)
    return m.rnn(x.flip(1), states)[0] + out


def one_above_the_other(m: Any, x: Tensor) -> Tensor:
    return m.above(m.rnn(m.embed(x).tanh())[0].tanh())[0]


def merged(m: Any, x: Tensor) -> Tensor:
    """Each step as a sequence of its own, merged with the rows."""
    pieces = x.flatten(0, 1).unsqueeze(2)
    return m.rnn(pieces)[0][:, -1].view(len(x), -1)


def interleaved(m: Any, x: Tensor) -> Tensor:
    """The same, where the rows vary fastest."""
    pieces = x.transpose(0, 1).flatten(0, 1).unsqueeze(2)
    return m.rnn(pieces)[0][:, -1].view(x.shape[1], len(x), -1).transpose(0, 1)


def by_cell(m: Any, x: Tensor) -> Tensor:
    state = None
    found = []
    for step in x.unbind(1):
        state = m.cell(step, state)
        found.append(state[0] + state[1] if isinstance(state, tuple) else state)
    return torch.stack(found, 1)


def by_cell_interleaved(m: Any, x: Tensor) -> Tensor:
    """A step of every sequence, where the rows vary fastest."""
    h = m.cell(x.transpose(0, 1).flatten(0, 1))[0]
    return h.view(x.shape[1], len(x), -1).transpose(0, 1)


def by_function(m: Any, x: Tensor) -> Tensor:
    h = x.new_zeros(1, len(x), WIDTH)
    return torch.gru(x, h, [m.w, m.u], False, 1, 0.0, m.training, False, True)[0]


def tied() -> nn.Module:
    model = Reading(everything, rnn=nn.LSTM(WIDTH, WIDTH, 2), embed=nn.Linear(INPUT, WIDTH))
    model.rnn.weight_hh_l1 = model.rnn.weight_ih_l1 = model.rnn.weight_hh_l0  # type: ignore[union-attr]
    model.run = lambda m, x: everything(m, m.embed(x))
    return model


def frozen(*names: str) -> nn.Module:
    model = layer(nn.LSTM, num_layers=2, bidirectional=True)
    for name, parameter in model.named_parameters():
        if any(part in name for part in names):
            parameter.requires_grad_(False)
    return model


def below_frozen() -> nn.Module:
    model = Reading(
        lambda m, x: m.rnn(m.embed(x))[0],
        rnn=nn.GRU(WIDTH, WIDTH, batch_first=True),
        embed=nn.Linear(INPUT, WIDTH),
    )
    model.rnn.requires_grad_(False)  # type: ignore[operator]
    return model


def parametrised() -> nn.Module:
    model = layer(nn.GRU, batch_first=True)
    parametrizations.weight_norm(model.rnn, "weight_hh_l0")
    parametrizations.orthogonal(model.rnn, "weight_ih_l0")
    return model


def checkpointed(m: Any, x: Tensor) -> Tensor:
    return checkpoint(m.rnn, x, use_reentrant=False)[0] * 2


def changed_in_place(m: Any, x: Tensor) -> Tensor:
    return m.rnn(x)[0].tanh_().view(STEPS, -1, WIDTH).transpose(0, 1)


MODELS: dict[str, Callable[[], nn.Module]] = {
    **{
        f"{kind.__name__} {', '.join(options) or 'alone'}": (
            lambda kind=kind, options=options: layer(kind, **options)
        )
        for kind in (nn.LSTM, nn.GRU, nn.RNN)
        for options in (
            {},
            {"batch_first": True},
            {"bias": False},
            {"num_layers": 3},
            {"bidirectional": True, "bias": False},
            {"num_layers": 2, "bidirectional": True, "batch_first": True},
        )
    },
    "RNN, rectified": lambda: layer(nn.RNN, nonlinearity="relu", num_layers=2),
    "projected": lambda: layer(nn.LSTM, proj_size=2, num_layers=2, bidirectional=True),
    "projected without biases": lambda: layer(nn.LSTM, proj_size=3, bias=False),
    "state of the cell alone": lambda: layer(nn.LSTM, only_the_state_of_the_cell, batch_first=True),
    "hidden state alone": lambda: layer(
        nn.LSTM, only_the_hidden_state, num_layers=2, batch_first=True
    ),
    "learned states": lambda: Reading(
        learned_states,
        rnn=nn.LSTM(INPUT, WIDTH, 2, batch_first=True),
        h=nn.Parameter(torch.randn(2, 1, WIDTH)),
        c=nn.Parameter(torch.randn(2, 1, WIDTH)),
    ),
    "states of the batch": lambda: layer(
        nn.RNN, states_of_the_batch, bidirectional=True, batch_first=True
    ),
    "called twice": lambda: layer(nn.GRU, twice, batch_first=True, num_layers=2),
    "one above the other": lambda: Reading(
        one_above_the_other,
        embed=nn.Linear(INPUT, WIDTH),
        rnn=nn.GRU(WIDTH, WIDTH, bidirectional=True, batch_first=True),
        above=nn.LSTM(2 * WIDTH, WIDTH, batch_first=True),
    ),
    "merged with the rows": lambda: Reading(merged, rnn=nn.LSTM(1, WIDTH, batch_first=True)),
    "interleaved with the rows": lambda: Reading(
        interleaved, rnn=nn.GRU(1, WIDTH, bidirectional=True, batch_first=True)
    ),
    "within a checkpoint": lambda: layer(nn.LSTM, checkpointed, batch_first=True),
    "changed in place": lambda: Reading(
        lambda m, x: changed_in_place(m, x.transpose(0, 1)), rnn=nn.GRU(INPUT, WIDTH)
    ),
    "tied": tied,
    "frozen hidden weights": lambda: frozen("weight_hh"),
    "frozen biases": lambda: frozen("bias_"),
    "frozen input weights": lambda: frozen("weight_ih", "bias_hh"),
    "below a frozen layer": below_frozen,
    "parametrised": parametrised,
    "by the function": lambda: Reading(
        by_function,
        w=nn.Parameter(torch.randn(3 * WIDTH, INPUT)),
        u=nn.Parameter(torch.randn(3 * WIDTH, WIDTH)),
    ),
    **{
        f"{kind.__name__}{' without biases' * (not bias)}": (
            lambda kind=kind, bias=bias: Reading(by_cell, cell=kind(INPUT, WIDTH, bias=bias))
        )
        for kind in (nn.LSTMCell, nn.GRUCell, nn.RNNCell)
        for bias in (True, False)
    },
    "LSTMCell, interleaved with the rows": lambda: Reading(
        by_cell_interleaved, cell=nn.LSTMCell(INPUT, WIDTH)
    ),
    "RNNCell, rectified": lambda: Reading(
        by_cell, cell=nn.RNNCell(INPUT, WIDTH, nonlinearity="relu")
    ),
}


def built(name: str, dtype: torch.dtype = torch.float64) -> nn.Module:
    torch.manual_seed(0)
    model = MODELS[name]()
    model(torch.randn(2, STEPS, INPUT))
    return model.to(dtype)


def batch(
    views: int = 1, examples: int = 4, dtype: torch.dtype = torch.float64
) -> tuple[Tensor, Tensor]:
    torch.manual_seed(1)
    return torch.randn(examples * views, STEPS, INPUT, dtype=dtype), torch.arange(examples) % 3


@pytest.mark.parametrize("views", [1, 2])
@pytest.mark.parametrize("name", MODELS)
def test_gradients_are_those_of_one_example_at_a_time(name: str, views: int) -> None:
    model = built(name)
    x, y = batch(views)
    found = Operators(Objective(model, views=views)).gradients(x, y)
    reference = one_at_a_time(model, x, y, views=views)
    assert max(errors(found, reference).values()) < 1e-10
    torch.testing.assert_close(found.outputs, reference.outputs, rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("name", MODELS)
def test_recurrent_layers_pass_the_checks_and_run_by_operators(name: str) -> None:
    model = built(name, torch.float32)
    x, y = batch(dtype=torch.float32)
    engine = PerExample(model)
    found = engine(x, y)
    assert max(errors(found, one_at_a_time(model, x, y)).values()) < 2e-5
    assert engine.method == "operators" and not engine.passed_over
    assert "torch.func" not in {path.path for path in engine.paths()}


COMPILED = [
    "LSTM num_layers, bidirectional, batch_first", "GRU alone", "RNN, rectified", "projected",
    "learned states", "interleaved with the rows", "tied", "frozen hidden weights", "parametrised",
    "LSTMCell",
]  # fmt: skip
RARE = COMPILED[2:6] + COMPILED[8:9]


@pytest.mark.parametrize("name", with_slow(COMPILED, *RARE))
def test_the_compiled_pass_has_the_same_norms_and_sums(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    run_without_code(monkeypatch)
    model = built(name)
    x, y = batch(views=2)
    objective = Objective(model, views=2)
    ours = Compiled(objective, x, len(y), torch.float64).gradients(x, y)
    wanted = Operators(objective).gradients(x, y)
    norms = wanted.squared_norms()
    assert bool((ours.squared_norms() >= norms * (1 + 1e-4) - 1e-9).all())
    torch.testing.assert_close(ours.squared_norms(), norms, rtol=1e-3, atol=1e-7)
    weights = torch.rand(len(y), len(ours.names)).double()
    for a, b in zip(ours.weighted_sum(weights), wanted.weighted_sum(weights), strict=True):
        torch.testing.assert_close(a.double(), b, rtol=1e-4, atol=1e-6)


def test_a_recurrent_model_may_be_compiled(monkeypatch: pytest.MonkeyPatch) -> None:
    run_without_code(monkeypatch)
    model = built("LSTM num_layers, bidirectional, batch_first", torch.float32)
    engine = PerExample(model, precision=torch.float32)
    for _ in range(2):
        found = engine(*batch(dtype=torch.float32))
    assert isinstance(found, Fused), engine.passed_over


def test_a_layer_with_many_steps_is_not_compiled(monkeypatch: pytest.MonkeyPatch) -> None:
    run_without_code(monkeypatch)
    model = layer(nn.RNN, only_the_last, num_layers=2, bidirectional=True, batch_first=True)
    x, y = torch.randn(2, 33, INPUT), torch.tensor([0, 1])
    model(x)
    Compiled(Objective(model), x[:, :5], 2, torch.float32).gradients(x[:, :5], y)
    with pytest.raises(NotCompiled, match="132 time steps"):
        Compiled(Objective(model), x, 2, torch.float32).gradients(x, y)


@pytest.mark.parametrize("narrow", [True, False])
@pytest.mark.parametrize("first", [True, False])
@pytest.mark.parametrize(
    "options", [{}, {"num_layers": 2, "bidirectional": True}, {"proj_size": 2}]
)
def test_results_have_the_format_and_the_type_of_the_module(
    first: bool, options: dict[str, Any], narrow: bool
) -> None:
    seen: list[tuple[Any, ...]] = []

    def looking(m: Any, x: Tensor) -> Tensor:
        out, (h, c) = m.rnn(x if first else x.transpose(0, 1))
        seen.append(tuple((t.shape, t.stride(), t.dtype) for t in (out, h, c)))
        return out if first else out.transpose(0, 1)

    torch.manual_seed(0)
    model = layer(nn.LSTM, looking, batch_first=first, **options)
    x, y = batch(dtype=torch.float32)
    # PyTorch's layer with projections alone leaves the state of the cell in float32.
    with torch.autocast("cpu", torch.bfloat16, enabled=narrow and "proj_size" not in options):
        model(x)
        Operators(Objective(model)).gradients(x, y)
    assert seen[0] == seen[-1] and len(seen) == 2


def dropping(*, freeze: bool = False, **options: Any) -> nn.Module:
    torch.manual_seed(0)
    model = layer(nn.LSTM, num_layers=3, dropout=0.4, **options).double().train()
    model(batch()[0])
    if freeze:
        model.rnn.requires_grad_(False)  # type: ignore[operator]
    return model


@pytest.mark.parametrize("freeze", [True, False])
@pytest.mark.parametrize("options", [{"batch_first": True}, {"bidirectional": True}])
def test_dropout_between_layers_belongs_to_the_rows(freeze: bool, options: dict[str, bool]) -> None:
    engine = Operators(Objective(dropping(freeze=freeze, **options), views=2))
    x, y = batch(views=2)

    def keys(rows: int, first: int = 0, seed: int = 7) -> Tensor:
        return RowSeeds(seed, first=first).keys(rows, 2, torch.device("cpu"))

    whole = engine.gradients(x, y, keys(8))
    parts = [
        engine.gradients(x[:2], y[:1], keys(2)),
        engine.gradients(x[2:], y[1:], keys(6, first=1)),
    ]
    torch.testing.assert_close(whole.losses, torch.cat([part.losses for part in parts]))
    norms = torch.cat([part.squared_norms() for part in parts])
    torch.testing.assert_close(whole.squared_norms(), norms)
    assert not torch.allclose(whole.losses, engine.gradients(x, y, keys(8, seed=9)).losses)


@pytest.mark.parametrize("freeze", with_slow([True, False], True))
def test_the_compiled_pass_drops_the_same(freeze: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    run_without_code(monkeypatch)
    objective = Objective(dropping(freeze=freeze), views=2)
    x, y = batch(views=2)
    keys = RowSeeds(3).keys(8, 2, torch.device("cpu"))
    ours = Compiled(objective, x, 4, torch.float64, random=True).gradients(x, y, keys)
    wanted = Operators(objective).gradients(x, y, keys)
    torch.testing.assert_close(ours.losses, wanted.losses)
    torch.testing.assert_close(ours.squared_norms(), wanted.squared_norms(), rtol=1e-3, atol=1e-9)


def test_dropout_is_that_of_pytorch() -> None:
    """Of the entries between two layers a share p is zero, and the others are divided by 1 - p."""
    torch.manual_seed(0)
    options: dict[str, Any] = {"nonlinearity": "relu", "dropout": 0.4, "bias": False}
    rnn = nn.RNN(1, 50, 2, batch_first=True, **options)
    with torch.no_grad():
        rnn.weight_ih_l0.fill_(1)
        rnn.weight_ih_l1.copy_(torch.eye(50))
        rnn.weight_hh_l0.zero_()
        rnn.weight_hh_l1.zero_()
    seen: list[Tensor] = []

    def looking(m: Any, x: Tensor) -> Tensor:
        seen.append(m.rnn(x)[0])
        return seen[-1]

    model = Reading(looking, rnn=rnn)
    x = torch.ones(8, STEPS, 1)
    model(x)
    keys = RowSeeds(3).keys(8, 1, torch.device("cpu"))
    Operators(Objective(model)).gradients(x, torch.zeros(8, dtype=torch.long), keys)
    kept = seen[-1].detach()
    assert torch.allclose(kept[kept > 0], torch.tensor(1 / 0.6))
    assert abs(float((kept == 0).float().mean()) - 0.4) < 0.05


def test_dropout_passes_the_checks() -> None:
    model = dropping(batch_first=True)
    engine = PerExample(model)
    engine.seeds = RowSeeds(3)
    x, y = batch()
    first, second = engine(x, y), engine(x, y)
    assert engine.method == "operators" and not engine.passed_over
    assert torch.equal(first.losses, second.losses)


def test_packed_sequences_are_left_to_the_loop() -> None:
    torch.manual_seed(0)
    model = Reading(
        lambda m, x: pad_packed_sequence(m.rnn(m.packed(x))[0])[0].transpose(0, 1),
        rnn=nn.GRU(INPUT, WIDTH),
    )
    model.packed = lambda x: nn.utils.rnn.pack_padded_sequence(  # type: ignore[assignment]
        x.transpose(0, 1), [STEPS] * len(x)
    )
    x, y = batch(dtype=torch.float32)
    model(x)
    with pytest.raises(NotPerOperator, match="packed"):
        Operators(Objective(model)).gradients(x, y)
    engine = PerExample(model)
    with pytest.warns(UserWarning, match="one at a time"):
        found = engine(x, y)
    assert max(errors(found, one_at_a_time(model, x, y)).values()) < 2e-5


@pytest.mark.parametrize("name", ["LSTM num_layers", "GRU alone", "RNN alone", "LSTMCell"])
def test_gradients_in_bfloat16_under_autocast_are_close(name: str) -> None:
    model = built(name, torch.float32)
    x, y = batch(dtype=torch.float32)
    engine = Operators(Objective(model))
    with torch.autocast("cpu", torch.bfloat16):
        ours, plain = engine.gradients(x, y), model(x)
    assert ours.outputs is not None and ours.outputs.dtype == plain.dtype == torch.bfloat16
    assert max(errors(ours, one_at_a_time(model, x, y)).values()) < 0.1
