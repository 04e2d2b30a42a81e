from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sfumato import recipes
from sfumato.errors import UserError
from sfumato.recipe import (
    Recipe,
    differences,
    from_dict,
    loads,
    parse_setting,
    setting_names,
)


@pytest.mark.parametrize("name", recipes.packaged())
def test_packaged_recipes_are_valid_and_survive_a_round_trip(name: str) -> None:
    recipe = recipes.find(name)
    assert loads(recipe.to_toml(), where="copy") == recipe
    assert recipe.about


def test_every_setting_has_a_meaning() -> None:
    for section in ("data", "model", "privacy", "optimizer", "augment", "training"):
        for f in dataclasses.fields(getattr(Recipe(), section)):
            assert f.metadata["help"]


text = st.text(st.characters(blacklist_categories=("Cs",)), max_size=20)


@given(
    name=text,
    about=text,
    lr=st.floats(1e-6, 1e6),
    epsilon=st.floats(1e-3, 1e3),
    steps=st.none() | st.integers(1, 10**6),
    seed=st.none() | st.integers(0, 2**31),
    flip=st.booleans(),
    options=st.dictionaries(
        st.sampled_from(["width", "depth", "norm_order"]),
        st.booleans()
        | st.integers(-5, 5)
        | st.floats(-5, 5)
        | text
        | st.lists(st.integers(), max_size=3),
    ),
)
def test_any_recipe_survives_toml(
    name: str, about: str, lr: float, epsilon: float, steps: int | None, seed: int | None,
    flip: bool, options: dict[str, object],
) -> None:  # fmt: skip
    recipe = from_dict(
        {
            "name": name,
            "about": about,
            "optimizer": {"lr": lr},
            "privacy": {"epsilon": epsilon},
            "augment": {"flip": flip},
            "model": {"options": options},
            "training": {k: v for k, v in {"steps": steps, "seed": seed}.items() if v is not None},
        }
    )
    again = loads(recipe.to_toml(), where="copy")
    assert again == recipe


@pytest.mark.parametrize(
    ("setting", "words"),
    [
        ("optimizer.lrr=1", ["optimizer.lrr", "Did you mean 'lr'"]),
        ("lr=1", ["Did you mean 'optimizer.lr'"]),
        ("optmizer.lr=1", ["optmizer", "Did you mean 'optimizer'"]),
        ("training.lr=1", ["Did you mean 'optimizer.lr'"]),
        ("privacy.epsilon=0", ["greater than 0", "0.0"]),
        ("privacy.epsilon=-3", ["greater than 0"]),
        ("privacy.epsilon=nan", ["greater than 0"]),
        ("privacy.delta=1", ["less than 1"]),
        ("training.views=0", ["at least 1", "K"]),
        ("training.batch=0", ["at least 1"]),
        ("training.batch=2.5", ["a whole number"]),
        ("privacy.enabled=1", ["true or false"]),
        ("training.steps=true", ["a whole number"]),
        ("optimizer.name=sdg", ["sgd, adam", "Did you mean 'sgd'"]),
        ("optimizer.lr=fast", ["a number"]),
        ("data=cifar10", ["section"]),
        ("optimizer.lr.x=1", ["single setting"]),
    ],
)
def test_what_cannot_be_is_refused_with_a_hint(setting: str, words: list[str]) -> None:
    with pytest.raises(UserError) as caught:
        Recipe().replace(dict([parse_setting(setting)]))
    for word in words:
        assert word in str(caught.value)


def test_settings_that_exclude_each_other() -> None:
    with pytest.raises(UserError, match=r"steps or training\.epochs"):
        Recipe().replace({"training.steps": 3, "training.epochs": 2.0})
    with pytest.raises(UserError, match="momentum"):
        Recipe().replace({"optimizer.nesterov": True})


