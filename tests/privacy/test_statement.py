"""What a guarantee means in plain words, for small and for large epsilon."""

from __future__ import annotations

import math
import platform
import re
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from sfumato import version
from sfumato.errors import UserError
from sfumato.privacy.accounting import accountants
from sfumato.privacy.accounting.accountants import Step
from sfumato.privacy.accounting.group_privacy import SIZES, group_epsilon
from sfumato.privacy.accounting.selection import Selection
from sfumato.privacy.guarantee import Guarantee, current_versions
from sfumato.privacy.statement import (
    delta_warning,
    epsilon_warning,
    meaning,
    threat_model,
    upwards,
)
from sfumato.privacy.statement_chapters import statement

STEPS = (Step(0.1, 1.0, 10),)


def facts(epsilon: float, steps: tuple[Step, ...] = STEPS, **others: Any) -> Guarantee:
    """A guarantee of these steps that claims this epsilon."""
    found = Guarantee.accounted(
        steps=steps, delta=1e-5, data="digits", budget=epsilon, examples=1000, batch=100.0,
        rate=0.1, taken=10, clipping="scaled to norm at most C = 1", clip=1.0,
        versions=current_versions(), **others,
    )  # fmt: skip
    return replace(found, epsilon={"pld": epsilon, "rdp": epsilon})


@pytest.mark.parametrize(
    ("epsilon", "said"),
    [
        (0.5, "is almost as likely: it is at most e^ε = 1.65 times as likely with any one image"),
        (1.0, "e^ε = 2.72 times as likely with any one image in the training set as without it"),
        (1.0, "plus δ = 1e-05, and the other way round."),
        (1.0, "a chance of at most (e^ε + δ)/(1 + e^ε) = 73.2 %."),
        (3.0, "a chance of at most (e^ε + δ)/(1 + e^ε) = 95.3 %."),
        (8.0, "at most e^ε = 2\u202f990 times as likely with any one image in the training set"),
        (8.0, "(e^ε + δ)/(1 + e^ε) = 99.967 %."),
        (12.0, "By itself, ε = 12 promises next to nothing about any one image."),
        (12.0, "by a factor of 163\u202f000 (e^ε), plus δ = 1e-05."),
        (1e9, "by a factor of more than 10²¹ (e^ε)"),
    ],
)
def test_the_meaning_in_words_depends_on_epsilon(epsilon: float, said: str) -> None:
    words = meaning(epsilon, 1e-5)
    assert said in words
    assert ("almost as likely" in words) == (epsilon <= 1)
    assert ("next to nothing" in words) == (epsilon > 10)
    assert "infinity" not in words and len(re.findall(r"\.( |$)", words)) <= 3


@pytest.mark.parametrize("delta", [1e-5, 1e-3])
@pytest.mark.parametrize("epsilon", [0.1, 1.01, 2.0, 3.99, 4.0, 7.5, 10.0])
def test_the_chance_of_a_right_guess_is_not_rounded_down(epsilon: float, delta: float) -> None:
    found = re.search(r"= ([\d.]+) %", meaning(epsilon, delta))
    assert found
    chance = (math.exp(epsilon) + delta) / (1 + math.exp(epsilon))
    assert chance <= float(found[1]) / 100 < chance + 0.001


def test_delta_is_not_called_the_chance_that_epsilon_fails() -> None:
    """Of a Gaussian mechanism at epsilon 1 the loss exceeds epsilon with a chance of 16 delta."""
    sigma, delta = 3.7303, 1e-5
    assert accountants.epsilon([Step(1.0, sigma)], delta=delta) == pytest.approx(1, abs=1e-3)
    exceeds = stats.norm.sf(sigma - 0.5 / sigma)
    assert exceeds > 10 * delta
    for epsilon in (0.5, 3.0, 12.0):
        assert not re.search(r"except|fails|chance of (about )?δ", meaning(epsilon, delta))


@pytest.mark.parametrize("epsilon", [0.5, 8.0, 1e9])
def test_the_statement_holds_the_meaning_in_words(epsilon: float) -> None:
    text = statement(facts(epsilon))
    words = meaning(epsilon, 1e-5)
    assert f"In plain words: {words[0].lower()}{words[1:]}" in text.replace("\n", " ")
    start = text.index("In plain words")
    assert all(len(line) < 100 for line in text[start : text.index("\n\n", start)].splitlines())


def test_every_statement_has_the_row_of_groups() -> None:
    one = accountants.epsilon(STEPS, delta=1e-5)
    values = [upwards(group_epsilon(STEPS, delta=1e-5, size=k), 3) for k in (1, *SIZES)]
    for text, unit in ((statement(facts(one)), "images"), (own(STEPS), "examples")):
        assert f"| {unit} of one person | 1 | 2 | 3 | 5 | 10 |" in text
        assert f"| ε | {' | '.join(values)} |" in text
        assert "roughly" not in text
    hopeless = statement(facts(3.0, (Step(0.1, 0.2, 1000),)))
    assert "| over 100 | over 100 |" in hopeless


def test_groups_count_schedules_and_the_start_too() -> None:
    before, plan = (Step(0.2, 2.0, 5),), (Step(0.1, 1.5, 4), Step(0.1, 1.0, 6))
    text = statement(facts(3.0, plan, start_steps=before))
    expected = group_epsilon([*before, *plan], delta=1e-5, size=3)
    assert f"| {upwards(expected, 3)} |" in text.split("## Several images of one person")[1]


