"""Comparison of what a run's statement and weights claim with its ledger.

*Guarantee:* The statement is the text whose digest the weights hold, if they hold one, and the
epsilon, delta, number of images and exposures that are claimed are those of the ledger.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from sfumato.errors import UserError
from sfumato.privacy.accounting.accountants import Step, merge
from sfumato.privacy.accounting.exposure import Exposure
from sfumato.recipe import Recipe
from sfumato.training.classifier import STATEMENT, TENSORS, statement_digest
from sfumato.training.initial.start import Origin

AGREE = 1e-3
"""Relative difference up to which two epsilons count as equal."""

_HEADLINE = re.compile(r"\*\*\(([\d.]+(?:e[+-]?\d+)?), ([\d.e+-]+)\)-differential privacy")


def of_statement(
    text: str, content: Mapping[str, Any], header: Mapping[str, Any], epsilon: float
) -> list[str]:
    """Differences between a private run's statement and its ledger, a sentence part each.

    Args:
        text: The statement.
        content: What the weights file says about itself; empty without one.
        header: The ledger's first line.
        epsilon: What the ledger comes to, by the accountant that calibrated the run.
    """
    found = []
    if STATEMENT in content and content[STATEMENT] != statement_digest(text):
        found.append("the statement is not the text that the weights hold the digest of")
    headline = _HEADLINE.search(text)
    if headline is None:
        found.append("the statement has no (ε, δ) that can be read")
    elif abs(epsilon - float(headline[1])) > AGREE * float(headline[1]):
        found.append(f"the statement says {float(headline[1]):.4g}")
    delta = f"{header['delta']:g}" if "delta" in header else ""
    if headline is not None and delta and headline[2] != delta:
        found.append(f"the statement says δ = {headline[2]} and the ledger {delta}")
    for name, value in (("δ", delta), ("training images N", str(header.get("examples", "")))):
        row = re.search(rf"^\| {name} \| (.*) \|$", text, flags=re.MULTILINE)
        if value and row and row[1] != value:
            found.append(f"the statement says {name} = {row[1]} and the ledger {value}")
    return found


def of_weights(
    content: Mapping[str, Any],
    recipe: Recipe,
    origin: Origin,
    history: Sequence[Step],
    header: Mapping[str, Any],
    epsilon: Mapping[str, float],
) -> list[str]:
    """Differences between what a private run's weights state and its ledger, a part each.

    Args:
        content: What the weights file says about itself.
        recipe: The ledger's recipe.
        origin: Where the ledger says that the first weights came from.
        history: The ledger's own steps.
        header: The ledger's first line.
        epsilon: What all steps come to, by accountant.
    """
    found = []
    if STATEMENT in content and TENSORS not in content:
        found.append("the weights hold no digest of their tensors")
    stated = content.get("guarantee")
    if not isinstance(stated, dict) or stated.get("private") is not True:
        return [*found, "the weights do not state that they are private"]
    if "delta" in header and stated.get("delta", header["delta"]) != header["delta"]:
        found.append(f"the weights state δ = {stated['delta']} and the ledger {header['delta']:g}")
    if stated.get("unit", "one image") != "one image":
        found.append(f"the weights state the unit '{stated['unit']}'")
    costs = stated.get("epsilon")
    for name, value in costs.items() if isinstance(costs, dict) else ():
        is_number = type(value) in (int, float)
        if name in epsilon and (not is_number or abs(epsilon[name] - value) > AGREE * abs(value)):
            shown = f"{value:.4f}" if is_number else repr(value)
            found.append(f"the weights state {shown} by {name.upper()}")
    if "exposures" not in stated and STATEMENT not in content:
        return found  # Older versions did not write them.
    try:
        exposures = tuple(map(Exposure.from_dict, stated["exposures"]))
        own = exposures[0]
        seeded = recipe.training.seed is not None or origin.seeded
        same = (
            own.steps == tuple(merge([*origin.before, *history]))
            and (own.public, own.drawn) == (recipe.data.public, False)
            and (own.seeded, own.delta) == (seeded, float(header.get("delta", own.delta)))
            and exposures[1:] == origin.exposures
        )
    except (KeyError, IndexError, TypeError, ValueError, AttributeError, OverflowError, UserError):
        same = False
    if not same:
        found.append("the weights state other exposures of data than follow from the ledger")
    return found
