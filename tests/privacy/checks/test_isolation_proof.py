"""Isolation is proved for sound models, and for no model or loss that mixes examples."""

from __future__ import annotations

import sys
from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from isolation_attacks import ATTACKS, KEPT, LOSSES, WIDTH
from mixing_models import MIXING
from sound_models import SHAPE, SOUND
from test_hidden_mixing import Balanced, Series, Switch
from torch import Tensor, nn

from sfumato import models
from sfumato.privacy import PerExample
from sfumato.privacy.checks import isolation_proof
from sfumato.privacy.checks.isolation_proof import Proof, prove_isolation
from sfumato.privacy.checks.isolation_proof.sizes import HINT
from sfumato.privacy.engines.objective import Loss, cross_entropy
from sfumato.privacy.numerics.model_state import Snapshot
from thinning import one_in

OLD = torch.__version__ < "2.12"

NOT_PROVED = {
    "padding circular": "memory that was never written",
    "same even circular": "memory that was never written",
    "conv1d": "memory that was never written",
    "old weight norm": "kept between calls",
    "spectral norm": "writes into",
    "old spectral norm": "writes into",
    "orthogonal": "_Orthogonal",
    "rolled_back": "a roll along the batch",
    "control_flow": "asks for the size of the batch",
    "counts_calls": "writes into",
    "traced": "cannot be traced",
    "scripted": "cannot be traced",
    "frozen_batch_norm": "writes into",
    "own_range": "takes numbers out of a tensor",
    "notes_in_an_object": "kept between calls",
    "counter": "kept between calls",
    "own_torch_generator": "cannot be traced",
    "sparse_and_nested": "",
    "lazy_constants": "",
    "holds_itself": "",
}
"""Sound models that the proof does not cover, and why."""


def proof_of(
    model: nn.Module, shape: tuple[int, ...] = (4,), loss: Loss = cross_entropy, **like: Tensor
) -> Proof:
    x = like.get("x", torch.zeros(1, *shape))
    return prove_isolation(model, loss, x, like.get("y", torch.zeros(1, dtype=torch.int64)))


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", one_in(6, ATTACKS))
def test_no_attack_is_proved(name: str) -> None:
    proof = proof_of(ATTACKS[name]().train())
    KEPT.clear()
    assert not proof.proved
    assert proof.reason


@pytest.mark.parametrize("loss", one_in(3, LOSSES))
def test_no_loss_over_the_batch_is_proved(loss: Loss) -> None:
    assert not proof_of(nn.Linear(4, 3), loss=loss).proved


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", one_in(8, MIXING))
def test_no_mixing_model_is_proved(name: str) -> None:
    proof = proof_of(MIXING[name]().train(), SHAPE)
    assert not proof.proved
    if "culprit" in dict(MIXING[name]().named_modules()) and "the size" not in proof.reason:
        assert "culprit" in proof.reason


def test_hidden_mixing_is_not_proved() -> None:
    assert not proof_of(Series(), (9, 4)).proved
    assert not proof_of(nn.Sequential(nn.Linear(4, 32), Switch(1.25), nn.Linear(32, 3))).proved
    assert not proof_of(nn.Linear(4, 3), loss=Balanced()).proved
    embedding = nn.Sequential(
        nn.Embedding(9, 4, scale_grad_by_freq=True), nn.Flatten(), nn.Linear(20, 3)
    )
    assert not proof_of(embedding, x=torch.zeros(1, 5, dtype=torch.int64)).proved


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", one_in(12, SOUND))
def test_sound_models_are_proved(name: str) -> None:
    build, shape = SOUND[name]
    proof = proof_of(build().train(), shape)
    assert proof.proved == (name not in NOT_PROVED), proof.reason
    assert NOT_PROVED.get(name, "") in proof.reason


@pytest.mark.parametrize("name", ["tanh-cnn", "papernot-2"])
def test_small_registered_models_are_proved(name: str) -> None:
    assert _registered(name).proved


@pytest.mark.slow
@pytest.mark.parametrize("name", models.names())
def test_registered_models_are_proved(name: str) -> None:
    proof = _registered(name)
    # The scattering transform takes images in portions of a fixed number; average pooling to one
    # position sets strides of its own in channels_last, to which ConvNeXt's norms lead.
    not_proved = {"scatternet", "convnext-atto", "convnext-tiny"}
    assert proof.proved != (name in not_proved), proof.reason


