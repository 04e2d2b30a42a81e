"""A start that has seen no data: how it is trained, resumed, released and gone on from."""

from __future__ import annotations

import json
import math
import shutil
import signal
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor, nn

from sfumato import starts
from sfumato.api import resume, train
from sfumato.errors import UserError
from sfumato.privacy.accounting.exposure import Exposure
from sfumato.privacy.ledger import read as read_ledger
from sfumato.privacy.numerics.randomness import Randomness
from sfumato.recipe import Recipe
from sfumato.recipes import find
from sfumato.reproduce.row import Row
from sfumato.training import run_folder
from sfumato.training.classifier import load
from sfumato.training.initial import prior_loop
from sfumato.training.initial.contrast import Projection, contrast
from sfumato.training.loop import Stopped
from sfumato.training.metrics import read
from sfumato.training.reporter import Progress, Silent

SMALL: dict[str, Any] = {
    "data.size": 8,
    "data.channels": 1,
    "model.name": "tanh-cnn",
    "model.options": {"filters": 4},
    "optimizer.warmup": 2,
    "training.batch": 6,
    "training.steps": 5,
    "training.seed": 3,
    "training.log_every": 1,
}


def small(**more: Any) -> Recipe:
    return find("dead-leaves").replace(SMALL | more)


def reference(features: Tensor, temperature: float) -> tuple[float, float]:
    """Each view by itself: the softmax of its cosines with all others, and the best of them."""
    rows = len(features)
    losses, right = [], 0
    for i in range(rows):
        cosines = {
            j: float(nn.functional.cosine_similarity(features[i], features[j], dim=0)) / temperature
            for j in range(rows)
            if j != i
        }
        partner = (i + rows // 2) % rows
        total = math.log(sum(math.exp(c) for c in cosines.values()))
        losses.append(total - cosines[partner])
        right += max(cosines, key=lambda j: cosines[j]) == partner
    return sum(losses) / rows, right / rows


@pytest.mark.parametrize("n", [2, 3, 7])
@pytest.mark.parametrize("temperature", [0.2, 1.0])
def test_the_loss_is_that_of_picking_partners(n: int, temperature: float) -> None:
    torch.manual_seed(n)
    features = torch.randn(2 * n, 5)
    loss, accuracy = contrast(features, temperature=temperature)
    assert (float(loss), float(accuracy)) == pytest.approx(reference(features, temperature), 1e-5)
    paired = torch.eye(n).repeat(2, 1)
    assert float(contrast(paired)[1]) == 1.0


def test_a_run_leaves_what_every_run_leaves(tmp_path: Path) -> None:
    before = torch.get_rng_state()
    result = train(small(), out=tmp_path / "r", device="cpu")
    assert torch.equal(torch.get_rng_state(), before)
    names = {p.name for p in (tmp_path / "r").iterdir()}
    wanted = {
        run_folder.RECIPE,
        run_folder.LEDGER,
        run_folder.METRICS,
        run_folder.WEIGHTS,
        run_folder.STATEMENT,
    }
    assert wanted | {run_folder.CURVES, run_folder.CHECKPOINTS} == names
    assert result.drawn and result.epsilon == {} and result.steps == 5
    records = read(tmp_path / "r" / run_folder.METRICS)
    assert [r["step"] for r in records] == [1, 2, 3, 4, 5, 5]
    assert records[-1]["test_accuracy"] == result.test_accuracy
    assert records[0]["lr"] == pytest.approx(0.25) and records[4]["lr"] < 0.2
    assert "There is nothing to protect" in (tmp_path / "r" / run_folder.STATEMENT).read_text()
    described = load(tmp_path / "r").description
    assert (described.channels, described.size, described.mean) == (1, (8, 8), (0.5,))
    seen = [Exposure.from_dict(e) for e in described.guarantee["exposures"]]
    assert seen == [Exposure("dead-leaves", public=True, drawn=True)]
    with pytest.raises(UserError, match="is finished"):
        resume(tmp_path / "r", device="cpu")
    with pytest.raises(UserError, match="already exists"):
        train(small(), out=tmp_path / "r", device="cpu")


class StopAfterTwo(Silent):
    """Has the run stopped after its second step, as by Ctrl-C."""

    def show(self, progress: Progress) -> None:
        if progress.step == 2:
            signal.raise_signal(signal.SIGTERM)


@pytest.mark.parametrize("average", [None, 0.9])
def test_an_interrupted_run_ends_where_it_would_have(tmp_path: Path, average: float | None) -> None:
    recipe = small(**{"training.average": average} if average else {})
    train(recipe, out=tmp_path / "whole", device="cpu")
    with pytest.raises(Stopped):
        train(recipe, out=tmp_path / "cut", device="cpu", reporter=StopAfterTwo())
    result = resume(tmp_path / "cut", device="cpu")
    assert result.steps == 5
    one, two = (load_file(tmp_path / n / run_folder.WEIGHTS) for n in ("whole", "cut"))
    assert one.keys() == two.keys()
    assert all(torch.equal(one[name], two[name]) for name in one)
    losses = [
        [(r["step"], r["loss"]) for r in read(tmp_path / name / run_folder.METRICS)[:-1]]
        for name in ("whole", "cut")
    ]
    assert losses[0] == losses[1] and len(losses[0]) == 5


@pytest.mark.slow
def test_a_network_learns_to_tell_images_apart(tmp_path: Path) -> None:
    larger = {"data.channels": 3, "data.size": 12, "model.options": {"filters": 16}}
    longer = {"training.steps": 200, "training.batch": 16, "training.log_every": 50}
    train(small(**larger, **longer), out=tmp_path / "r", device="cpu")
    losses = [r["loss"] for r in read(tmp_path / "r" / run_folder.METRICS)[:-1]]
    assert losses[-1] < losses[0] - 0.1


def test_without_a_seed_runs_differ_and_leave_no_key(tmp_path: Path) -> None:
    for name in "ab":
        train(small(**{"training.seed": None}), out=tmp_path / name, device="cpu")
        assert not (tmp_path / name / run_folder.KEY).exists()
    one, two = (load_file(tmp_path / name / run_folder.WEIGHTS) for name in "ab")
    assert any(not torch.equal(one[name], two[name]) for name in one)


def test_private_training_goes_on_from_it_and_spends_nothing_for_it(tmp_path: Path) -> None:
    start = tmp_path / "start"
    train(small(), out=start, device="cpu")
    recipe = find("digits").replace(
        {"model.options": {"filters": 4}, "start.source": str(start), "training.steps": 3}
    )
    result = train(recipe, out=tmp_path / "private", device="cpu")
    alone = train(recipe.replace({"start.source": ""}), out=tmp_path / "alone", device="cpu")
    assert result.epsilon == alone.epsilon
    text = (tmp_path / "private" / run_folder.STATEMENT).read_text()
    assert "images that a program drew at random" in text
    assert "'dead-leaves' was treated as public" not in text
    described = load(tmp_path / "private").description
    assert described.mean == (0.5,) and described.std == (0.25,)
    exposures = [Exposure.from_dict(e) for e in described.guarantee["exposures"]]
    assert [(e.data, e.drawn, e.noisy) for e in exposures] == [
        ("digits", False, True), ("dead-leaves", True, False),
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"privacy.enabled": True, "data.public": False}, "there is nobody to protect"),
        ({"training.views": 4}, "has no use for training.views"),
        ({"augment.flip": True, "data.validation": 0.1}, "augment.flip, data.validation"),
        ({"training.batch": 1}, "at least 2"),
        ({"optimizer.lr": 1e30}, "diverged"),
    ],
)
def test_settings_that_do_not_apply_are_refused(
    tmp_path: Path, changes: dict[str, Any], said: str
) -> None:
    with pytest.raises(UserError, match=said):
        train(small(**changes), out=tmp_path / "r", device="cpu")


