"""A run's statement beside epsilon: how its images were split, and whether delta is small."""

from __future__ import annotations

from pathlib import Path

import pytest
from short_runs import halves, recipe

from sfumato.settings import Data
from sfumato.training import run_folder
from sfumato.training.pipeline import train
from sfumato.training.recipe_data import split_in_words
from sfumato.training.reporter import Silent


class Ear(Silent):
    """Keeps what is said."""

    def __init__(self) -> None:
        self.heard: list[str] = []

    def say(self, message: str) -> None:
        self.heard.append(message)


@pytest.mark.parametrize(("delta", "warned"), [(5e-4, True), (1e-4, False)])
def test_a_large_delta_is_warned_of_on_the_screen_and_in_the_statement(
    tmp_path: Path, delta: float, warned: bool
) -> None:
    halves(tmp_path)
    ear = Ear()
    chosen = recipe(tmp_path, "scans", {"privacy.delta": delta})
    train(chosen, out=tmp_path / "r", device="cpu", reporter=ear)
    said = (tmp_path / "r" / run_folder.STATEMENT).read_text()
    assert any("δ is large for" in message for message in ear.heard) == warned
    assert ("δ is large for" in said) == warned
    assert split_in_words(chosen.data) in said


def test_how_images_were_split_is_said_as_it_was() -> None:
    assert "fixed for this data set" in split_in_words(Data(name="CIFAR-10"))
    assert "moves no other" in split_in_words(Data(name="./scans"))
    before = split_in_words(Data(name="./scans.npz", split_rule="stratified"))
    assert "moves others" in before and "does not cover" in before


@pytest.mark.parametrize("schedule", ["plateau", "constant"])
def test_learning_rates_that_follow_validation_are_not_called_covered(
    tmp_path: Path, schedule: str
) -> None:
    halves(tmp_path)
    changes = {"optimizer.schedule": schedule, "data.validation": 0.2}
    train(recipe(tmp_path, "scans", changes), out=tmp_path / "r", device="cpu")
    said = " ".join((tmp_path / "r" / run_folder.STATEMENT).read_text().split())
    covered = said.split("only use released gradients: ")[1].split(".")[0]
    assert "the optimizer" in covered
    assert ("learning rates" in covered) == (schedule == "constant")
    assert ("The learning rate, which fell" in said) == (schedule == "plateau")