def test_steps_take_the_place_of_epochs() -> None:
    by_epochs = Recipe().replace({"training.epochs": 2.0})
    by_steps = by_epochs.replace({"training.steps": 3})
    assert by_steps.training.steps == 3 and by_steps.training.epochs is None
    again = by_steps.replace({"training.epochs": 4.0})
    assert again.training.steps is None and again.training.epochs == 4.0
    assert again.replace({"optimizer.lr": 0.5}).training.epochs == 4.0


def test_set_takes_text_without_quotes_and_toml_values() -> None:
    assert parse_setting("model.name=wrn-16-4") == ("model.name", "wrn-16-4")
    assert parse_setting("optimizer.lr = 2e-3") == ("optimizer.lr", 2e-3)
    assert parse_setting("augment.flip=true") == ("augment.flip", True)
    assert parse_setting("model.options.layout=[1, 2]") == ("model.options.layout", [1, 2])
    with pytest.raises(UserError, match=r"optimizer\.lr=2"):
        parse_setting("optimizer.lr")


def test_differences_name_the_setting_and_both_values() -> None:
    a, b = Recipe(), Recipe().replace({"optimizer.lr": 3.0, "training.seed": 1})
    assert differences(a.to_dict(), b.to_dict()) == [
        "optimizer.lr was 2.0 and is now 3.0",
        "training.seed was None and is now 1",
    ]


def test_every_setting_name_resolves() -> None:
    plain = Recipe().to_dict()
    for name in setting_names():
        section, key = name.split(".")
        assert section in plain
        assert hasattr(getattr(Recipe(), section), key)


def test_unknown_recipe_names_the_nearest(tmp_path: object) -> None:
    with pytest.raises(UserError, match="Did you mean 'digits'"):
        recipes.find("digit")


def test_a_broken_file_is_a_sentence(tmp_path) -> None:  # type: ignore[no-untyped-def]
    path = tmp_path / "r.toml"
    path.write_text("[optimizer\nlr = 1")
    with pytest.raises(UserError, match="not valid TOML"):
        recipes.find(str(path))


def test_data_of_your_own_gets_the_general_recipe() -> None:
    assert recipes.for_data("./scans").data.name == "./scans"
    assert recipes.for_data("./scans").name == "images"
    assert recipes.for_data("digits").name == "digits"


def test_a_rate_for_normalised_gradients_is_not_taken_without_privacy() -> None:
    bare = {"privacy.enabled": False}
    usual = recipes.for_data("./scans")
    ordinary = recipes.for_data("./scans", bare).optimizer
    assert (usual.optimizer.name, ordinary.name) == ("sgd", "nadam")
    assert ordinary.lr < 0.01 and ordinary.effective_noise is None
    assert recipes.for_data("./scans", bare | {"optimizer.lr": 0.1}) == usual, "who sets it knows"
    assert recipes.for_data("digits", bare) == recipes.for_data("digits")


def test_another_network_for_data_of_your_own_does_not_start_from_this_ones_weights() -> None:
    usual = recipes.for_data("./scans")
    assert usual.start.source == "dead-leaves"
    assert recipes.for_data("./scans", {"model.name": usual.model.name}) == usual
    other = recipes.for_data("./scans", {"model.name": "resnet9"})
    assert (other.name, other.start.source) == ("from-scratch", "")
    started = {"model.name": "resnet9", "start.source": "runs/leaves"}
    assert recipes.for_data("./scans", started).name == "images"
    assert recipes.for_data("./public", {"data.public": True}).name == "from-scratch"


def test_whole_numbers_may_be_written_with_an_exponent() -> None:
    assert Recipe(name="x").replace({"training.steps": 1e3}).training.steps == 1000


def test_the_smallest_file_of_the_page_on_recipes() -> None:
    """It names data and network, and is complete."""
    page = (Path(__file__).parents[1] / "docs" / "recipes.md").read_text(encoding="utf-8")
    text = page.partition("```toml\n")[2].partition("```")[0]
    recipe = loads(text, where="scans.toml")
    assert (recipe.data.name, recipe.model.name) == ("./scans", "tanh-cnn")
    assert recipe.privacy.epsilon == 3 and "ε = 3" in page.partition("```toml\n")[0]