def headless(*, classes: int, channels: int, size: tuple[int, int]) -> nn.Module:
    return nn.Sequential(nn.Flatten(), nn.Linear(channels * math.prod(size), classes))


def test_a_network_without_a_head_is_refused(tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.syspath_prepend(Path(__file__).parent)
    recipe = small(**{"model.name": "test_prior:headless", "model.options": {}})
    with pytest.raises(UserError, match="has no layer called 'head'"):
        train(recipe, out=tmp_path / "r", device="cpu", trust_code=["test_prior"])
    assert not (tmp_path / "r").exists()


def test_images_take_no_more_memory_than_they_may(monkeypatch: pytest.MonkeyPatch) -> None:
    def count(**more: Any) -> int:
        recipe = small(**more)
        cpu = torch.device("cpu")
        return prior_loop.Prior(recipe, Randomness.from_seed(0), cpu, Silent()).count

    assert count() == 30, "no more than are looked at"
    assert count(**{"training.steps": 100_000}) == prior_loop.POOL["cpu"]
    monkeypatch.setattr(prior_loop, "_BYTES", 16 * 16 * 50)
    assert count(**{"training.steps": 100_000}) == 50
    monkeypatch.setattr(prior_loop, "_BYTES", 1)
    assert count() == 6, "a batch is drawn in any case"


def test_the_projection_is_not_released(tmp_path: Path) -> None:
    train(small(), out=tmp_path / "r", device="cpu")
    released = load_file(tmp_path / "r" / run_folder.WEIGHTS)
    assert {n for n in released if n.startswith("head")} and not any("proj" in n for n in released)
    assert Projection(7)[0].in_features == 7


def test_a_packaged_start_is_found_by_its_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert starts.find("dead", "tanh-cnn") is None
    train(small(), out=tmp_path / "r", device="cpu")
    (tmp_path / "starts" / "dead-leaves").mkdir(parents=True)
    place = tmp_path / "starts" / "dead-leaves" / "tanh-cnn.safetensors"
    shutil.copy(tmp_path / "r" / run_folder.WEIGHTS, place)
    monkeypatch.setattr(starts, "_ROOT", tmp_path / "starts")
    changes = {"model.options": {"filters": 4}, "training.steps": 2}
    recipe = find("digits").replace(changes | {"start.source": "dead-leaves"})
    said: list[str] = []

    class Listening(Silent):
        def say(self, message: str) -> None:
            said.append(message)

    train(recipe, out=tmp_path / "private", device="cpu", reporter=Listening())
    assert any("taken from 'dead-leaves' (tanh-cnn)" in words for words in said)
    header, _ = read_ledger(tmp_path / "private" / run_folder.LEDGER)
    assert header["start"]["weights"] == starts.digest(place)
    with pytest.raises(UserError, match="packaged for tanh-cnn, not for 'resnet9'"):
        train(recipe.replace({"model.name": "resnet9", "model.options": {}}), device="cpu")


def test_other_weights_under_the_name_make_results_void(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "dead-leaves"
    folder.mkdir()
    monkeypatch.setattr(starts, "_ROOT", tmp_path)
    monkeypatch.setattr(
        Row, "recipe_for", lambda *_: find("digits").replace({"start.source": "dead-leaves"})
    )
    prints = set()
    for content in (b"one", b"two"):
        (folder / "tanh-cnn.safetensors").write_bytes(content)
        row = Row(paper="p", name="n", recipe="digits", source="s")
        prints.add(row.fingerprint("best"))
    assert len(prints) == 2


@pytest.mark.parametrize(
    "model", ["tanh-cnn", pytest.param("eq-resnet9-d4", marks=pytest.mark.slow)]
)
def test_a_step_is_one_graph_for_the_compiler(model: str) -> None:
    changes = {"model.name": model, "model.options": {}, "data.channels": 3, "data.size": 16}
    recipe = small(**changes)
    made = prior_loop.Prior(recipe, Randomness.from_seed(0), torch.device("cpu"), Silent())
    images, numbers = made._drawn(6, "images"), made._numbers(1, "views")
    compiled = torch.compile(made._compare, backend="aot_eager", fullgraph=True)
    loss, accuracy = compiled(images, numbers)
    plain_loss, plain_accuracy = made._compare(images, numbers)
    assert loss.item() == pytest.approx(plain_loss.item(), rel=1e-4)
    assert accuracy.item() == plain_accuracy.item()
    loss.backward()
    found = [p.grad.clone() for p in made.model.parameters() if p.grad is not None]
    made.model.zero_grad()
    plain_loss.backward()
    wanted = [p.grad for p in made.model.parameters() if p.grad is not None]
    assert len(found) == len(wanted) > 0
    for one, other in zip(found, wanted, strict=True):
        assert torch.allclose(one, other, atol=1e-5, rtol=1e-3)


def test_too_little_memory_is_explained(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> None:
        raise torch.OutOfMemoryError("CUDA out of memory")

    monkeypatch.setattr(prior_loop.Prior, "_compare", full)
    with pytest.raises(UserError, match="cannot be taken in parts: lower"):
        train(small(), out=tmp_path / "r", device="cpu")


def test_a_run_goes_on_with_as_many_images(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(Stopped):
        train(small(), out=tmp_path / "r", device="cpu", reporter=StopAfterTwo())
    monkeypatch.setattr(prior_loop, "POOL", {"cpu": 8})
    seen = []
    draw = prior_loop.Prior._drawn
    monkeypatch.setattr(
        prior_loop.Prior, "_drawn", lambda self, n, what: (seen.append(n), draw(self, n, what))[1]
    )
    resume(tmp_path / "r", device="cpu")
    assert seen[0] == 30


def test_a_run_goes_on_for_as_many_steps(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    chosen = small().replace({"training.epochs": 1.0})
    monkeypatch.setattr(prior_loop, "POOL", {"cpu": 60})
    with pytest.raises(Stopped):
        train(chosen, out=tmp_path / "r", device="cpu", reporter=StopAfterTwo())
    asked = json.loads((tmp_path / "r" / run_folder.LEDGER).read_text().splitlines()[0])["steps"]
    monkeypatch.setattr(prior_loop, "POOL", {"cpu": 240})
    assert resume(tmp_path / "r", device="cpu").steps == asked
