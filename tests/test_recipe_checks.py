"""Settings that are refused together, with the sentence that says so."""

from __future__ import annotations

from typing import Any

import pytest

from sfumato.errors import UserError
from sfumato.recipe import Recipe, loads, parse_setting, setting_text
from sfumato.settings import Phase
from sfumato.training.run_guarantee import recipe_digest

TWO: list[dict[str, Any]] = [{"share": 0.2, "train": ["head"], "lr": 4, "clip": 0.5}, {}]


def test_phases_survive_toml_and_the_command_line() -> None:
    recipe = Recipe().replace({"training.phases": TWO})
    assert recipe.training.phases == [
        Phase(share=0.2, train=["head"], lr=4.0, clip=0.5), Phase()
    ]  # fmt: skip
    assert '\n[[training.phases]]\nshare = 0.2\ntrain = ["head"]\n' in recipe.to_toml()
    assert loads(recipe.to_toml(), where="copy") == recipe
    plain = recipe.to_dict()["training"]["phases"]
    assert plain == [{"share": 0.2, "train": ["head"], "lr": 4.0, "clip": 0.5}, {"train": []}]
    name, value = parse_setting(f"training.phases={setting_text(plain)}")
    assert Recipe().replace({name: value}) == recipe


def test_a_recipe_without_phases_is_what_it_was() -> None:
    """Its digest is that of a recipe from before there were any."""
    plain = Recipe()
    assert "phases" not in plain.to_dict()["training"]
    assert plain.replace({"training.phases": []}) == plain
    one, two = ({"recipe": r.to_dict()} for r in (plain, plain.replace({"training.phases": TWO})))
    assert recipe_digest(one) != recipe_digest(two)
    assert plain.replace({"training.phases": TWO}).replace({"training.phases": None}) == plain


def test_a_file_replaces_the_phases_of_the_recipe_that_it_extends() -> None:
    base = Recipe().replace({"training.phases": TWO})
    other = {"training": {"phases": [{"steps": 3, "train": ["head"]}, {}]}}
    assert base.extended_by(other, where="file").training.phases == [
        Phase(steps=3, train=["head"]), Phase()
    ]  # fmt: skip
    assert base.extended_by({"training": {"phases": []}}, where="file").training.phases is None


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"training.phases": [{}]}, "a single phase, which is the whole run"),
        ({"training.phases": [{}, {}]}, r"Phase 1 .*needs a length"),
        ({"training.phases": [{"share": 0.1, "steps": 2}, {}]}, r"Phase 1 .*not both"),
        ({"training.phases": [{"share": 0.1}, {"steps": 2}]}, r"Phase 2 .*is the last"),
        ({"training.phases": [{"share": 0.5}, {"share": 0.5}, {}]}, r"add up to 1 .*less than 1"),
        ({"training.phases": [{"share": 1.5}, {}]}, r"phases\[1\]\.share.* less than 1"),
        ({"training.phases": [{"steps": 0}, {}]}, r"phases\[1\]\.steps.* at least 1"),
        ({"training.phases": [{"trained": ["head"]}, {}]}, r"\.trained'.*Did you mean 'train'"),
        ({"training.phases": {"share": 0.5}}, r"a list of tables \(\[\[training\.phases\]\]\)"),
        ({"training.phases": "head"}, "a list of tables"),
        ({"training.phases": TWO, "optimizer.schedule": "plateau"}, r"schedule = 'plateau'"),
        ({"training.phases": TWO, "training.early_stop": 1.0}, r"training\.early_stop"),
        ({"training.phases": TWO, "privacy.clip_decay": 2.0}, r"clip_decay changes C.*choose one"),
        ({"training.phases": TWO, "privacy.clipping": "automatic"}, r"has no C: choose one"),
        ({"training.phases": TWO, "privacy.clipping": "adaptive"}, r"finds C by itself: choose"),
    ],
)  # fmt: skip
def test_phases_that_cannot_be_are_refused(changes: dict[str, Any], words: str) -> None:
    with pytest.raises(UserError, match=words):
        Recipe().replace(changes)
