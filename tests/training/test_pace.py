"""A run that takes hours on a CPU says what takes less."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from sfumato import recipes
from sfumato.training import trouble
from sfumato.training.pipeline import train
from sfumato.training.reporter import Silent
from sfumato.training.trouble import about_pace

CPU = torch.device("cpu")
COLOUR = np.random.default_rng(0).integers(0, 255, (3, 8, 8), np.uint8)
GREY = COLOUR[:1]


class Listening(Silent):
    """Hears what is said."""

    def __init__(self) -> None:
        self.said: list[str] = []

    def say(self, message: str) -> None:
        self.said.append(message)


def test_a_long_run_on_a_cpu_gets_advice() -> None:
    chosen = recipes.for_data("my scans")
    (remark,) = about_pace(chosen, 9000.0, CPU, COLOUR)
    assert "About 2.5 hours" in remark
    assert remark.endswith("sfumato train last-layer --data 'my scans' --epsilon 8")
    (remark,) = about_pace(chosen, 9000.0, CPU, GREY)
    assert [remark] == about_pace(chosen, 9000.0, CPU, GREY.repeat(3, 0))
    assert remark.endswith("sfumato train wavelets --data 'my scans' --epsilon 8")
    last = recipes.find("last-layer")
    assert last.start.train == ["head"] and last.start.source == "dead-leaves"
    for quick in (last, recipes.find("wavelets")):
        assert quick.training.views == 1 and not quick.augment.flip, "layers would not run once"


@pytest.mark.parametrize(
    ("seconds", "device", "trained"),
    [(60.0, "cpu", ()), (9000.0, "cuda", ()), (9000.0, "cpu", ("head",))],
)
def test_no_advice_is_given_for_short_runs_gpus_and_heads(
    seconds: float, device: str, trained: tuple[str, ...]
) -> None:
    chosen = recipes.for_data("scans").replace({"start.train": list(trained)})
    assert about_pace(chosen, seconds, torch.device(device), COLOUR) == []


def test_grey_images_in_three_equal_channels_are_grey(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rng = np.random.default_rng(0)
    for label in ("ill", "well"):
        (tmp_path / "scans" / label).mkdir(parents=True)
        for number in range(12):
            grey = Image.fromarray(rng.integers(0, 255, (8, 8)).astype(np.uint8))
            grey.save(tmp_path / "scans" / label / f"{number}.png")
    monkeypatch.setattr(trouble, "_LONG", 0.0)
    watching = Listening()
    chosen = recipes.for_data(str(tmp_path / "scans"), {"model.name": "tanh-cnn"})
    changes = {"model.name": "tanh-cnn", "data.channels": 3, "data.cache": False}
    steps = {"training.steps": 12, "training.batch": 4, "privacy.delta": 1e-3}
    train(chosen.replace(changes | steps), out=tmp_path / "run", device="cpu", reporter=watching)
    assert any("sfumato train wavelets" in words for words in watching.said)
