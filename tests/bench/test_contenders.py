from __future__ import annotations

import importlib.util
from dataclasses import replace

import pytest
import torch
from bench_fakes import TINY

from sfumato.bench import jax_peer, peers
from sfumato.bench.cases import Case
from sfumato.bench.contenders import prepare
from sfumato.bench.feed import Feed, Unsupported, build_model, generated

CPU = torch.device("cpu")
HAS_OPACUS = importlib.util.find_spec("opacus") is not None
HAS_JAX = importlib.util.find_spec("jax") is not None


@pytest.mark.parametrize("name", ["sfumato", "not-private", "opacus", "opacus-ghost", "vmap"])
def test_every_contender_takes_whole_steps(name: str) -> None:
    if name.startswith("opacus") and not HAS_OPACUS:
        pytest.skip("Opacus is not installed")
    contender = prepare(name, TINY, CPU)
    model = contender.model
    assert model is not None
    before = [p.detach().clone() for p in model.parameters()]
    try:
        contender.step()
        contender.step()
    finally:
        contender.close()
    for old, new in zip(before, model.parameters(), strict=True):
        assert not torch.equal(old, new)
        assert bool(new.isfinite().all())


def test_sfumato_takes_the_steps_of_its_own_loop(monkeypatch: pytest.MonkeyPatch) -> None:
    from sfumato.training.loop import Loop

    case = replace(TINY, views=2)
    seen = []
    real = Loop.take_step

    def watched(self: Loop, draw: torch.Tensor | None = None) -> object:
        statistics = real(self, draw)
        seen.append(
            (statistics.examples, self.ledger.steps, self.feed.physical_batch, self.average)
        )
        return statistics

    monkeypatch.setattr(Loop, "take_step", watched)
    contender = prepare("sfumato", case, CPU)
    contender.step()
    contender.close()
    assert seen[0][:3] == (case.batch, 1, case.at_once)
    assert seen[0][3] is not None


def test_the_feed_makes_the_rows_of_a_step() -> None:
    case = replace(TINY, views=2, physical=3)
    batches = list(Feed(case, CPU).batches())
    assert [tuple(x.shape) for x, _ in batches] == [(8, 1, 28, 28)] * 3
    assert [len(y) for _, y in batches] == [4] * 3
    assert all(x.is_contiguous(memory_format=torch.channels_last) for x, _ in batches)
    draw = Feed(case, CPU).draw()
    assert len(set(draw.tolist())) == case.batch


def test_generated_images_are_bytes_of_the_asked_shape() -> None:
    data = generated((3, 8, 8), 20)
    assert data.train.images.shape == (20, 3, 8, 8)
    assert data.train.images.dtype == "uint8"


def test_peers_say_what_they_cannot_do() -> None:
    if not HAS_OPACUS:
        pytest.skip("Opacus is not installed")
    with pytest.raises(Unsupported, match="no views"):
        prepare("opacus", replace(TINY, views=2), CPU)
    with pytest.raises(Unsupported, match="functions of parameters"):
        prepare("opacus", Case(model="eq-resnet9-d4", rows=2, examples=16), CPU)
    model, note = peers.plain_model(Case(model="wrn-10-1", rows=2, examples=16))
    assert "without weight standardisation" in note
    assert not any("parametrizations" in n for n, _ in model.named_parameters())


def test_a_peer_that_is_not_installed_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    for name in ("opacus", "opacus-ghost", "jax-privacy"):
        with pytest.raises(Unsupported, match="not installed"):
            prepare(name, TINY, CPU)


@pytest.mark.skipif(not HAS_JAX, reason="JAX is not installed")
def test_the_network_in_jax_is_the_one_in_torch() -> None:
    import jax

    case = Case(model="wrn-10-2", rows=4, examples=64)
    model = build_model(case).eval()
    for p in model.parameters():
        torch.nn.init.normal_(p, std=0.3)
    own = {}
    for name, p in model.named_parameters():
        values = p.detach()
        values = values.permute(2, 3, 1, 0) if p.dim() == 4 else values
        own[name] = jax.numpy.asarray(values.numpy())
    x = torch.randn(4, 3, 32, 32)
    ours = jax_peer.forward(own, jax.numpy.asarray(x.permute(0, 2, 3, 1).numpy()), 1, jax)
    with torch.no_grad():
        assert torch.allclose(torch.tensor(ours.tolist()), model(x), atol=1e-3, rtol=1e-3)