@pytest.mark.parametrize(
    "words",
    [
        "zero-out", "sees the weights after every single step", "Other releases", "Timing.",
        "size and channels of the images", "float64", "rounded to a fixed grid",
        f"PyTorch {version.of('torch')}", f"Python {platform.python_version()}", "dp-accounting",
        "NumPy", "sfumato",
    ],
)  # fmt: skip
def test_the_statement_says_what_a_reader_must_know(words: str) -> None:
    assert words in " ".join(statement(facts(3.0)).split())


def test_a_seed_is_called_not_private() -> None:
    text = " ".join(statement(replace(facts(3.0), seeded=True)).split())
    assert "Not private: anyone who knows or guesses the seed can subtract the noise" in text
    assert "with a key of 256 bits" not in text


@pytest.mark.parametrize(("examples", "warned"), [(1000, False), (10_000, False), (10_001, True)])
def test_a_delta_too_large_for_so_many_images_is_warned_of(examples: int, warned: bool) -> None:
    text = statement(replace(facts(3.0), examples=examples))
    assert ("δ is large for" in text) == warned
    assert bool(delta_warning(1e-5, examples)) == warned


def own(steps: tuple[Step, ...], *, seeded: bool = False) -> str:
    found = Guarantee.accounted(
        steps=steps, delta=1e-5, data="scans", unit="example", own_loop=True, examples=1000,
        batch=100.0, rate=0.1, taken=10, clipping="scaled", seeded=seeded,
    )  # fmt: skip
    return statement(found)


def test_an_own_loop_with_a_seed_is_told_that_it_is_not_private() -> None:
    assert "Not private" in own(STEPS, seeded=True)
    assert "Not private" not in own(STEPS) and "stream cipher ChaCha20" in own(STEPS)


@pytest.mark.parametrize("unit", ["image", "example"])
def test_the_attacker_is_said_to_be_unable_to_break_the_cipher(unit: str) -> None:
    said = " ".join(threat_model(unit).split())
    assert "cannot break the cipher ChaCha20" in said
    assert "unlimited" not in said


@pytest.mark.parametrize("noise", [None, 4.0])
def test_the_best_of_several_runs_states_the_cost_of_the_choice(noise: float | None) -> None:
    selection = Selection(10.0, "poisson", noise)
    steps, before = (Step(0.01, 2.0, 100),), (Step(0.01, 2.0, 7),)
    found = Guarantee.accounted(
        steps=steps, start_steps=before, delta=1e-5, accountant="rdp", selection=selection,
        data="digits", examples=1000, start="From a run.",
    )  # fmt: skip
    total = selection.epsilon(steps, delta=1e-5, before=before)
    assert found.epsilon == {"rdp": total} and found.spent == total
    assert found.group_epsilon[2] == found.epsilon_of(2) > 2 * total
    assert found.run_epsilon["rdp"] == accountants.epsilon(
        [*before, *steps], delta=1e-5, accountant="rdp"
    )
    assert Guarantee.from_dict(found.to_dict()) == found
    text = " ".join(statement(found).split())
    assert f"**({upwards(total)}, 1e-05)-differential privacy**" in text
    assert "(Poisson distribution, mean 10); ε above counts that" in text
    assert f"{upwards(found.run_epsilon['pld'], places=4)} by PLD" in text
    assert "with mean 10.0 and shape infinity, by RDP" in text
    assert ("declared to be public" in text) == (noise is None)
    assert ("Gaussian noise of standard deviation 4" in text) == (noise is not None)
    assert "PLD of a mixture of Gaussians" not in text


@pytest.mark.parametrize(
    "edited",
    [
        {"mean": 0.5},
        {"mean": "10"},
        {"mean": True},
        {"distribution": "uniform"},
        {"distribution": ["poisson"]},
        {"score_noise": -1.0},
        {"score_noise": "4"},
        {"runs": 7},
    ],
)
def test_an_edited_choice_is_refused(edited: dict[str, Any]) -> None:
    content = Guarantee.accounted(
        steps=STEPS, delta=1e-5, accountant="rdp", selection=Selection(10.0), data="digits"
    ).to_dict()
    with pytest.raises(UserError, match="damaged or was edited"):
        Guarantee.from_dict({**content, "selection": {**content["selection"], **edited}})
    with pytest.raises(UserError):
        Selection.of({"selection": {**content["selection"], **edited}})


@pytest.mark.parametrize(
    ("epsilon", "places", "text"),
    [
        (0.0, 3, "0"), (2.681e-10, 3, "2.7e-10"), (9.99e-10, 2, "1e-09"), (0.00099, 3, "0.00099"),
        (0.000991, 3, "0.001"), (0.0012, 3, "0.002"), (7.99941, 3, "8.000"),
    ],
)  # fmt: skip
def test_a_small_epsilon_is_not_printed_as_zero(epsilon: float, places: int, text: str) -> None:
    assert upwards(epsilon, places=places) == text
    assert float(text) >= epsilon


@given(st.floats(1e-9, 1e9))
def test_a_stated_epsilon_is_never_below_the_spent_one(epsilon: float) -> None:
    assert epsilon <= float(upwards(epsilon)) <= epsilon * 1.00101


def test_epsilons_that_are_round_already_stay() -> None:
    assert [upwards(e) for e in (3.0, 2.999298, 0.5, 1234.5)] == ["3", "3", "0.5", "1235"]


def test_a_budget_that_promises_nothing_is_said() -> None:
    assert not epsilon_warning(20.0)
    assert "Epsilon 1e+09 promises next to nothing" in epsilon_warning(1e9)
