"""A second network beside the first: its initial weights, and what its source has spent."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

import sfumato
from sfumato import recipes, starts
from sfumato.errors import UserError
from sfumato.models import create
from sfumato.privacy.accounting.accountants import Step
from sfumato.privacy.accounting.exposure import Exposure
from sfumato.recipe import Recipe
from sfumato.reproduce.row import Row
from sfumato.training.classifier import Description, load, save_weights
from sfumato.training.initial.parameters import matching
from sfumato.training.initial.start import open_donor

BOTH = {
    "start.source": "dead-leaves",
    "start.beside": "drawn-mixture",
    "start.reset": ["head", "conv4", "res2", "beside.head", "beside.conv4", "beside.res2"],
    "model.options": {"reads": ["conv3"], "grid": 2, "mirror": True, "beside": True},
}
SPENT = Exposure("scans", steps=(Step(0.1, 2.0, 3),))


def weights(path: Path) -> dict[str, Tensor]:
    return {n: p.detach() for n, p in load(path).network.named_parameters()}


def with_both(**changes: Any) -> Recipe:
    return recipes.find("last-layer").replace(BOTH | changes)


def saved(path: Path, exposure: Exposure, *, mean: float = 0.5) -> str:
    """Weights of the whole network that state what they depend on."""
    description = Description(
        model="eq-resnet9-d4", options={}, classes=("a", "b"), channels=3, size=(16, 16),
        mean=(mean,) * 3, std=(0.25,) * 3,
        guarantee={"private": exposure.noisy, "exposures": [exposure.to_dict()]},
    )  # fmt: skip
    save_weights(path, create("eq-resnet9-d4", classes=2, size=16), description)
    return str(path)


def test_each_network_begins_with_its_own_weights(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    images, labels = rng.integers(0, 255, (40, 16, 16, 3), np.uint8), np.arange(40) % 2
    file = tmp_path / "scans.npz"
    np.savez(file, train_images=images[:30], train_labels=labels[:30],
             test_images=images[30:], test_labels=labels[30:])  # fmt: skip
    few = {"data.name": str(file), "training.steps": 2, "training.seed": 0, "privacy.delta": 1e-3}
    run = sfumato.train(with_both(**few), out=tmp_path / "run", device="cpu")
    found = weights(tmp_path / "run")
    sources = {"": "dead-leaves", "beside.": "drawn-mixture"}
    for prefix, name in sources.items():
        path = starts.find(name, "eq-resnet9-d4")
        assert path is not None
        theirs = weights(path)
        own = [k for k in theirs if k.startswith(("conv1", "conv2", "conv3", "res1"))]
        assert len(own) == 10
        for key in own:
            assert torch.equal(found[prefix + key], theirs[key]), key
    header = run.header
    assert "'dead-leaves' and 'drawn-mixture'" in header["start"]["words"]
    assert [e["data"] for e in header["start"]["exposures"]] == [*sources.values()]
    assert len(header["start"]["weights"].split("+")) == 2
    assert "'dead-leaves' and 'drawn-mixture'" in (tmp_path / "run" / "statement.md").read_text()
    assert run.verify().epsilon == run.guarantee.epsilon


@pytest.mark.parametrize("setting", ["start.source", "start.beside"])
def test_what_either_source_has_spent_is_judged(tmp_path: Path, setting: str) -> None:
    chosen = with_both(**{"data.name": "others"})
    noisy = saved(tmp_path / "noisy.safetensors", SPENT)
    bare = saved(tmp_path / "bare.safetensors", Exposure("scans"))
    with pytest.raises(UserError, match="'scans' without privacy"):
        open_donor(chosen.replace({setting: bare}))
    with pytest.raises(UserError, match="Say whether those are this run's images"):
        open_donor(chosen.replace({setting: noisy}))
    counted = chosen.replace({setting: noisy, "start.same_data": True})
    donor = open_donor(counted)
    assert donor is not None and donor.origin.before == SPENT.steps
    twice = {"start.source": noisy, "start.beside": noisy, "start.same_data": True}
    donor = open_donor(chosen.replace(twice))
    assert donor is not None
    assert sum(step.count for step in donor.origin.before) == 2 * SPENT.steps[0].count


def test_two_networks_see_images_alike(tmp_path: Path) -> None:
    drawn = Exposure("dead-leaves", public=True, drawn=True)
    other = saved(tmp_path / "other.safetensors", drawn, mean=0.4)
    with pytest.raises(UserError, match="other channels or normalisation"):
        open_donor(with_both(**{"start.beside": other}))


@pytest.mark.parametrize(
    ("changes", "advice"),
    [
        ({"start.beside": ""}, "Name the weights of the second network in start.beside"),
        ({"model.options": {"reads": ["conv3"]}}, "is for a model with a second network"),
    ],
)
def test_two_networks_and_two_sources_go_together(changes: dict[str, Any], advice: str) -> None:
    chosen = with_both(**changes, **{"start.reset": ["head", "conv4", "res2"]})
    donor = open_donor(chosen)
    assert donor is not None
    model = create(chosen.model.name, classes=3, **chosen.model.options)
    with pytest.raises(UserError, match=advice):
        matching(model, donor, chosen.start, classes=3)


def test_a_second_source_needs_a_first() -> None:
    with pytest.raises(UserError, match=r"start.beside.* are about the weights"):
        with_both(**{"start.source": "", "start.zero": [], "start.reset": None})
    with pytest.raises(UserError, match=r"start.beside = 'drawn-mixtur': .*'drawn-mixture'\?"):
        open_donor(with_both(**{"start.beside": "drawn-mixtur"}))


def test_a_result_is_void_if_either_start_changes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Row, "recipe_for", lambda *_: with_both())
    hashes = set()
    for changed in (None, "dead-leaves", "drawn-mixture"):

        def digest(path: Path, changed: str | None = changed) -> str:
            return f"{path.parent.name}{path.parent.name == changed}"

        monkeypatch.setattr(starts, "digest", digest)
        row = Row(paper="tiny", name="both", recipe="last-layer", source="table 1")
        hashes.add(row.fingerprint("best"))
    assert len(hashes) == 3
