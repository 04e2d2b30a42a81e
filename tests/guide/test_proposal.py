"""The recipe that is proposed for numbers of images, budgets and minutes."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

from sfumato import UserError, recipes
from sfumato.data import Dataset, ImageSet
from sfumato.guide import propose, recipe_text
from sfumato.guide.pace import Pace, measure_pace
from sfumato.guide.proposal import delta_for
from sfumato.privacy.accounting.accountants import Step, epsilon
from sfumato.recipe import Recipe, loads, parse
from sfumato.settings import Data
from sfumato.training import setup

CPU = torch.device("cpu")


def images(count: int, *, channels: int = 3, per_unit: int = 1) -> Dataset:
    pixels = np.zeros((count, channels, 8, 8), np.uint8)
    labels = np.arange(count, dtype=np.int64) % 2
    units = None if per_unit == 1 else np.arange(count, dtype=np.int64) // per_unit
    half = (0.5,) * channels
    part = ImageSet(pixels, labels, units)
    return Dataset("scans", ("a", "b"), part, part.take(np.arange(20)), None, half, half)


def at(seconds: float) -> object:
    """A machine on which a forward pass takes so long, and a backward pass twice that."""

    def measure(recipe: Recipe, dataset: Dataset, device: torch.device) -> Pace:
        fixed = bool(recipe.start.train) or recipe.model.name == "scatternet"
        return Pace(seconds, 3 * seconds, fixed)

    return measure


def proposed(dataset: Dataset, seconds: float = 1e-5, **wishes: object) -> object:
    asked = {"epsilon": 8.0, "minutes": 30.0, "device": CPU, "measure": at(seconds), **wishes}
    return propose(dataset, Data(name="./scans"), **asked)


@pytest.mark.parametrize(
    ("count", "channels", "seconds", "base"),
    [
        (8000, 3, 1e-5, "images"),  # A GPU, or as quick, at epsilon 8.
        pytest.param(5000, 1, 0.05, "last-layer-grey", marks=pytest.mark.slow),
        (1000, 3, 1e-5, "last-layer"),  # Better with so few, however quick the machine.
    ],
)
def test_the_better_recipe_that_is_quick_enough(
    count: int, channels: int, seconds: float, base: str
) -> None:
    found = proposed(images(count, channels=channels), seconds)
    assert found.base == base and found.within
    assert found.choice.batch == count // 8
    assert found.choice.steps == recipes.find(base).training.steps
    assert found.expected.asked == count


def test_a_plan_spends_the_budget_on_the_number_of_units() -> None:
    found = proposed(images(6000, per_unit=2), epsilon=2.0)
    assert found.examples == 3000 and found.recipe.training.batch == 375
    plan = setup.plan(found.recipe, 3000)
    assert plan.noise.multiplier == found.choice.noise_multiplier
    spent = epsilon([Step(375 / 3000, found.choice.noise_multiplier, found.choice.steps)],
                    delta=found.recipe.privacy.delta)  # fmt: skip
    assert 1.98 < spent <= 2


@pytest.mark.slow
def test_half_of_the_work_where_the_whole_is_too_long() -> None:
    whole = proposed(images(8000))
    tight = proposed(images(8000), minutes=0.6 * whole.seconds / 60)
    assert whole.base == tight.base == "images" and tight.within
    assert tight.choice.batch * tight.choice.steps == whole.choice.batch * whole.choice.steps // 2
    assert tight.seconds < 0.6 * whole.seconds
    never = proposed(images(8000), 0.05, minutes=0.1)
    assert never.base == "last-layer" and not never.within and never.seconds > 6


def test_a_gpu_elsewhere_has_no_minutes() -> None:
    found = proposed(images(8000), device=None, measure=None)
    assert found.base == "images" and found.seconds is None and found.within
    assert "no GPU here" in recipe_text(found)


def test_delta_stays_below_one_over_the_number_of_units() -> None:
    assert delta_for(92) == delta_for(10_000) == 1e-5
    assert delta_for(50_000) == pytest.approx(1e-6)
    assert delta_for(2_000_000) == pytest.approx(1e-8)


def test_impossible_wishes_are_sentences() -> None:
    with pytest.raises(UserError, match="--minutes 0"):
        proposed(images(100), minutes=0.0)
    with pytest.raises(UserError, match="epsilon must be"):
        proposed(images(100), epsilon=-1.0)


def test_the_file_is_the_recipe_and_counts_no_class() -> None:
    found = proposed(images(600, channels=1, per_unit=3))
    data = replace(found.recipe.data, unit="patient")
    found = replace(found, recipe=replace(found.recipe, data=data))
    text = recipe_text(found)
    content = parse(text, where="text")
    assert content.pop("extends") == "last-layer-grey"
    stated = recipes.find("last-layer-grey").extended_by(content, where="text")
    wanted = found.recipe.replace({"data.size": 8, "about": ""})
    assert stated.to_dict() == wanted.to_dict()
    assert "treats them as\n# public" in text and "300" not in text
    assert loads(stated.to_toml(), where="text") == stated
    assert max(map(len, text.splitlines())) <= 100


def test_a_pace_is_measured_on_random_images_of_the_shape(monkeypatch: pytest.MonkeyPatch) -> None:
    def never(*_: object) -> None:
        raise AssertionError("an image of the data set was looked at")

    monkeypatch.setattr(ImageSet, "take", never)
    monkeypatch.setattr(ImageSet, "chunks", never)
    recipe = recipes.find("wavelets")
    dataset = Dataset("d", ("a", "b"), *2 * [ImageSet(np.zeros((1, 1, 8, 8), np.uint8),
                      np.zeros(1, np.int64))], None, (0.5,), (0.5,))  # fmt: skip
    pace = measure_pace(recipe, dataset, CPU)
    assert pace.fixed and 0 < pace.forward < 5 and 0 < pace.both < 5
    small = recipes.find("digits").replace({"model.options": {"filters": 2}})
    assert not measure_pace(small, dataset, CPU).fixed


def test_fixed_layers_cost_images_and_others_views() -> None:
    work = {"steps": 10, "images": 1000, "held_out": 100}
    fixed = [Pace(0.01, 0.03, True).seconds(views=v, **work) for v in (1e3, 1e6)]
    free = [Pace(0.01, 0.03, False).seconds(views=v, **work) for v in (1e3, 1e6)]
    assert fixed[0] == fixed[1] and free[1] - free[0] == pytest.approx(0.03 * (1e6 - 1e3))
    assert fixed[0] == pytest.approx(0.01 * (1100 + 11 * 256) + 10 * 0.02)