def _registered(name: str) -> Proof:
    channels, *size = models.info(name).input
    model = models.create(name, classes=10, channels=channels, size=(size[0], size[1]))
    return proof_of(model.train(), (channels, *size))


class Fn(nn.Module):
    def __init__(self, function: Callable[[nn.Module, Tensor], Tensor]) -> None:
        super().__init__()
        self.function = function
        self.weight = nn.Parameter(torch.randn(3, WIDTH))
        self.first = nn.Linear(4, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        return self.function(self, self.first(x)) @ self.weight.t()


class Doubled(torch.autograd.Function):
    @staticmethod
    def forward(ctx: object, h: Tensor) -> Tensor:
        return h * 2

    @staticmethod
    def backward(ctx: object, d: Tensor) -> Tensor:
        return d * 2


ROWWISE: dict[str, Callable[[nn.Module, Tensor], Tensor]] = {
    "custom gradient": lambda m, h: Doubled.apply(h),
    "hook of each row": lambda m, h: (h.requires_grad and h.register_hook(lambda g: g * 2), h)[1],
    "lookup": lambda m, h: h + torch.arange(12.0).view(2, WIDTH)[(h[:, 0] > 0).long()],
    "gather": lambda m, h: h.gather(1, h.argsort(1)),
    "fold and unfold": lambda m, h: h.view(-1, 2).softmax(1).view(-1, WIDTH),
    "repeat and mean": lambda m, h: h.repeat_interleave(3, 0).view(-1, 3, WIDTH).mean(1),
    "tile and mean": lambda m, h: h.repeat(3, 1).view(3, -1, WIDTH).mean(0),
    "rows in the last dimension": lambda m, h: (m.first.weight @ m.first.weight.t() @ h.t()).t(),
    "shared noise": lambda m, h: h * torch.rand(1),
    "own noise": lambda m, h: h + torch.rand(h.shape[0], 1),
    "einsum": lambda m, h: torch.einsum("bi,bj->bij", h, h).sum(1),
    "norm of each row": lambda m, h: F.normalize(h),
    "in place": lambda m, h: (h * 1).mul_(2).clamp_(-1, 1),
    "written column": lambda m, h: h.index_fill(1, torch.tensor([1]), 0.0),
    "batch norm by constants": lambda m, h: F.batch_norm(h, torch.zeros(WIDTH), torch.ones(WIDTH)),
    "fft": lambda m, h: torch.fft.fft(h).real,
    "vmap": lambda m, h: torch.vmap(lambda r: r - r.mean())(h),
    "group norm": lambda m, h: F.group_norm(h[:, :, None], 2)[:, :, 0],
    "resized": lambda m, h: F.interpolate(h[:, None], scale_factor=2.0)[:, 0, ::2],
    "attention": lambda m, h: F.scaled_dot_product_attention(*[h.view(-1, 1, 3, 2)] * 3).flatten(1),
    "masked": lambda m, h: h.masked_fill(h > 0.3, 0.0).cumsum(1),
    "token": lambda m, h: torch.cat([m.weight[:1].expand(h.shape[0], -1), h], 1)[:, 3:9],
}


@pytest.mark.parametrize("name", one_in(5, ROWWISE))
def test_operators_within_rows_are_proved(name: str) -> None:
    proof = proof_of(Fn(ROWWISE[name]))
    assert proof.proved, proof.reason


@pytest.mark.parametrize(
    "loss",
    [
        lambda out, y: F.binary_cross_entropy_with_logits(out, y, reduction="none").mean(1),
        lambda out, y: F.mse_loss(out, y, reduction="none").sum(1),
        lambda out, y: F.smooth_l1_loss(out, y, reduction="none").sum(1),
        lambda out, y: F.huber_loss(out, y, reduction="none").sum(1),
        lambda out, y: F.kl_div(out.log_softmax(1), y, reduction="none").sum(1),
        pytest.param(
            lambda out, y: F.cross_entropy(out, y, reduction="none", label_smoothing=0.1),
            marks=pytest.mark.skipif(OLD, reason="PyTorch 2.11 does not trace it"),
        ),
    ],
)
def test_losses_of_each_row_are_proved(loss: Loss) -> None:
    proof = proof_of(nn.Linear(4, 3), loss=loss, y=torch.rand(1, 3))
    assert proof.proved, proof.reason


def test_words_and_their_gradients_are_proved() -> None:
    model = nn.Sequential(nn.Embedding(9, 4, padding_idx=0), nn.Flatten(), nn.Linear(20, 3))
    proof = proof_of(model, x=torch.zeros(1, 5, dtype=torch.int64))
    assert proof.proved, proof.reason


def test_a_constant_with_as_many_rows_as_the_trace_is_not_proved() -> None:
    numbers = torch.arange(float(HINT))[:, None]
    assert not proof_of(Fn(lambda m, h: h * numbers)).proved


def test_frozen_statistics_are_proved_and_others_are_not() -> None:
    model = nn.Sequential(nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.Flatten(), nn.Linear(16, 3))
    assert not proof_of(model, (1, 4, 4)).proved
    assert proof_of(model.eval(), (1, 4, 4)).proved


def test_a_layer_reached_through_a_closure_is_not_proved() -> None:
    model = Fn(lambda m, h: h)
    first = model.first
    model.first = nn.Identity()
    model.hidden = first
    model.function = lambda m, x: first(x)
    assert "other than through its module" in proof_of(model).reason


def test_a_hook_on_a_parameter_is_not_proved() -> None:
    model = nn.Linear(4, 3)
    model.weight.register_hook(lambda g: g / g.norm())
    assert "hook" in proof_of(model).reason


def test_the_operator_and_its_module_are_named() -> None:
    proof = proof_of(MIXING["sort"](), SHAPE)
    assert str(proof) == (
        "tested on random inputs (not proved: operator aten.sort in layer 'culprit' (Fn): "
        "sort along the batch)"
    )


def test_an_operator_without_a_rule_is_named() -> None:
    proof = proof_of(nn.Sequential(nn.Linear(4, 3), Fn2()))
    assert "aten.linalg_svd" in proof.reason or "aten._linalg_svd" in proof.reason
    assert "layer '1' (Fn2)" in proof.reason


class Fn2(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return torch.linalg.svdvals(x[:, :, None]) + x


def test_the_model_and_random_states_are_left_as_they_were() -> None:
    model, other = (ATTACKS[name]() for name in ("buffer updated in place", "call counter"))
    before, state = Snapshot(model), torch.get_rng_state()
    proof_of(model)
    proof_of(other)
    assert other.calls == 0
    assert before.first_difference(Snapshot(model)) is None
    assert torch.equal(state, torch.get_rng_state())
    assert all(p.grad is None for p in model.parameters())


def test_an_engine_keeps_its_proof() -> None:
    engine = PerExample(nn.Linear(4, 3))
    assert engine.proof is None
    assert engine.prove(torch.zeros(2, 4), torch.zeros(2, dtype=torch.int64)).proved
    assert engine.proof is not None and engine.proof.proved


def test_nothing_is_printed_about_a_model_that_cannot_be_traced(
    capfd: pytest.CaptureFixture[str],
) -> None:
    proof = proof_of(Fn(lambda m, h: torch.linalg.qr(h).Q @ torch.ones(WIDTH, WIDTH)))
    assert not proof.proved
    assert capfd.readouterr() == ("", "")


def test_a_model_that_cannot_be_traced_is_no_error() -> None:
    class Broken(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            raise ValueError("no images today")

    proof = proof_of(Broken())
    assert not proof.proved and "ValueError: no images today" in proof.reason


def test_a_pytorch_that_traces_in_another_way_proves_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name in [
        n for n in sys.modules if n.startswith("sfumato.privacy.checks.isolation_proof.proof")
    ]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setattr(isolation_proof, "proof", None, raising=False)
    monkeypatch.delattr(isolation_proof, "proof")
    monkeypatch.setitem(sys.modules, "torch._functorch._aot_autograd.functional_utils", None)
    found = prove_isolation(
        nn.Linear(3, 2), cross_entropy, torch.zeros(4, 3), torch.zeros(4, dtype=torch.long)
    )
    assert not found.proved and "this version of PyTorch" in found.reason
