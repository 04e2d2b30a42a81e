"""Recipe files that extend others: what they inherit, and what is refused with a sentence."""

from __future__ import annotations

from pathlib import Path

import pytest

from sfumato import recipes
from sfumato.errors import UserError
from sfumato.recipe import loads
from sfumato.training.pipeline import train


def write(path: Path, text: str) -> str:
    path.parent.mkdir(exist_ok=True)
    path.write_text(text)
    return str(path)


def test_a_file_states_only_what_differs_from_a_packaged_recipe(tmp_path: Path) -> None:
    text = 'extends = "digits"\nname = "mine"\noptimizer.lr = 0.5\nmodel.options.width = 3'
    mine, digits = recipes.find(write(tmp_path / "mine.toml", text)), recipes.find("digits")
    changes = {"name": "mine", "about": "", "optimizer.lr": 0.5, "model.options.width": 3}
    assert mine == digits.replace(changes)


def test_name_and_description_are_not_inherited(tmp_path: Path) -> None:
    mine = recipes.find(write(tmp_path / "mine.toml", 'extends = "digits"'))
    assert (mine.name, mine.about) == ("custom", "")


def test_paths_are_relative_to_the_file_and_chains_go_on(tmp_path: Path) -> None:
    write(tmp_path / "base.toml", 'extends = "digits"\nmodel.options = {width = 3, depth = 2}')
    write(tmp_path / "run" / "recipe.toml", 'extends = "../base.toml"\n[optimizer]\nlr = 0.25')
    top = write(tmp_path / "sub" / "top.toml", 'extends = "../run"\nmodel.options.depth = 5')
    found = recipes.find(top)
    assert found.optimizer.lr == 0.25
    assert found.model.options == {"width": 3, "depth": 5}
    assert found.privacy == recipes.find("digits").privacy
    assert loads(found.to_toml(), where="a copy, which stands alone") == found


def test_steps_take_the_place_of_inherited_epochs(tmp_path: Path) -> None:
    base = write(tmp_path / "base.toml", "[training]\nepochs = 3")
    steps = write(tmp_path / "steps.toml", f'extends = "{base}"\ntraining.steps = 7')
    epochs = write(tmp_path / "epochs.toml", f'extends = "{steps}"\ntraining.epochs = 9')
    assert recipes.find(steps).training.epochs is None
    assert (recipes.find(epochs).training.steps, recipes.find(epochs).training.epochs) == (None, 9)


def test_a_former_name_can_be_extended(tmp_path: Path) -> None:
    former = write(tmp_path / "mine.toml", 'extends = "003/1-baseline"')
    assert recipes.find(former).model == recipes.find("optimizer-report/1-baseline").model


@pytest.mark.parametrize(
    ("files", "words"),
    [
        ({"a": 'extends = "a.toml"'}, ["a.toml extends", "cannot extend itself"]),
        (
            {"a": 'extends = "b.toml"', "b": 'extends = "sub/../c.toml"', "c": 'extends="a.toml"'},
            ["b.toml extends", "cannot extend itself", "Take `extends` out"],
        ),
        ({"a": 'extends = "digit"'}, ["extends 'digit'", "Did you mean 'digits'?"]),
        ({"a": 'extends = "basis.toml"', "base": ""}, ["Did you mean 'base.toml'?", "relative"]),
        ({"a": "extends = 3"}, ["'extends' in", "not 3"]),
        ({"a": f'extends = "{"x" * 5000}"'}, ["neither a packaged recipe nor a file"]),
        ({"a": 'extends = "b.toml"', "b": "[optimizer\n"}, ["b.toml is not valid TOML"]),
        ({"a": 'extends = "b.toml"', "b": "[optimizer]\nlr = 'x'"}, ["optimizer.lr' in", "b.toml"]),
        ({"a": 'extends = "digits"\ndata = "x"'}, ["'data' in", "a.toml must be a section"]),
        ({"a": 'extends = "digits"\nmodel.options.' + ".".join("a" * 5000) + " = 1"}, ["nested"]),
    ],
)  # fmt: skip
def test_what_cannot_be_extended_is_refused(
    tmp_path: Path, files: dict[str, str], words: list[str]
) -> None:
    (tmp_path / "sub").mkdir()
    for name, text in files.items():
        write(tmp_path / f"{name}.toml", text)
    with pytest.raises(UserError) as caught:
        recipes.find(str(tmp_path / "a.toml"))
    for word in words:
        assert word in str(caught.value)


def test_a_run_keeps_the_complete_recipe(tmp_path: Path) -> None:
    text = 'extends = "digits"\ntraining = {steps = 1, seed = 0}'
    recipe = recipes.find(write(tmp_path / "mine.toml", text))
    train(recipe, out=tmp_path / "made", device="cpu")
    stated = (tmp_path / "made" / "recipe.toml").read_text(encoding="utf-8")
    assert loads(stated, where="the run, without `extends`") == recipe
