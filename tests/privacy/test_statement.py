"""What a guarantee means in plain words, for small and for large epsilon."""

from __future__ import annotations

import math
import re

import pytest

from sfumato.privacy.statement import Facts, meaning, statement


def facts(epsilon: float) -> Facts:
    return Facts(
        private=True, epsilon={"pld": epsilon, "rdp": epsilon}, budget=epsilon, delta=1e-5,
        accountant="pld", examples=1000, batch=100.0, rate=0.1, steps=10, noise_multiplier=1.0,
        rule="scaled to norm at most C = 1", views=1, averaged=False, seeded=False,
        train_metrics=False, validation=0, data="digits", version="0",
    )  # fmt: skip


@pytest.mark.parametrize(
    ("epsilon", "said"),
    [
        (0.5, "almost as likely: the odds of any conclusion about that image change by at most"),
        (1.0, "e^ε = 2.72, except with a chance of about δ = 1e-05."),
        (3.0, "a chance of at most e^ε/(1 + e^ε) = 95.3 %."),
        (8.0, "at most e^ε = 2\u202f990 times as likely with any one image in the training set"),
        (8.0, "e^ε/(1 + e^ε) = 99.967 %. Both hold except with a chance of about δ = 1e-05."),
        (12.0, "By itself, ε = 12 promises next to nothing about any one image."),
        (12.0, "by a factor of 163\u202f000 (e^ε)"),
        (1e9, "by a factor of more than 10²¹ (e^ε)"),
    ],
)
def test_the_words_follow_epsilon(epsilon: float, said: str) -> None:
    words = meaning(epsilon, "1e-05")
    assert said in words
    assert ("almost as likely" in words) == (epsilon <= 1)
    assert ("next to nothing" in words) == (epsilon > 10)
    assert "infinity" not in words and len(re.findall(r"\.( |$)", words)) <= 3


@pytest.mark.parametrize("epsilon", [1.01, 2.0, 3.99, 4.0, 7.5, 10.0])
def test_the_chance_of_a_right_guess_is_not_rounded_down(epsilon: float) -> None:
    found = re.search(r"= ([\d.]+) %", meaning(epsilon, "1e-05"))
    assert found
    chance = math.exp(epsilon) / (1 + math.exp(epsilon))
    assert chance <= float(found[1]) / 100 < min(1.0, chance + 0.001)


@pytest.mark.parametrize("epsilon", [0.5, 8.0, 1e9])
def test_the_statement_says_the_same(epsilon: float) -> None:
    text = statement(facts(epsilon))
    words = meaning(epsilon, "1e-05")
    assert f"In plain words: {words[0].lower()}{words[1:]}" in text.replace("\n", " ")
    start = text.index("In plain words")
    assert all(len(line) < 100 for line in text[start : text.index("\n\n", start)].splitlines())
