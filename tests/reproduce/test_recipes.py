"""Every packaged recipe: it loads, its model is the published one, and its noise can be found."""

from __future__ import annotations

from functools import cache
from pathlib import Path

import pytest
import torch

from sfumato import models, recipes
from sfumato.data.catalogue import CATALOGUE
from sfumato.recipe import Recipe
from sfumato.reproduce.lookup import every_row
from sfumato.training import setup
from thinning import one_in

COUNTS = {
    "scatternet": 10 * (81 * 7 * 7 + 1),
    "resnet9": 2_447_946,
    "scale-resnet9": 2_448_714,
    "wrn-16-4": 2_752_506,
    "scale-wrn-16-4": 2_752_506 + 4 * (64 + 128 + 256),
    "smoothnet": 3_391_853,
    "papernot-1": 26_010,
    "papernot-2": 2_395_434,
    "papernot-6": 2_334_730,
    "eq-resnet9-c4": 258_328,
    "eq-resnet9-c8": 255_675,
    "eq-resnet9-c16": 244_397,
    "eq-resnet9-d4": 255_675,
    "eq-resnet9-d8": 244_397,
    "eq-resnet9-d16": 237_995,
    "eq-resnet9-so2-1": 242_378,
    "eq-resnet9-so2-2": 250_881,
    "eq-resnet9-so2-3": 308_444,
}
"""Published parameters for 3x32x32 (papernot-1: 1x28x28) images of 10 classes."""

MILLIONS = {"resnet18": 11.2, "resnet34": 21.3, "densenet121": 7.0, "efficientnet-b0": 4.0}
WITHOUT_COUNT = {"reads", "filters", "layout", "links", "norm", "width", "depth"}
"""Model options that change the number of parameters."""

PAPERS = {name: recipes.find(name) for name in recipes.packaged() if "/" in name}


@cache
def by_network() -> dict[tuple[object, ...], Recipe]:
    found = {}
    for recipe in PAPERS.values():
        options = tuple(sorted((k, str(v)) for k, v in recipe.model.options.items()))
        found[recipe.model.name, options, recipe.data.name] = recipe
    return found


def parameters(recipe: Recipe) -> int:
    entry = CATALOGUE[recipe.data.name]
    side = recipe.data.size or entry.size[0]
    steerable = recipe.model.name.startswith("eq-")
    with torch.device("cpu" if steerable else "meta"):
        model = models.create(
            recipe.model.name,
            classes=10,
            channels=entry.channels,
            size=(side, side),
            **recipe.model.options,
        )
    return sum(p.numel() for p in model.parameters())


@pytest.mark.parametrize("network", one_in(4, by_network()), ids=str)
def test_every_network_builds_with_the_published_number_of_parameters(
    network: tuple[object, ...],
) -> None:
    recipe = by_network()[network]
    count = parameters(recipe)
    name = recipe.model.name
    if WITHOUT_COUNT & set(recipe.model.options):
        assert count > 0
    elif name in COUNTS:
        assert count == COUNTS[name]
    elif name in MILLIONS:
        assert round(count / 1e6, 1) == MILLIONS[name]
    else:
        assert name in ("resnet50", "scale-resnet50", "resnet20", "wrn-40-4", "eq-wrn-40-1")


def budget(recipe: Recipe) -> tuple[object, ...]:
    """All that the noise depends on."""
    p, t, d = recipe.privacy, recipe.training, recipe.data
    return (
        p.epsilon, p.delta, p.accountant, p.noise_multiplier, t.batch, t.steps, t.epochs,
        CATALOGUE[d.name].train, d.validation,
    )  # fmt: skip


BUDGETS = {budget(r): n for n, r in PAPERS.items() if r.privacy.enabled}
"""One recipe for each budget: others have the same numbers."""

FEW = {budget(PAPERS[n])[4:]: n for n in BUDGETS.values()}
"""One of these for each batch and length: others differ in epsilon."""


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(n, marks=() if n in FEW.values() else (pytest.mark.slow,))
        for n in BUDGETS.values()
    ],
)
def test_a_recipe_has_a_noise_multiplier_that_lasts_to_its_end(name: str) -> None:
    recipe = PAPERS[name]
    entry = CATALOGUE[recipe.data.name]
    plan = setup.plan(recipe, entry.train - round(entry.train * recipe.data.validation))
    assert plan.noise.multiplier > 0.4
    assert plan.steps == plan.asked


def test_recipes_are_called_like_their_files_and_private_unless_public() -> None:
    for name, recipe in PAPERS.items():
        assert recipe.name == name
        assert recipe.privacy.enabled != recipe.data.public
        assert recipe.training.batch is not None


def test_every_recipe_of_a_paper_belongs_to_a_row() -> None:
    assert set(PAPERS) == {row.recipe for row in every_row().values()} - {
        "dead-leaves",
        "drawn-mixture",
    }


def test_the_noise_agrees_with_what_papers_state() -> None:
    """De et al.: noise 3 for 3066 steps, 9.4 for 2000 steps of WRN-40-4, both at epsilon 8."""
    stated = {"scale-norm/wrn-16-4-cifar10-eps8": 3.0, "equivariant/wrn-40-4-cifar10-eps8": 9.4}
    for name, sigma in stated.items():
        assert setup.plan(recipes.find(name), 50_000).noise.multiplier == pytest.approx(
            sigma, abs=0.01
        )


def test_the_number_of_rows_that_people_are_told() -> None:
    count = len(every_row())
    for page in ("README.md", "CHANGELOG.md"):
        assert f"{count} rows" in (Path(__file__).parents[2] / page).read_text(encoding="utf-8")
