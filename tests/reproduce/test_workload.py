"""The work of runs, from their recipes."""

from __future__ import annotations

import pytest
from tiny_rows import row

from sfumato import recipes
from sfumato.recipe import Recipe
from sfumato.reproduce.lookup import every_row
from sfumato.reproduce.workload import Workload, training_images, workload_of


def work(recipe: Recipe, **changes: object) -> Workload:
    found = workload_of(recipe.replace({k.replace("__", "."): v for k, v in changes.items()}))
    assert found is not None
    return found


@pytest.mark.parametrize(
    ("name", "images"),
    [
        ("shoe-fit/source-max-100-cifar100", 50_000),
        ("shoe-fit/source-half-rand-50-cifar100", 25_000),
        ("shoe-fit/source-min-rand-10-cifar100", 5_000),
        ("shoe-fit/tanh-mnist-eps2.93", 60_000),
    ],
)
def test_the_images_that_a_recipe_means(name: str, images: int) -> None:
    assert training_images(recipes.find(name)) == images


def test_steps_and_rows_are_those_of_the_recipe() -> None:
    tiny = row("a").recipe_for("published")
    found = work(tiny, training__views=3, training__self_mix=2)
    assert (found.steps, found.rows, found.size, found.channels) == (6, 500, (8, 8), 1)
    found = work(tiny, training__steps=None, training__epochs=5.0, data__size=16)
    assert (found.steps, found.pixels) == (round(5 * 1438 / 100), 256)
    drawn = work(recipes.find("dead-leaves"))
    assert (drawn.size, drawn.channels, drawn.steps, drawn.batch) == ((32, 32), 3, 12_000, 768)
    assert workload_of(tiny.replace({"data.name": "./mine"})) is None


def test_one_compilation_serves_runs_of_one_kind_alone() -> None:
    tiny = row("a").recipe_for("published")
    same = work(tiny, privacy__epsilon=1.0, training__steps=3, optimizer__lr=0.1, training__seed=1)
    assert same.kind == work(tiny).kind
    for change in (
        {"training__batch": 50}, {"training__views": 2}, {"data__size": 16},
        {"model__options": {"filters": 8}}, {"privacy__enabled": False},
        {"training__precision": "float32"},
    ):  # fmt: skip
        assert work(tiny, **change).kind != work(tiny).kind, change
    named = workload_of(tiny, precision="float32")
    assert named is not None and named.precision == "float32"


@pytest.mark.slow
def test_the_work_of_every_row_is_known() -> None:
    for one in every_row().values():
        for setting in one.settings:
            assert workload_of(one.recipe_for(setting)) is not None, one.id
