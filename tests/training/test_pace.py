"""A run that takes hours on a CPU says what takes less."""

from __future__ import annotations

import pytest
import torch

from sfumato import recipes
from sfumato.training.trouble import about_pace

CPU = torch.device("cpu")


def test_hours_on_a_cpu_have_a_way_out() -> None:
    chosen = recipes.for_data("my scans")
    (remark,) = about_pace(chosen, 9000.0, CPU, channels=3)
    assert "About 2.5 hours" in remark
    assert remark.endswith("sfumato train last-layer --data 'my scans' --epsilon 8")
    (remark,) = about_pace(chosen, 9000.0, CPU, channels=1)
    assert remark.endswith("sfumato train wavelets --data 'my scans' --epsilon 8")
    last = recipes.find("last-layer")
    assert last.start.train == ["head"] and last.start.source == "dead-leaves"
    for quick in (last, recipes.find("wavelets")):
        assert quick.training.views == 1 and not quick.augment.flip, "layers would not run once"


@pytest.mark.parametrize(
    ("seconds", "device", "trained"),
    [(60.0, "cpu", ()), (9000.0, "cuda", ()), (9000.0, "cpu", ("head",))],
)
def test_nothing_is_said_otherwise(seconds: float, device: str, trained: tuple[str, ...]) -> None:
    chosen = recipes.for_data("scans").replace({"start.train": list(trained)})
    assert about_pace(chosen, seconds, torch.device(device), channels=3) == []
