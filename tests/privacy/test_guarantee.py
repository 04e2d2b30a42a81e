"""A guarantee as data: read back as it was written, refused when anything in it is not so."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from dataclasses import fields, replace
from typing import Any

import pytest
import torch
from torch import nn

from sfumato import privacy as dp
from sfumato.errors import UserError
from sfumato.privacy.accounting import accountants
from sfumato.privacy.accounting.accountants import Step
from sfumato.privacy.accounting.exposure import Exposure
from sfumato.privacy.accounting.group_privacy import group_epsilon
from sfumato.privacy.audit.result import AuditResult
from sfumato.privacy.guarantee import SCHEMA, Guarantee, current_versions
from sfumato.privacy.statement_chapters import statement

STEPS, BEFORE = (Step(0.1, 1.5, 4), Step(0.1, 1.0, 6)), (Step(0.2, 2.0, 5),)


def example(**others: Any) -> Guarantee:
    return Guarantee.accounted(
        steps=STEPS, delta=1e-5, accountant="rdp", start_steps=BEFORE, known_as="scans",
        others=(Exposure("cifar100", public=True),), data="/data/scans", budget=9.0, examples=1000,
        batch=100.0, rate=0.1, taken=8, planned=10, clipping="flat", clip=1.0, start="A start.",
        start_names=("old",), looked=("The end.",), versions=current_versions(),
        digests={"recipe": "ab", "weights": "cd"}, **others,
    )  # fmt: skip


def test_every_epsilon_follows_from_all_steps() -> None:
    g, history = example(), [*BEFORE, *STEPS]
    for name in accountants.ACCOUNTANTS:
        assert g.epsilon[name] == accountants.epsilon(history, delta=1e-5, accountant=name)
    assert g.spent == g.epsilon["rdp"] and g.counted == 10
    assert g.group_epsilon[3] == group_epsilon(history, delta=1e-5, size=3)
    assert g.start_epsilon == accountants.epsilon(BEFORE, delta=1e-5, accountant="rdp")
    own, other = g.exposures
    assert (own.data, own.also, other.data) == ("scans", ("old",), "cifar100")
    assert own.steps == accountants.merge(history) and own.epsilon == g.epsilon


@pytest.mark.parametrize(
    "g",
    [
        example(),
        example(unit="patient"),
        Guarantee(data="open", private=False, public=True),
        replace(example(), group_epsilon={2: 9.0, 3: 20.0, 5: math.inf, 10: math.inf}),
    ],
)
def test_what_is_written_is_read_back(g: Guarantee) -> None:
    text = json.dumps(g.to_dict(), allow_nan=False)
    assert Guarantee.from_dict(json.loads(text)) == g


def test_exposures_and_the_statement_name_the_unit_of_steps() -> None:
    other = Exposure("clinic", steps=BEFORE, epsilon={"pld": 1.0, "rdp": 1.5}, delta=1e-5)
    for unit, said in (("patient", " at δ = 1e-05 for one image."), ("image", " at δ = 1e-05.")):
        g = replace(example(unit=unit), exposures=(*example(unit=unit).exposures, other))
        assert g.exposures[0].unit == unit and said in " ".join(statement(g).split())
        assert ("unit" in g.exposures[0].to_dict()) == (unit != "image")


def test_the_json_says_what_an_auditor_needs() -> None:
    content = example().to_dict()
    assert content["schema"] == SCHEMA
    assert content["steps"] == [
        {"q": 0.1, "sigma": 1.5, "count": 4}, {"q": 0.1, "sigma": 1.0, "count": 6},
    ]  # fmt: skip
    assert content["mechanism"] == "Poisson-subsampled Gaussian"
    assert "zero-out" in content["relation"] and content["unit"] == "image"
    named = {f.name for f in fields(Guarantee)} - {"canaries", "audit"}  # Of audits alone.
    assert set(content) == {"schema", "relation", "mechanism", *named}


DAMAGE: dict[str, Callable[[dict[str, Any]], object]] = {
    "it has no 'delta'": lambda c: c.pop("delta"),
    "unknown field 'gamma'": lambda c: c.update(gamma=1),
    "'examples' cannot be read": lambda c: c.update(examples=1000.5),
    "'delta' cannot be read": lambda c: c.update(delta=math.nan),
    "'private' cannot be read": lambda c: c.update(private="yes"),
    "'steps' cannot be read": lambda c: c["steps"][0].pop("sigma"),
    "taken a whole number of times": lambda c: c["steps"][0].update(count=0),
    "'epsilon' cannot be read": lambda c: c["epsilon"].update(pld="3"),
    "lacks an accountant": lambda c: c["epsilon"].pop("rdp"),
    "lacks a size": lambda c: c["group_epsilon"].pop("5"),
    "its relation": lambda c: c.update(relation="none"),
    "its mechanism": lambda c: c.update(mechanism="Laplace"),
    "'exposures' cannot be read": lambda c: c.update(exposures=[1]),
    "'versions' cannot be read": lambda c: c.update(versions=None),
    "no object of schema": lambda c: c.update(schema=None),
}


@pytest.mark.parametrize("words", DAMAGE)
def test_damage_is_a_sentence(words: str) -> None:
    content = example().to_dict()
    DAMAGE[words](content)
    with pytest.raises(UserError, match="is damaged or was edited") as caught:
        Guarantee.from_dict(content, where="guarantee.json")
    assert words in str(caught.value)


@pytest.mark.parametrize("content", [None, [], "x", 3, {}])
def test_other_json_is_refused(content: Any) -> None:
    with pytest.raises(UserError, match="damaged"):
        Guarantee.from_dict(content)


def test_a_newer_schema_asks_for_an_update() -> None:
    with pytest.raises(UserError, match="newer version of sfumato"):
        Guarantee.from_dict(example().to_dict() | {"schema": SCHEMA + 1, "more": 1})


def test_weights_hold_no_path_of_the_data() -> None:
    assert "/data/scans" not in json.dumps(example().summary())
    assert set(example().summary()) == {"private", "epsilon", "delta", "unit", "exposures"}
    assert set(Guarantee(data="x", private=False).summary()) == {"private", "exposures"}


def test_names_of_users_become_no_markup() -> None:
    text = statement(replace(example(), data="a|b**c`"))
    assert r"'a\|b\*\*c\`'" in text


def test_an_own_loop_has_the_same_guarantee_as_data() -> None:
    sampler = dp.PoissonSampler(examples=50, batch=10)
    private = dp.PrivateGradients(
        nn.Linear(3, 2), sampler=sampler, clipping=dp.Flat(0.5), noise=dp.GaussianNoise(1.0),
        check=False,
    )  # fmt: skip
    private.accumulate(torch.randn(4, 3), torch.zeros(4, dtype=torch.long))
    private.release()
    g = private.guarantee(delta=1e-3, data="scans")
    assert g.own_loop and g.unit == "example" and not g.checked
    assert (g.examples, g.batch, g.rate, g.clip, g.taken) == (50, 10.0, 0.2, 0.5, 1)
    assert g.steps == (Step(0.2, 1.0, 1),)
    assert g.spent == private.epsilon(delta=1e-3)
    assert Guarantee.from_dict(json.loads(json.dumps(g.to_dict()))) == g
    assert private.statement(delta=1e-3, data="scans") == statement(g)


def test_the_guarantee_of_an_audited_run_has_its_result() -> None:
    audit = AuditResult(
        canaries=500, included=240, guesses=100, correct=80, score="a score", epsilon=1.25,
        epsilon_f_dp=1.0, epsilon_one_run=0.5, claim=3.0, delta=1e-5, accountant="pld",
        p_value=0.4, confidence=0.95, auroc=0.7,
    )  # fmt: skip
    g = replace(example(), canaries=500, audit=audit)
    assert Guarantee.from_dict(json.loads(json.dumps(g.to_dict()))) == g
    text = " ".join(statement(g).split())
    assert "500 canaries, 240 of them in" in text and "ε is at least 1.250" in text
    assert "does not contradict it" in text and "not the one to publish" in text
    caught = replace(g, audit=replace(audit, epsilon=3.5, p_value=0.01))
    assert "**The bound is above the claim" in " ".join(statement(caught).split())
    with pytest.raises(UserError, match="audit"):
        Guarantee.from_dict(g.to_dict() | {"audit": {"epsilon": 3.0}})
