"""Balanced draws: the rate of every class, what one example can change, and what is accounted."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from sfumato.errors import UserError
from sfumato.privacy.accounting.accountants import Step, epsilon
from sfumato.privacy.accounting.group_privacy import group_epsilon
from sfumato.privacy.numerics.randomness import Randomness
from sfumato.privacy.sampling import PoissonSampler
from sfumato.recipe import Recipe
from sfumato.run import Run
from sfumato.training.balance import Balance, check_balance, relative_rates
from sfumato.training.classifier import read_weights
from tiny_run import train_run

LABELS = np.arange(600, dtype=np.int64) % 3
RANDOMNESS = Randomness.from_seed(0)


def steps(balance: list[float], count: int, labels: np.ndarray = LABELS) -> np.ndarray:
    """Which examples enter each of some steps at q = 0.2, `(count, examples)`."""
    sampler = PoissonSampler(len(labels), 0.2 * len(labels))
    chosen = Balance(balance, labels, RANDOMNESS)
    found = np.zeros((count, len(labels)), dtype=bool)
    for step in range(count):
        draw = sampler.whole_draw(RANDOMNESS.stream(step, "sample"))
        found[step, chosen.stay(draw, step).numpy()] = True
    return found


def test_every_class_has_its_rate() -> None:
    found = steps([1.0, 4.0, 2.0], 400)
    for label, rate in enumerate((0.05, 0.2, 0.1)):
        trials = found[:, label == LABELS].size
        spread = math.sqrt(rate * (1 - rate) / trials)
        assert abs(found[:, label == LABELS].mean() - rate) < 5 * spread


def test_examples_enter_independently_of_each_other() -> None:
    found = steps([1.0, 4.0, 2.0], 400).astype(float)
    rates = np.array([0.05, 0.2, 0.1])[LABELS]
    sums = (found - rates).sum(1)
    variance = (rates * (1 - rates)).sum()  # Of a sum of independent trials.
    assert abs(sums.var() / variance - 1) < 5 * math.sqrt(2 / 400)
    lagged = np.mean(sums[1:] * sums[:-1]) / variance
    assert abs(lagged) < 5 / math.sqrt(400)


@settings(max_examples=25, deadline=None, derandomize=True)
@given(
    balance=st.lists(st.floats(1e-3, 1e3), min_size=3, max_size=3),
    changed=st.integers(0, 599),
    label=st.integers(0, 2),
)
def test_the_class_of_one_example_decides_about_that_example_alone(
    balance: list[float], changed: int, label: int
) -> None:
    labels = LABELS.copy()
    labels[changed] = label
    one, other = steps(balance, 3), steps(balance, 3, labels)
    others = np.arange(600) != changed
    assert (one[:, others] == other[:, others]).all()
    whole = steps([], 3)
    assert (whole | one == whole).all(), "only drawn examples can enter a step"


@pytest.mark.parametrize(("accountant", "sigma", "count"), [("pld", 2.5, 60), ("rdp", 1.0, 30)])
def test_the_highest_rate_accounts_for_every_class(
    accountant: Any, sigma: float, count: int
) -> None:
    rates = (0.001, 0.03, 0.1, 0.2, 0.201)
    spent = [epsilon([Step(q, sigma, count)], delta=1e-5, accountant=accountant) for q in rates]
    assert spent == sorted(spent) and spent[0] < spent[-1]


def test_the_highest_rate_accounts_for_several_examples_of_different_classes() -> None:
    together = group_epsilon([Step(0.1, 1.5, 20)], delta=1e-5, size=2)
    assert group_epsilon([Step(0.03, 1.5, 20)], delta=1e-5, size=2) < together


def test_canaries_without_a_class_always_stay() -> None:
    draw = torch.tensor([0, 1, 2, 600, 601])
    kept = Balance([1e-6, 1e-6, 1.0], LABELS, RANDOMNESS).stay(draw, 1)
    assert kept.tolist() == [2, 600, 601]
    assert Balance([1e-6, 1e-6, 1.0], LABELS, RANDOMNESS).stay(draw[:0], 1).tolist() == []


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"data.balance": [1.0, 2.0]}, "2 numbers, but there are 3 classes"),
        ({"data.balance": [1.0, 0.0, 2.0]}, "has the number 0"),
        ({"data.balance": [1.0, -1.0, 2.0]}, "has the number -1"),
        ({"data.balance": [1.0, math.nan, 2.0]}, "has the number nan"),
        ({"data.balance": [1.0, 1.0, 2.0], "data.unit": "patient"}, "may be of several"),
    ],
)
def test_mistakes_are_sentences(changes: dict[str, Any], words: str) -> None:
    with pytest.raises(UserError, match=words):
        check_balance(Recipe().replace(changes), ("a", "b", "c"))


def test_rates_are_relative_to_the_highest() -> None:
    assert relative_rates([1, 4, 2]) == (0.25, 1.0, 0.5)
    assert relative_rates([]) == ()


def test_equal_rates_change_nothing() -> None:
    draw = torch.arange(0, 600, 7)
    assert torch.equal(Balance([3.0] * 3, LABELS, RANDOMNESS).stay(draw, 1), draw)
    assert torch.equal(Balance([], LABELS, RANDOMNESS).stay(draw, 1), draw)


def test_a_run_accounts_for_the_highest_rate_and_says_so(tmp_path: Path) -> None:
    balance = [9.0, *[1.0] * 9]
    folder = train_run(tmp_path / "run", {"training.seed": 0, "data.balance": balance})
    run = Run(folder)
    assert run.problems == () and run.guarantee is not None
    assert run.guarantee.balance == (1.0, *[1 / 9] * 9)
    assert run.guarantee.rate == run.header["rate"] == 64 / 1438
    steps = [Step(64 / 1438, run.header["sigma"], 4)]
    assert run.spent == pytest.approx(epsilon(steps, delta=1e-5))
    assert "probability q times 1, 0.111, 0.111" in run.statement
    path = folder / "guarantee.json"
    content = json.loads(path.read_text())
    path.write_text(json.dumps(content | {"balance": []}))
    assert Run(folder).problems


@pytest.mark.slow
def test_balance_reaches_the_steps_of_a_run(tmp_path: Path) -> None:
    found = {}
    for name, balance in (("plain", []), ("equal", [3.0] * 10), ("other", [9.0, *[1.0] * 9])):
        folder = train_run(tmp_path / name, {"training.seed": 0, "data.balance": balance})
        found[name] = read_weights(folder / "model.safetensors")[1]
    plain = found["plain"]
    assert all(torch.equal(plain[name], found["equal"][name]) for name in plain)
    assert not all(torch.equal(plain[name], found["other"][name]) for name in plain)
    assert "balance of classes" not in Run(tmp_path / "plain").statement
