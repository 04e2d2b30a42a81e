"""Runs that start from other runs: what they take over, what they train, and what it costs."""

from __future__ import annotations

import json
import math
import os
import shutil
import signal
import sys
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from short_runs import halves, recipe
from torch import nn

from sfumato import data, models
from sfumato.api import resume, train
from sfumato.data.imageset import Dataset, ImageSet
from sfumato.data.subset import subset
from sfumato.errors import UserError
from sfumato.privacy.accounting import accountants
from sfumato.privacy.accounting.accountants import Step, epsilon
from sfumato.privacy.accounting.budget import noise_multiplier_for
from sfumato.privacy.accounting.exposure import Exposure, steps_from_list
from sfumato.privacy.ledger import read
from sfumato.privacy.numerics.randomness import Keystream, Randomness
from sfumato.recipe import Recipe, loads
from sfumato.settings import Start
from sfumato.training import run_folder, setup
from sfumato.training.classifier import Description, load, save_weights
from sfumato.training.initial import parameters, start
from sfumato.training.loop import Loop, Stopped
from sfumato.training.recipe_data import dataset_of
from thinning import with_slow

DONOR_NOISE = 3.0


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two halves of the digits as files, a run on each: one public, one with noise."""
    folder = tmp_path_factory.mktemp("start")
    halves(folder)
    torch.set_num_threads(1)
    public = {"data.public": True, "privacy.enabled": False, "training.seed": 1}
    train(recipe(folder, "open", public), out=folder / "public", device="cpu")
    train(recipe(folder, "open", {**public, "data.public": False}), out=folder / "bare")
    noisy = {"privacy.noise_multiplier": DONOR_NOISE, "privacy.epsilon": 90.0}
    train(recipe(folder, "scans", {**noisy, "training.seed": 2}), out=folder / "noisy")
    return folder


def head_only(place: Path, **changes: Any) -> Recipe:
    source = {"start.source": str(place / "public"), "start.train": ["head"]}
    return recipe(place, "scans", source | changes)


def weights(folder: Path) -> dict[str, torch.Tensor]:
    return {n: p.detach() for n, p in load(folder).network.named_parameters()}


def history(folder: Path) -> list[Step]:
    return list(accountants.merge(read(folder / run_folder.LEDGER)[1]))


def built(chosen: Recipe, seed: int = 5) -> nn.Module:
    dataset = data.load(chosen.data.name)
    return setup.build_model(chosen, dataset, Randomness.from_seed(seed), start.open_donor(chosen))


# Transfer and freezing


def test_frozen_parameters_do_not_move_by_a_bit(place: Path, tmp_path: Path) -> None:
    chosen = head_only(
        place,
        **{
            "optimizer.momentum": 0.9,
            "optimizer.weight_decay": 0.1,
            "training.average": 0.9,
            "training.views": 2,
        },
    )
    train(chosen, out=tmp_path / "r", device="cpu")
    before, after = weights(place / "public"), weights(tmp_path / "r")
    for name in before:
        assert torch.equal(before[name], after[name]) == (not name.startswith("head")), name
    untrained = dict(built(chosen).named_parameters())
    assert not torch.equal(untrained["head.weight"], after["head.weight"])


def test_all_parameters_are_trained_without_freezing(place: Path, tmp_path: Path) -> None:
    train(head_only(place, **{"start.train": []}), out=tmp_path / "r", device="cpu")
    before, after = weights(place / "public"), weights(tmp_path / "r")
    assert not any(torch.equal(before[name], after[name]) for name in before)


def test_the_head_is_drawn_by_the_run_and_the_rest_taken_over(place: Path) -> None:
    donor = weights(place / "public")
    fresh = dict(built(head_only(place).replace({"start.source": ""})).named_parameters())
    model = dict(built(head_only(place)).named_parameters())
    for name, parameter in model.items():
        expected = fresh if name.startswith("head") else donor
        assert torch.equal(parameter, expected[name]), name
        assert not torch.equal(donor[name], fresh[name]), name
        assert parameter.requires_grad == name.startswith("head")
    whole = dict(built(head_only(place, **{"start.reset": []})).named_parameters())
    assert all(torch.equal(whole[name], donor[name]) for name in donor)


def test_a_network_that_ends_earlier_leaves_out_what_reset_names() -> None:
    def made(*layers: str) -> nn.Module:
        torch.manual_seed(len(layers))
        return nn.ModuleDict({name: nn.Linear(2, 2) for name in layers})

    whole, part = made("low", "high", "head"), made("low", "head")
    described = Description("m", {}, ("a", "b"), 1, (8, 8), (0.5,), (0.5,), {})
    donor = start.Donor("s", described, dict(whole.named_parameters()), start.Origin())

    def matching(reset: list[str] | None) -> tuple[list[str], list[str]]:
        return parameters.matching(part, donor, Start(source="s", reset=reset), classes=2)

    found = matching(["head", "high"])
    assert found == (["low.weight", "low.bias"], ["head.weight", "head.bias"])
    with pytest.raises(UserError, match=r"high\.weight is only in the source"):
        matching(None)
    with pytest.raises(UserError, match=r"'hgh' in start\.reset matches no parameter"):
        matching(["head", "hgh"])


def test_parameters_named_in_zero_begin_at_zero(place: Path, tmp_path: Path) -> None:
    zero = {"start.train": [], "start.zero": ["head"]}
    model = dict(built(head_only(place, **zero)).named_parameters())
    donor = weights(place / "public")
    for name, parameter in model.items():
        wanted = torch.zeros_like(parameter) if name.startswith("head") else donor[name]
        assert torch.equal(parameter, wanted), name
    scratch = dict(built(head_only(place, **zero).replace({"start.source": ""})).named_parameters())
    assert not scratch["head.weight"].any()
    train(head_only(place, **zero), out=tmp_path / "r", device="cpu")
    assert all(p.any() for p in weights(tmp_path / "r").values())
    words = (tmp_path / "r" / run_folder.LEDGER).read_text()
    assert "begun at zero: head.weight, head.bias" in words
    assert "drawn anew" not in words
    with pytest.raises(UserError, match=r"training\.phases freeze it"):
        built(head_only(place, **{"start.zero": ["conv*"]}))


def test_only_the_head_takes_per_example_work(
    place: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[Loop] = []
    graphs: list[bool] = []
    step = Loop.take_step

    def watch(self: Loop) -> Any:
        if not seen:
            body = self.model.get_submodule("conv2")
            body.register_forward_hook(lambda *a: graphs.append(a[2].requires_grad))
        seen.append(self)
        graphs.clear()
        return step(self)

    monkeypatch.setattr(Loop, "take_step", watch)
    train(head_only(place), out=tmp_path / "r", device="cpu")
    loop = seen[0]
    assert [path.module for path in loop.private.per_example.paths()] == ["head"]
    assert graphs
    assert not any(graphs), "the frozen body is differentiated"
    optimised = [p for group in loop.optimizer.param_groups for p in group["params"]]
    assert {id(p) for p in optimised} == {
        id(p) for p in loop.model.get_submodule("head").parameters()
    }


def test_another_number_of_classes_draws_the_head_anew(place: Path, tmp_path: Path) -> None:
    chosen = head_only(place, **{"start.reset": [], "data.subset": "rand-4"})
    train(chosen, out=tmp_path / "r", device="cpu")
    before, after = weights(place / "public"), weights(tmp_path / "r")
    assert after["head.bias"].shape == (4,)
    assert torch.equal(before["conv1.weight"], after["conv1.weight"])


def test_transferred_layers_see_images_normalised_as_before(place: Path, tmp_path: Path) -> None:
    tensors = load(place / "public")
    d = tensors.description
    moved = Description(
        d.model, d.options, d.classes, d.channels, d.size, (0.25,), (0.125,), d.guarantee
    )
    save_weights(tmp_path / "w.safetensors", tensors.network, moved)
    source = {"start.source": str(tmp_path / "w.safetensors")}
    for how, expected in (("transfer", (0.25,)), ("meanvar", d.mean)):
        train(head_only(place, **source, **{"start.how": how}), out=tmp_path / how, device="cpu")
        assert load(tmp_path / how).description.mean == expected


@pytest.mark.parametrize(
    ("pattern", "expected"),
    [
        ("head", {"head.weight", "head.bias"}),
        ("*.bias", {"conv1.bias", "conv2.bias", "head.bias"}),
        ("conv?", {"conv1.weight", "conv1.bias", "conv2.weight", "conv2.bias"}),
        ("conv1.weight", {"conv1.weight"}),
        ("conv[2]*", {"conv2.weight", "conv2.bias"}),
    ],
)
def test_patterns_match_parameters_and_layers(pattern: str, expected: set[str]) -> None:
    model = models.create("tanh-cnn", classes=3, channels=1, size=8)
    names = [name for name, _ in model.named_parameters()]
    assert parameters.chosen([pattern], names, setting="start.train") == expected


# MeanVar


def test_meanvar_has_the_donors_mean_and_variance_layer_by_layer(
    place: Path, tmp_path: Path
) -> None:
    torch.manual_seed(0)
    wide = {"filters": 40}
    network = models.create("tanh-cnn", classes=10, channels=1, size=8, **wide)
    with torch.no_grad():
        for k, parameter in enumerate(network.parameters()):
            parameter.normal_(0.3 * k, 0.1 + 0.2 * k)
        network.get_submodule("conv2").bias.fill_(0.7)  # type: ignore[union-attr, operator]
    d = load(place / "public").description
    save_weights(
        tmp_path / "w.safetensors",
        network,
        Description("tanh-cnn", wide, d.classes, 1, (8, 8), d.mean, d.std, d.guarantee),
    )
    source = {"start.source": str(tmp_path / "w.safetensors"), "start.how": "meanvar"}
    chosen = recipe(place, "scans", {**source, "model.options.filters": 40})
    donor = dict(network.named_parameters())
    model, again, other = (dict(built(chosen, seed).named_parameters()) for seed in (5, 5, 6))
    for name, parameter in model.items():
        count, wanted = parameter.numel(), donor[name].detach().double()
        parameter = parameter.detach()
        spread = float(wanted.std(correction=0))
        assert float(parameter.mean()) == pytest.approx(
            float(wanted.mean()), abs=5 * spread / math.sqrt(count) + 1e-6
        )
        assert float(parameter.double().std(correction=0)) == pytest.approx(
            spread, rel=5 / math.sqrt(count), abs=1e-6
        )
        assert torch.equal(parameter, again[name])
        if name != "conv2.bias":
            assert not torch.equal(parameter, donor[name])
            assert not torch.equal(parameter, other[name])
    kept = dict(built(chosen.replace({"start.reset": ["head"]})).named_parameters())
    fresh = dict(built(chosen.replace({"start": {}})).named_parameters())
    assert torch.equal(kept["head.weight"], fresh["head.weight"])
    assert not torch.equal(kept["conv1.weight"], fresh["conv1.weight"])


# Budgets


def test_a_start_on_the_same_images_is_composed(place: Path, tmp_path: Path) -> None:
    same = {"start.source": str(place / "noisy"), "start.same_data": True}
    chosen = recipe(place, "scans", {**same, "start.how": "meanvar", "training.log_every": 1})
    result = train(chosen, out=tmp_path / "second", device="cpu")
    donor, own = history(place / "noisy"), history(tmp_path / "second")
    assert donor == [Step(100 / len(dataset_of(chosen.data).train), DONOR_NOISE, 3)]
    for name in ("pld", "rdp"):
        both = epsilon([*donor, *own], delta=1e-4, accountant=name)
        assert result.epsilon[name] == both
        assert both > epsilon(own, delta=1e-4, accountant=name)
    assert result.epsilon["rdp"] <= 4.0
    alone = noise_multiplier_for(epsilon=4.0, delta=1e-4, q=own[0].q, steps=3, accountant="rdp")
    assert own[0].noise_multiplier > alone

    lines = (tmp_path / "second" / run_folder.METRICS).read_text().splitlines()
    shown = [json.loads(line)["epsilon"] for line in lines]
    first = epsilon([*donor, Step(own[0].q, own[0].noise_multiplier)], delta=1e-4, accountant="rdp")
    assert shown[0] == pytest.approx(first, rel=1e-3)
    assert shown[-2:] == [pytest.approx(result.epsilon["rdp"])] * 2

    words = " ".join((tmp_path / "second" / run_folder.STATEMENT).read_text().split())
    assert "steps of the start, counted above | 3" in words
    assert f"and 3 with q = {donor[0].q!r} and σ = 3.0" in words
    assert "The noise of the start, however, follows from a seed" in words
    assert load(tmp_path / "second").description.guarantee["exposures"][0]["seeded"] is True

    same["start.source"] = str(tmp_path / "second" / run_folder.WEIGHTS)
    third = train(recipe(place, "scans", {**same, "privacy.epsilon": 6.0}), out=tmp_path / "third")
    everything = [*donor, *own, *history(tmp_path / "third")]
    assert third.epsilon["rdp"] == epsilon(everything, delta=1e-4, accountant="rdp")
    header, _ = read(tmp_path / "third" / run_folder.LEDGER)
    counted = steps_from_list(header["start"]["before"])
    assert accountants.merge(counted) == accountants.merge([*donor, *own])


@pytest.mark.parametrize("same", with_slow([True, False], False))
def test_no_draw_and_no_noise_of_a_private_start_is_used_again(
    place: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, same: bool
) -> None:
    used: list[bytes] = []
    stream = Randomness.stream

    def watch(self: Randomness, step: int, purpose: str) -> Keystream:
        made = stream(self, step, purpose)
        used.append(made._key)
        return made

    monkeypatch.setattr(Randomness, "stream", watch)
    first = recipe(place, "scans", {"training.seed": 3})
    train(first, out=tmp_path / "first", device="cpu")
    source = {"start.source": str(tmp_path / "first"), "start.same_data": same}
    second = recipe(place, "scans" if same else "open", {**source, "privacy.epsilon": 6.0})
    train(second.replace({"training.seed": 3}), out=tmp_path / "second", device="cpu")
    assert len(used) == 12, "three steps each, a draw and noise in each"
    assert len(set(used)) == len(used)


def test_public_and_drawn_starts_leave_the_key_of_a_seed_alone(place: Path) -> None:
    donor = start.open_donor(head_only(place))
    assert donor is not None and donor.origin.weights
    assert donor.origin.seeded_randomness(7) == Randomness.from_seed(7)
    assert start.Origin().seeded_randomness(7) == Randomness.from_seed(7)


def test_steps_about_another_unit_are_not_counted_as_ones_about_this(place: Path) -> None:
    """Steps that protect an image say nothing about a patient with several, nor the reverse."""
    same = {"start.source": str(place / "noisy"), "start.same_data": True}
    by_patient = recipe(place, "scans", {**same, "data.unit": "patient"})
    with pytest.raises(UserError, match=r"protect one image, .* one patient: .*data\.unit = image"):
        start.open_donor(by_patient)
    apart = by_patient.replace({"data.name": "other", "start.same_data": False})
    donor = start.open_donor(apart)
    assert donor is not None and not donor.origin.before
    exposure = replace(donor.origin.exposures[0], unit="patient")
    assert Exposure.from_dict(json.loads(json.dumps(exposure.to_dict()))) == exposure
    with pytest.raises(UserError, match=r"protect one patient, .* one image: "):
        start._judged([exposure], recipe(place, "scans", same))
    assert start._judged([exposure], by_patient) == ((), exposure.steps)


def test_other_private_images_are_stated_and_not_counted(place: Path, tmp_path: Path) -> None:
    apart = {"start.source": str(place / "noisy"), "start.same_data": False}
    result = train(recipe(place, "open", apart), out=tmp_path / "r", device="cpu")
    own = history(tmp_path / "r")
    assert result.epsilon["rdp"] == epsilon(own, delta=1e-4, accountant="rdp")
    words = (tmp_path / "r" / run_folder.STATEMENT).read_text()
    assert "The start also depends on 'scans'" in words
    assert "with noise from a seed" in words
    with pytest.raises(UserError, match="spent privacy on 'open', 'scans'"):
        start.open_donor(recipe(place, "scans", {"start.source": str(tmp_path / "r")}))
    both = {"start.source": str(tmp_path / "r"), "start.same_data": True}
    donor = start.open_donor(recipe(place, "scans", both))
    assert donor is not None
    assert donor.origin.before == accountants.merge([*own, *history(place / "noisy")])


@pytest.mark.slow
def test_names_of_data_survive_a_chain_of_starts(place: Path, tmp_path: Path) -> None:
    """Noise on 'scans', then twice on 'open', the second time counting all: then 'scans' again."""
    fixed = {"privacy.noise_multiplier": DONOR_NOISE, "privacy.epsilon": 90.0}
    apart = {"start.source": str(place / "noisy"), "start.same_data": False} | fixed
    train(recipe(place, "open", apart), out=tmp_path / "a", device="cpu")
    counted = {"start.source": str(tmp_path / "a"), "start.same_data": True} | fixed
    train(recipe(place, "open", counted), out=tmp_path / "b", device="cpu")
    words = (tmp_path / "b" / run_folder.STATEMENT).read_text()
    assert "Some of them were taken on what was then called 'scans'." in words
    after = {"start.source": str(tmp_path / "b"), "privacy.epsilon": 50.0}
    with pytest.raises(UserError, match="spent privacy on 'open', 'scans'"):
        start.open_donor(recipe(place, "scans", after))
    with pytest.raises(UserError, match="was trained on 'open', 'scans'"):
        start.open_donor(recipe(place, "scans", {**after, "start.same_data": False}))
    for name, other in (("scans", "open"), ("open", "scans")):
        donor = start.open_donor(recipe(place, name, {**after, "start.same_data": True}))
        assert donor is not None and donor.origin.also == (other,)
        everything = [*history(place / "noisy"), *history(tmp_path / "a"), *history(tmp_path / "b")]
        assert set(donor.origin.before) == set(accountants.merge(everything)), "each step once"
        assert start.Origin.of({"start": donor.origin.to_dict()}) == donor.origin


@pytest.mark.slow
def test_what_a_start_looked_at_without_noise_stays_said(place: Path, tmp_path: Path) -> None:
    fixed = {"privacy.noise_multiplier": DONOR_NOISE, "privacy.epsilon": 90.0}
    watched = fixed | {
        "data.validation": 0.2, "training.early_stop": 90.0, "optimizer.schedule": "plateau",
    }  # fmt: skip
    train(recipe(place, "scans", watched), out=tmp_path / "a", device="cpu")
    source = tmp_path / "a"
    for name in ("b", "c"):
        counted = {"start.source": str(source), "start.same_data": True} | fixed
        train(recipe(place, "scans", counted), out=tmp_path / name, device="cpu")
        words = (tmp_path / name / run_folder.STATEMENT).read_text()
        assert words.count("- Of the start's training: the learning rate, which fell when") == 1
        assert words.count("- Of the start's training: the moment training ended, which") == 1
        source = tmp_path / name
    apart = {"start.source": str(tmp_path / "a"), "start.same_data": False} | fixed
    train(recipe(place, "open", apart), out=tmp_path / "d", device="cpu")
    assert "Of the start's training" not in (tmp_path / "d" / run_folder.STATEMENT).read_text()


def test_a_fixed_noise_ends_earlier_after_a_start(place: Path) -> None:
    fixed = {"privacy.noise_multiplier": 2.0, "privacy.epsilon": 3.0, "training.steps": 50}
    chosen = recipe(place, "scans", fixed)
    before = (Step(0.2, 2.0, 5),)
    first = setup.plan(chosen, 480)
    second = setup.plan(chosen, 480, before=before)
    assert 0 < second.steps < first.steps < 50
    for more, fits in ((0, True), (1, False)):
        both = [*before, Step(second.sampler.rate, 2.0, second.steps + more)]
        assert (epsilon(both, delta=1e-4, accountant="rdp") <= 3.0) == fits


# What may be started from


def refused(chosen: Recipe, *words: str) -> None:
    with pytest.raises(UserError) as caught:
        train(chosen, out="never", device="cpu")
    assert not Path("never").exists()
    for word in words:
        assert word in str(caught.value), str(caught.value)


def test_a_private_run_needs_to_know_what_its_start_saw(
    place: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    bare, noisy = {"start.source": str(place / "bare")}, {"start.source": str(place / "noisy")}
    public = {"start.source": str(place / "public")}
    refused(recipe(place, "scans", bare), "'open' without privacy", "start.public = true")
    for source in (bare, public, {**bare, "start.public": True}):
        chosen = recipe(place, "scans", {**source, "start.same_data": True})
        refused(chosen, "no noise added later", "start.same_data = true")
    refused(recipe(place, "scans", noisy), "spent privacy on 'scans'", "start.same_data = true")
    spent = {**noisy, "start.same_data": True, "privacy.epsilon": 0.2}
    refused(recipe(place, "scans", spent), "already spent epsilon", "budget of 0.2")


def test_a_data_set_of_the_same_name_is_the_same_data_set(
    place: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    open_run = {"data.name": "digits", "privacy.enabled": False, "data.public": True}
    train(recipe(place, "", open_run), out="public", device="cpu")
    noise = {"data.name": "digits", "privacy.noise_multiplier": 3.0, "privacy.epsilon": 90.0}
    train(recipe(place, "", noise), out="noisy", device="cpu")
    digits = {"data.name": "digits", "start.source": "public"}
    refused(recipe(place, "", digits), "private on it too", "no noise added later")
    apart = {"data.name": "digits", "start.source": "noisy", "start.same_data": False}
    refused(recipe(place, "", apart), "start.same_data = false, but", "start.same_data = true")


@pytest.mark.parametrize("name", ["hospital/scans.npz", "hospital/folder"])
def test_images_are_known_again_wherever_the_command_is_run(
    place: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("hospital").mkdir()
    shutil.copy(place / "scans.npz", "hospital/scans.npz")
    for label in range(2):
        where = Path("hospital/folder", f"class{label}")
        where.mkdir(parents=True)
        for number in range(20):
            grey = np.full((8, 8), 100 * label + number, np.uint8)
            Image.fromarray(grey).save(where / f"{number}.png")
    few: dict[str, Any] = {"data.name": name, "training.batch": 16, "training.steps": 1}
    few["privacy.delta"] = 1e-3
    public = {"data.public": True, "privacy.enabled": False}
    train(recipe(place, "", few | public), out="public", device="cpu")
    private = recipe(place, "", few | {"start.source": "public"})
    refused(private, "was trained without privacy on", "rename its folder")
    train(recipe(place, "", few | {"privacy.epsilon": 50.0}), out="first", device="cpu")
    apart = {"start.source": "first", "start.same_data": False}
    refused(recipe(place, "", few | apart), "start.same_data = false, but", "rename its folder")


def test_one_folder_has_many_names(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "scans").mkdir()
    (tmp_path / "link").symlink_to("scans")
    monkeypatch.chdir(tmp_path.parent)
    below = f"{tmp_path.name}/scans"
    for other in (below, str(tmp_path / "scans"), f"{tmp_path.name}/link", "elsewhere/scans.npz"):
        assert start._same_set("scans", other), "a folder is stated by its own name alone"
    monkeypatch.chdir(tmp_path)
    for other in ("scans", "./scans/", str(tmp_path / "scans"), "link", "scans.npz"):
        assert start._same_set("scans", other)
    assert not start._same_set("scans", "scans2") and not start._same_set("mnist", "scans")
    assert start._same_set("mnist", "MNIST")


def test_drawn_images_are_never_the_runs_own(place: Path, tmp_path: Path) -> None:
    drawn = {"start.source": "dead-leaves", "model.name": "eq-resnet9-d4", "model.options": {}}
    chosen = recipe(place, "scans", {}).replace({**drawn, "start.same_data": True})
    refused(chosen, "drawn images alone", "leave start.same_data out")
    noisy = Exposure("scans", steps=(Step(0.1, 2.0, 3),))
    chain = (noisy, Exposure("dead-leaves", public=True, drawn=True))
    counted = {"start.source": "run", "start.same_data": True}
    _, before = start._judged(chain, recipe(place, "scans", counted))
    assert before == noisy.steps, "a private run that began with drawn images can be gone on from"


def test_a_detour_over_public_images_does_not_make_a_start_public(
    place: Path, tmp_path: Path
) -> None:
    detour = {"start.source": str(place / "bare"), "privacy.enabled": False, "data.public": True}
    np.savez(place / "third.npz", **np.load(place / "open.npz"))
    train(recipe(place, "third", detour), out=tmp_path / "washed", device="cpu")
    assert "nobody declared it public" in (tmp_path / "washed" / run_folder.STATEMENT).read_text()
    chosen = recipe(place, "scans", {"start.source": str(tmp_path / "washed")})
    with pytest.raises(UserError, match="'open' without privacy"):
        start.open_donor(chosen)
    donor = start.open_donor(chosen.replace({"start.public": True}))
    assert donor is not None
    assert {e.data: e.public for e in donor.origin.exposures} == {"third": True, "open": True}


def test_the_statement_names_what_was_treated_as_public(place: Path, tmp_path: Path) -> None:
    declared = "which the user declared to be public"
    words = " ".join((place / "public" / run_folder.STATEMENT).read_text().split())
    assert "no privacy guarantee" in words
    assert declared in words
    assert declared not in (place / "bare" / run_folder.STATEMENT).read_text()
    for name, more in (("public", {}), ("bare", {"start.public": True})):
        source = {"start.source": str(place / name), **more}
        train(head_only(place, **source), out=tmp_path / name, device="cpu")
        words = (tmp_path / name / run_folder.STATEMENT).read_text()
        assert "**'open' was treated as public**" in words
        assert "4 of 6 parameters were taken from" in words
        assert "Only head.weight, head.bias were trained" in words
    again = {"start.source": str(tmp_path / "public"), "start.same_data": True}
    donor = start.open_donor(recipe(place, "scans", again))
    assert donor is not None
    assert donor.origin.before == tuple(history(tmp_path / "public"))
    assert [(e.data, e.public) for e in donor.origin.exposures] == [("open", True)]
    train(recipe(place, "scans", {}), out=tmp_path / "scratch", device="cpu")
    words = (tmp_path / "scratch" / run_folder.STATEMENT).read_text()
    assert "first weights" not in words
    assert "treated as public**" not in words


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"start.source": "nowhere"}, ["start.source = 'nowhere'", "no run folder"]),
        ({"start.train": ["haed"]}, ["'haed' in start.train", "Did you mean 'head'", "conv1"]),
        ({"start.reset": ["conv3"]}, ["'conv3' in start.reset", "Did you mean 'conv"]),
        ({"start.reset": ["*"]}, ["leaves nothing of it"]),
        (
            {"model.options.filters": 8},
            [
                "'tanh-cnn' for 1x8x8 images",
                "0 of 6",
                "conv1.weight is (4, 1, 3, 3)",
                "(8, 1, 3, 3)",
            ],
        ),
        (
            {"model.name": "papernot-2", "model.options": {"filters": 4}},
            ["0 of 16 parameters match", "pair1.conv1.weight is not in the source", "and "],
        ),
        ({"start.how": "meanvar", "model.options.filters": 8}, ["1 of 6", "start.reset"]),
        ({"start.how": "meanvr"}, ["transfer, meanvar", "Did you mean 'meanvar'"]),
        ({"start.train": [1]}, ["start.train", "a list of texts"]),
        ({"start.source": "", "start.public": True}, ["start.source"]),
        ({"data.public": True}, ["data.public = true", "private run"]),
    ],
)
def test_bad_starts_are_a_sentence(
    place: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    changes: dict[str, Any],
    words: list[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UserError) as caught:
        train(head_only(place, **{"privacy.noise_multiplier": 3.0, **changes}), out="never")
    for word in words:
        assert word in str(caught.value), str(caught.value)
    assert not Path("never").exists()


def test_a_model_without_a_head_must_be_told_what_to_draw_anew(place: Path) -> None:
    donor = start.open_donor(head_only(place))
    assert donor is not None
    model = nn.Sequential(nn.Flatten(), nn.Linear(64, 10))
    with pytest.raises(UserError, match="no layer called 'head'"):
        parameters.matching(model, donor, Start(), classes=10)


def test_a_start_with_more_layers_is_another_network(place: Path) -> None:
    donor = start.open_donor(head_only(place))
    assert donor is not None
    parts = OrderedDict[str, nn.Module](conv1=nn.Conv2d(1, 4, 3), head=nn.Linear(4, 10))
    with pytest.raises(UserError, match=r"2 of 4 .* conv2\.weight is only in the source"):
        parameters.matching(nn.Sequential(parts), donor, Start(), classes=10)


def test_weights_that_do_not_state_their_data_are_refused(place: Path, tmp_path: Path) -> None:
    old = load(place / "noisy")
    d = old.description
    for guarantee, words in (
        ({"private": True, "epsilon": {"pld": 1.0}}, "not which steps"),
        ({"private": False}, "does not name"),
        ({"private": False, "exposures": []}, "does not name"),
        ({"private": True, "exposures": []}, "not which steps"),
        ({"private": False, "exposures": {}}, "cannot be read"),
        ({"private": False, "exposures": None}, "does not name"),
        ({"private": True, "exposures": [{"data": "x"}]}, "cannot be read"),
    ):
        said = Description(
            d.model, d.options, d.classes, d.channels, d.size, d.mean, d.std, guarantee
        )
        path = tmp_path / f"{len(words)}.safetensors"
        save_weights(path, old.network, said)
        with pytest.raises(UserError, match=words):
            start.open_donor(recipe(place, "scans", {"start.source": str(path)}))


def test_a_ledger_that_names_no_data_for_its_start_is_not_read_as_none() -> None:
    stated = {
        "weights": "0" * 64, "words": "", "exposures": [], "before": [], "mean": [], "std": [],
        "seeded": False,
    }  # fmt: skip
    with pytest.raises(UserError, match="names no data that they depend on"):
        start.Origin.of({"start": stated})


def test_one_pattern_needs_no_list_and_survives_a_file() -> None:
    chosen = Recipe().replace({"start.source": "runs/a", "start.train": "head", "start.reset": []})
    assert chosen.start.train == ["head"]
    assert chosen.start.reset == []
    assert loads(chosen.to_toml(), where="copy") == chosen


# Interruptions


def interrupted(chosen: Recipe, folder: Path, monkeypatch: pytest.MonkeyPatch, at: int) -> None:
    step, save = Loop.take_step, Loop.save

    def stop(self: Loop) -> Any:
        statistics = step(self)
        if self.step == at:
            os.kill(os.getpid(), signal.SIGTERM)
        return statistics

    def fail(self: Loop) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(Loop, "take_step" if at else "save", stop if at else fail)
    with pytest.raises(Stopped if at else KeyboardInterrupt):
        train(chosen, out=folder, device="cpu")
    monkeypatch.setattr(Loop, "take_step", step)
    monkeypatch.setattr(Loop, "save", save)


def test_an_interrupted_run_goes_on_without_its_start(
    place: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    shutil.copytree(place / "noisy", "donor")
    counted = {"start.source": "donor", "start.same_data": True, "start.train": ["head"]}
    chosen = recipe(place, "scans", {**counted, "training.seed": 0})
    train(chosen, out="whole", device="cpu")
    interrupted(chosen, Path("r"), monkeypatch, at=2)
    interrupted(chosen, Path("early"), monkeypatch, at=0)
    resume("early", device="cpu")
    shutil.rmtree("donor")
    resume("r", device="cpu")
    for name in (run_folder.WEIGHTS, run_folder.LEDGER, run_folder.STATEMENT):
        expected = Path("whole", name).read_bytes()
        assert Path("r", name).read_bytes() == expected
        assert Path("early", name).read_bytes() == expected


def test_a_start_that_changed_is_refused_where_it_is_needed(
    place: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    shutil.copytree(place / "public", "donor")
    chosen = head_only(place, **{"start.source": "donor", "training.seed": 0})
    interrupted(chosen, Path("r"), monkeypatch, at=0)
    classifier = load("donor")
    with torch.no_grad():
        classifier.network.get_parameter("conv1.bias").add_(1)
    save_weights(Path("donor", run_folder.WEIGHTS), classifier.network, classifier.description)
    with pytest.raises(UserError, match="are not those that the run started from"):
        resume("r", device="cpu")


# Subsets of classes


@pytest.fixture(scope="module")
def hundred() -> Dataset:
    """A hundred classes, seven training images each, every pixel the number of the class."""

    def part(count: int) -> ImageSet:
        labels = np.tile(np.arange(100), count)
        pixels = np.broadcast_to(
            labels[:, None, None, None].astype(np.uint8), (len(labels), 1, 4, 4)
        )
        return ImageSet(np.ascontiguousarray(pixels), labels)

    names = tuple(f"c{k}" for k in range(100))
    return Dataset("hundred", names, part(7), part(2), part(1), (0.5,), (0.5,))


@pytest.mark.parametrize(
    ("choice", "kept", "groups"),
    [("min-rand-10", 10, 10), ("half-rand-50", 50, 10), ("max-100", 100, 100), ("rand-6/3", 6, 3)],
)
def test_subsets_have_the_papers_classes_and_groups(
    hundred: Dataset, choice: str, kept: int, groups: int
) -> None:
    cut = subset(hundred, choice, seed=3)
    assert len(cut.classes) == groups
    assert (len(cut.train), len(cut.test)) == (7 * kept, 2 * kept)
    assert cut.validation is not None
    members = [name.split("+") for name in cut.classes]
    assert {len(m) for m in members} == {kept // groups}
    assert len({name for m in members for name in m}) == kept
    for part in cut.parts().values():
        for pixel, label in zip(part.images[:, 0, 0, 0], part.labels, strict=True):
            assert f"c{pixel}" in members[label]
    assert subset(hundred, choice, seed=3).classes == cut.classes
    assert (subset(hundred, choice, seed=4).classes == cut.classes) == (kept == 100)
    if kept == 100:
        assert cut.classes == hundred.classes


@pytest.mark.parametrize(
    ("choice", "words"),
    [
        ("half-rand-5", "Did you mean 'half-rand-50'"),
        ("rand-101", "has 100"),
        ("rand-7/3", "one size"),
        ("rand-1", "at least two"),
        ("rand-0/0", "at least two"),
        ("rand-x", "rand-N"),
    ],
)
def test_impossible_subsets_are_refused(hundred: Dataset, choice: str, words: str) -> None:
    with pytest.raises(UserError, match=words):
        subset(hundred, choice)


# The commands


@pytest.fixture
def run(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> Callable[..., tuple[int, str]]:
    from sfumato.cli import main

    monkeypatch.chdir(tmp_path)

    def call(*args: str) -> tuple[int, str]:
        monkeypatch.setattr(sys, "argv", ["sfumato", *args])
        with pytest.raises(SystemExit) as stopped:
            main()
        captured = capsys.readouterr()
        code = stopped.value.code
        return (code if isinstance(code, int) else 0), " ".join(
            (captured.out + captured.err).split()
        )

    return call


@pytest.mark.slow
def test_pretrain_then_train_from_the_command_line(
    place: Path, run: Callable[..., tuple[int, str]]
) -> None:
    tiny = ("--model", "tanh-cnn", "--set", "model.options.filters=4", "--set", "data.size=8",
            "--set", "training.steps=2", "--set", "training.views=1",
            "--device", "cpu")  # fmt: skip
    public = ("--data", str(place / "open.npz"), "--classes", "rand-6/3")
    code, out = run("pretrain", *public, *tiny)
    assert code == 0, out
    assert "not private" in out
    assert "6 of the 10 classes" in out
    folder = "runs/pretrain-open-001"
    assert len(load(folder).classes) == 3
    assert load(folder).description.guarantee["exposures"][0]["public"] is True
    private = ("--data", str(place / "scans.npz"), "--delta", "1e-4", "--start", folder)
    code, out = run("train", *private, *tiny, "--train-only", "head", "--out", "r")
    assert code == 0, out
    assert "4 of 6 parameters were taken" in out
    assert "Only head.weight, head.bias were trained" in out
    assert torch.equal(weights(Path("r"))["conv2.weight"], weights(Path(folder))["conv2.weight"])

    code, out = run("pretrain")
    assert (code, "Name the public images" in out) == (2, True)
    code, out = run("pretrain", *public, *tiny, "--set", "privacy.enabled=true")
    assert (code, "trains without privacy" in out) == (2, True)


def have(name: str) -> bool:
    from sfumato.data import locate
    from sfumato.data.catalogue import CATALOGUE

    try:
        locate.require(CATALOGUE[name], None)
    except UserError:
        return False
    return True


@pytest.mark.skipif(
    not (have("cifar100") and have("cifar10")), reason="CIFAR-100 and CIFAR-10 are not there"
)
def test_from_cifar100_to_the_head_of_cifar10(
    run: Callable[..., tuple[int, str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    small = ("--model", "papernot-2", "--set", "model.options.filters=4", "--set",
             "model.options.units=32", "--set", "training.steps=3", "--set", "training.batch=64",
             "--set", "training.views=1", "--device", "cpu")  # fmt: skip
    for classes, count in (("min-rand-10", 10), ("half-rand-50", 10)):
        code, out = run(
            "pretrain", "--data", "cifar100", "--classes", classes, "--out", classes, *small
        )
        assert code == 0, out
        assert len(load(classes).classes) == count
    code, out = run(
        "train", "--data", "cifar10", *small, "--start", "half-rand-50", "--train-only", "head",
        "--epsilon", "2.1", "--set", "privacy.accountant=rdp", "--out", "r",
    )  # fmt: skip
    assert code == 0, out
    before, after = weights(Path("half-rand-50")), weights(Path("r"))
    for name in before:
        assert torch.equal(before[name], after[name]) == (not name.startswith("head")), name
    assert "**'cifar100' was treated as public**" in Path("r", run_folder.STATEMENT).read_text()
