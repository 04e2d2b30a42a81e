"""Recipes and rows by their present names and by those of version 0.1."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

import pytest

from sfumato import recipes
from sfumato.recipes import current_name, former_names
from sfumato.reproduce import results_file
from sfumato.reproduce.lookup import every_row, find

RECORDED: dict[str, str] = json.loads(
    Path(__file__).with_name("settings_of_0_1.json").read_text(encoding="utf-8")
)
"""A hash of the settings of the recipes of version 0.1, by their names then.

`last-layer` and `wavelets` have changed since; `test_measured_recipes.py` has their settings.
"""


@pytest.mark.parametrize("name", RECORDED)
def test_a_recipe_has_the_settings_with_which_results_were_recorded(name: str) -> None:
    found = recipes.find(name).changed()
    kept = {key: value for key, value in found.items() if key not in ("name", "about")}
    digest = hashlib.sha256(json.dumps(kept, sort_keys=True).encode()).hexdigest()
    assert digest[:12] == RECORDED[name]
    assert recipes.find(name) == recipes.find(current_name(name))
    assert recipes.find(name).name == current_name(name)


def test_each_recorded_result_belongs_to_a_row() -> None:
    entries = results_file.read(Path(__file__).parents[2] / "results")
    assert len(entries) > 150
    assert {entry.row for entry in entries} <= set(every_row())
    assert {entry.recipe for entry in entries} <= set(recipes.packaged())


def test_papers_rows_and_patterns_are_found_by_their_former_names() -> None:
    assert find("004") == find("equivariant")
    assert find("002/fashion-tanh") == find("shoe-fit/fashion-tanh")
    assert find("001/*cifar10*") == find("scale-norm/*cifar10*")
    assert find("003/1-baseline") == find("paper-003/1-baseline")
    assert former_names("equivariant") == ["004"] and not former_names("sfumato")


def test_a_file_of_ones_own_may_lie_in_a_folder_with_a_number(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("004").mkdir()
    Path("004/mine.toml").write_text('name = "mine"')
    assert recipes.find("004/mine.toml").name == "mine"
