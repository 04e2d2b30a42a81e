"""Operators in which a parameter meets the batch, one by one, by their rules."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from sfumato.privacy import PerExample
from sfumato.privacy.checks.agreement import errors
from sfumato.privacy.engines.compiled import Compiled
from sfumato.privacy.engines.objective import Objective
from sfumato.privacy.engines.one_at_a_time import one_at_a_time
from sfumato.privacy.engines.operators import Operators
from uncompiled import run_without_code

WIDTH, TOKENS = 6, 5

Meet = Callable[[Tensor, Tensor], Tensor]


def first_token(z: Tensor, w: Tensor) -> Tensor:
    z = z.clone()
    z[:, 0] = w
    return z


def last_numbers(z: Tensor, w: Tensor) -> Tensor:
    out = z.new_zeros(len(z), TOKENS, WIDTH + 2)
    out[..., :WIDTH], out[..., WIDTH:] = z, w
    return out


class Meeting(nn.Module):
    """Tokens `(n, 5, 6)` of an image, in which a parameter meets them by one operator."""

    def __init__(self, meet: Meet, *shape: int) -> None:
        super().__init__()
        self.embed = nn.Conv2d(1, WIDTH, 1)
        self.weight = nn.Parameter(torch.randn(shape))
        self.meet = meet
        self.head = nn.LazyLinear(3)

    def forward(self, x: Tensor) -> Tensor:
        tokens = self.embed(x).flatten(2).transpose(1, 2)
        out: Tensor = self.head(self.meet(tokens, self.weight).tanh().flatten(1))
        return out


def bilinear_first(z: Tensor, w: Tensor) -> Tensor:
    z = z.transpose(0, 1)
    return F.bilinear(z, z[..., :2].tanh(), w).transpose(0, 1)


def bilinear_frozen(z: Tensor, w: Tensor) -> Tensor:
    return F.bilinear(z, z[..., :2].tanh(), w.detach(), w[:, 0, 0])


def index(z: Tensor) -> Tensor:
    return z.mean((1, 2)).gt(0).long()


MEETINGS: dict[str, tuple[Meet, tuple[int, ...]]] = {
    "max": (lambda z, w: torch.max(z, w), (WIDTH,)),
    "min of a column": (lambda z, w: z.min(w), (TOKENS, 1)),
    "fmax": (lambda z, w: torch.fmax(z, w), (WIDTH,)),
    "atan2": (lambda z, w: torch.atan2(z, w), (WIDTH,)),
    "hypot": (lambda z, w: torch.hypot(z, w), (TOKENS, WIDTH)),
    "logaddexp": (lambda z, w: torch.logaddexp(z, w), (WIDTH,)),
    "remainder": (lambda z, w: torch.remainder(z, w.exp()), (WIDTH,)),
    "addcdiv": (lambda z, w: torch.addcdiv(z, w, z.square() + 1), (WIDTH,)),
    "a threshold": (lambda z, w: (z > w).float() * z + w, (WIDTH,)),
    "a threshold without a gradient": (lambda z, w: z * (z > w.detach()) * w, (WIDTH,)),
    "masked_fill": (lambda z, w: z.masked_fill(z < 0, w), ()),
    "masked_fill of a token": (lambda z, w: w.masked_fill(z < 0, 0.5), (WIDTH,)),
    "repeat_interleave": (
        lambda z, w: torch.cat([w.repeat_interleave(len(z), 0), z], 1), (1, 2, WIDTH)
    ),
    "repeat_interleave by name": (
        lambda z, w: torch.cat([torch.repeat_interleave(w, len(z), dim=0), z], 1), (1, 2, WIDTH)
    ),
    "einsum with dots": (lambda z, w: torch.einsum("...d,de->...e", z, w), (WIDTH, 4)),
    "einsum with dots in the weight": (
        lambda z, w: torch.einsum("b...d,...d->b...d", z, w), (TOKENS, WIDTH)
    ),
    "a product of spectra": (
        lambda z, w: torch.fft.irfft(torch.fft.rfft(z) * torch.fft.rfft(w), n=WIDTH), (WIDTH,)
    ),
    "tensordot": (lambda z, w: torch.tensordot(z, w, 1), (WIDTH, 4)),
    "tensordot by dimensions": (lambda z, w: torch.tensordot(z, w, ([-1], [0])), (WIDTH, 4)),
    "inner": (lambda z, w: torch.inner(z, w), (4, WIDTH)),
    "mv": (lambda z, w: torch.mv(z.flatten(1), w)[:, None], (TOKENS * WIDTH,)),
    "baddbmm": (
        lambda z, w: torch.baddbmm(w, z, z.new_ones(len(z), WIDTH, WIDTH)), (1, 1, WIDTH)
    ),
    "cosine_similarity": (
        lambda z, w: F.cosine_similarity(z[:, :, None], w, dim=-1), (4, WIDTH)
    ),
    "cosine_similarity, sequence first": (
        lambda z, w: F.cosine_similarity(z.permute(2, 1, 0), w, dim=0).t(), (WIDTH, TOKENS, 1)
    ),
    "cosine_similarity by position": (
        lambda z, w: F.cosine_similarity(w, z[:, :, None], -1, 1e-6),
        (4, WIDTH),
    ),
    "pairwise_distance": (lambda z, w: F.pairwise_distance(z[:, :, None], w), (4, WIDTH)),
    "bilinear": (
        lambda z, w: F.bilinear(z[:, 0], z[:, 1, :2], w, z.new_ones(3)), (3, WIDTH, 2)
    ),
    "bilinear by name, with a trained bias": (
        lambda z, w: torch.bilinear(z, z[..., :2].tanh(), weight=w, bias=w[:, 0, 0]), (3, WIDTH, 2)
    ),
    "bilinear, sequence first": (bilinear_first, (3, WIDTH, 2)),
    "bilinear with frozen weights": (bilinear_frozen, (3, WIDTH, 2)),
    "bilinear of merged tokens": (
        lambda z, w: F.bilinear(z.flatten(0, 1), z.flatten(0, 1), w).view(len(z), -1),
        (3, WIDTH, WIDTH),
    ),
    "cdist": (lambda z, w: torch.cdist(z, w), (4, WIDTH)),
    "cdist of matrices": (lambda z, w: torch.cdist(z[:, 0], w, p=1.0), (4, WIDTH)),
    "cdist of merged rows": (
        lambda z, w: torch.cdist(z.reshape(-1, WIDTH), w).view(len(z), -1), (4, WIDTH),
    ),
    "cdist from a weight": (lambda z, w: torch.cdist(w, z[:, 0]).t(), (4, WIDTH)),
    "concatenation of a token": (
        lambda z, w: torch.cat([torch.cat([w] * len(z)), z], 1), (1, 2, WIDTH)
    ),
    "concatenation of tokens": (
        lambda z, w: torch.concat([w.tanh()] * len(z)).view(len(z), 2, WIDTH) * z[:, :2], (2, WIDTH)
    ),
    "concatenation in another dimension": (
        lambda z, w: torch.cat((w,) * len(z), dim=-2).transpose(0, 1) * z[:, :2], (2, 1, WIDTH)
    ),
    "a stack of a token": (lambda z, w: torch.stack([w] * len(z)) + z, (TOKENS, WIDTH)),
    "a stack in another dimension": (
        lambda z, w: torch.stack(tensors=[w] * len(z), dim=-1).movedim(-1, 0) + z, (TOKENS, WIDTH)
    ),
    "one entry": (lambda z, w: z * w[1, 2], (2, TOKENS)),
    "entries in turn": (
        lambda z, w: w[0, 0] * z + w[-1, 1] * z.square() + (z - w[1, -1]) / (2 + w[1, 0].tanh()),
        (2, 3),
    ),
    "an entry times a number": (lambda z, w: 2 * w[0] * z + z ** (1 + w[1].square()).round(), (2,)),
    "an entry that is filled in": (
        lambda z, w: torch.where(z > 0, z, w[1, 2]) + torch.full_like(z, 1.0) * w[0][0], (2, 3)
    ),
    "a row and a column": (lambda z, w: z * w[1] + w[:, 2].sum() * z[..., :1], (2, WIDTH)),
    "rows in turn": (
        lambda z, w: sum(z[:, k] * row for k, row in enumerate(w)), (TOKENS, WIDTH)  # type: ignore[return-value, misc]
    ),
    "entries by unbind": (lambda z, w: z * w.unbind()[1] + w.unbind()[0], (2,)),
    "assignment to a token": (first_token, (WIDTH,)),
    "assignment to some numbers of each token": (last_numbers, (TOKENS, 2)),
    "index_select": (lambda z, w: w.index_select(0, index(z)) * z[:, 0], (2, WIDTH)),
    "index_select of a flat list": (
        lambda z, w: w.index_select(0, z.mean(2).gt(0).long().flatten()).view(len(z), -1),
        (2, WIDTH),
    ),
    "entries of several dimensions": (lambda z, w: w[index(z)] * z, (2, TOKENS, WIDTH)),
    "entries of no dimension": (lambda z, w: w[index(z)][:, None, None] * z, (2,)),
    "a learned query": (
        lambda z, w: F.scaled_dot_product_attention(w, z[:, None], z[:, None]), (1, 1, 3, WIDTH)
    ),
    "learned keys and values": (
        lambda z, w: F.scaled_dot_product_attention(z[:, None], w, w), (1, 1, 3, WIDTH)
    ),
    "a view after a product, sequence first": (
        lambda z, w: F.linear(z.transpose(0, 1), w).view(TOKENS, len(z) * 2, 3)
        .transpose(0, 1).reshape(len(z), -1), (WIDTH, WIDTH)
    ),
}  # fmt: skip


def batch(views: int, examples: int = 4) -> tuple[Tensor, Tensor]:
    return torch.randn(examples * views, 1, TOKENS, 1), torch.arange(examples) % 3


@pytest.mark.parametrize("views", [1, 2])
@pytest.mark.parametrize("name", MEETINGS)
def test_an_operator_has_the_gradients_of_one_example_at_a_time(name: str, views: int) -> None:
    torch.manual_seed(0)
    meet, shape = MEETINGS[name]
    model = Meeting(meet, *shape)
    x, y = batch(views)
    model(x)
    engine = PerExample(model, views=views)
    found = engine(x, y)
    reference = one_at_a_time(model, x, y, views=views)
    assert max(errors(found, reference).values()) < 1e-4
    assert engine.method == "operators" and not engine.passed_over
    assert "torch.func" not in {path.path for path in engine.paths()}


@pytest.mark.parametrize("name", ["concatenation of tokens", "a stack in another dimension"])
def test_the_compiled_pass_joins_a_weight_with_itself(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    run_without_code(monkeypatch)
    torch.manual_seed(0)
    meet, shape = MEETINGS[name]
    model, (x, y) = Meeting(meet, *shape).double(), batch(2)
    objective = Objective(model, views=2)
    model(x.double())
    ours = Compiled(objective, x.double(), len(y), torch.float64).gradients(x.double(), y)
    wanted = Operators(objective).gradients(x.double(), y).squared_norms()
    torch.testing.assert_close(ours.squared_norms(), wanted, rtol=1e-3, atol=1e-7)


def test_a_parameter_that_only_decides_has_no_gradient() -> None:
    torch.manual_seed(0)
    model = Meeting(lambda z, w: z * (z > w), WIDTH)
    x, y = batch(1)
    model(x)
    engine = PerExample(model)
    found = engine(x, y)
    assert engine.method == "operators"
    assert float(found.squared_norms()[:, found.names.index("weight")].max()) == 0.0


@pytest.mark.parametrize("layer", [nn.TransformerDecoderLayer, nn.MultiheadAttention])
def test_cross_attention_runs_by_operators(layer: type[nn.Module]) -> None:
    torch.manual_seed(0)

    class Crossing(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.embed = nn.Conv2d(1, WIDTH, 1)
            self.query = nn.Parameter(torch.randn(1, 3, WIDTH))
            more = {"dropout": 0.0, "dim_feedforward": 8} if "Decoder" in layer.__name__ else {}
            self.attend = layer(WIDTH, 2, batch_first=True, **more)
            self.head = nn.Linear(WIDTH, 3)

        def forward(self, x: Tensor) -> Tensor:
            tokens = self.embed(x).flatten(2).transpose(1, 2)
            query = self.query.expand(len(x), -1, -1)
            decodes = isinstance(self.attend, nn.TransformerDecoderLayer)
            seen = self.attend(query, tokens) if decodes else self.attend(query, tokens, tokens)[0]
            out: Tensor = self.head(seen.mean(1))
            return out

    model = Crossing()
    x, y = batch(1)
    engine = PerExample(model)
    found = engine(x, y)
    assert max(errors(found, one_at_a_time(model, x, y)).values()) < 1e-4
    assert engine.method == "operators" and not engine.passed_over
    assert "torch.func" not in {path.path for path in engine.paths()}


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
def test_an_encoder_in_evaluation_may_use_tensors_of_several_lengths() -> None:
    torch.manual_seed(0)

    class Padded(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.embed = nn.Conv2d(1, WIDTH, 1)
            layer = nn.TransformerEncoderLayer(WIDTH, 2, 8, 0.0, batch_first=True)
            self.encoder, self.head = nn.TransformerEncoder(layer, 1), nn.Linear(WIDTH, 3)

        def forward(self, x: Tensor) -> Tensor:
            tokens = self.embed(x).flatten(2).transpose(1, 2)
            padding = tokens.mean(-1) > 0.5
            padding[:, 0] = False
            out: Tensor = self.head(self.encoder(tokens, src_key_padding_mask=padding)[:, 0])
            return out

    model = Padded().eval()
    x, y = batch(1)
    engine = PerExample(model)
    found = engine(x, y)
    assert max(errors(found, one_at_a_time(model, x, y)).values()) < 1e-4
    assert engine.method == "operators"
