"""The guarantee of a run, derived from its recipe and ledger, and compared with its files.

*Guarantee:* What a private run's files state is accepted only if the same follows from the ledger:
epsilon by every accountant, delta, the steps, the number of images, the sampling rate, the
exposures of data, and whatever else the recipe and the ledger decide.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, cast

from sfumato.errors import UserError
from sfumato.io import json_lines
from sfumato.privacy import chapters
from sfumato.privacy.accounting.accountants import AccountantName, Step, merge
from sfumato.privacy.accounting.exposure import Exposure
from sfumato.privacy.guarantee import Guarantee, current_versions
from sfumato.recipe import Recipe
from sfumato.training import files, schedules
from sfumato.training.classifier import STATEMENT, TENSORS, statement_digest
from sfumato.training.initial.start import Origin, known_as
from sfumato.training.recipe_data import split_in_words

AGREE = 1e-3
"""Relative difference up to which two epsilons count as equal."""

_NOT_IN_LEDGER = (
    "clipping", "validation", "start", "versions", "digests", "taken", "exposures",
    "checked_at_end",
)  # fmt: skip
_SENTENCES = ("split", "looked")


def guarantee_of(
    recipe: Recipe,
    header: Mapping[str, Any],
    history: Sequence[Step],
    *,
    taken: int | None = None,
    **facts: Any,
) -> Guarantee:
    """The guarantee that follows from a run's recipe and ledger.

    Args:
        recipe: The recipe that the ledger states.
        header: The ledger's first line.
        history: The ledger's steps.
        taken: Steps taken; as many as are counted if None.
        facts: Attributes that only the run itself knows; `data_name` is the data set's own name,
            `frozen` a sentence on the parameters that were not trained.
    """
    p, t = recipe.privacy, recipe.training
    origin = Origin.of(header)
    steps = merge(history)
    counted = sum(step.count for step in steps)
    named = facts.pop("data_name", None) or known_as(recipe.data.name)
    start = " ".join(filter(None, [origin.words, facts.pop("frozen", "")]))
    examples, rate = int(header.get("examples", 0)), float(header.get("rate", 0.0))
    facts = {
        "data": recipe.data.name,
        "public": recipe.data.public,
        "start": start,
        "taken": counted if taken is None else taken,
        "versions": current_versions(),
        "digests": {"recipe": recipe_digest(recipe)},
        **facts,
    }
    if not p.enabled:
        seeded = t.seed is not None or origin.seeded
        own = Exposure(named, recipe.data.public, delta=p.delta, seeded=seeded)
        return Guarantee(private=False, exposures=(own, *origin.exposures), **facts)
    facts = {
        "clipping": f"{p.clipping}, C = {p.clip:g}",
        "validation": None if recipe.data.validation else 0,
        "checked_at_end": False,
        **facts,
    }
    return Guarantee.accounted(
        steps=steps,
        delta=float(header.get("delta", p.delta)),
        accountant=cast(AccountantName, p.accountant),
        start_steps=origin.before,
        known_as=named,
        others=origin.exposures,
        budget=p.epsilon,
        examples=examples,
        batch=round(rate * examples, 6),
        rate=rate,
        planned=int(header.get("steps", counted)),
        clip=float(header.get("clip", p.clip)),
        views=t.views + t.self_mix,
        averaged=bool(t.average),
        seeded=t.seed is not None,
        noise_source=str(header.get("noise", {}).get("source") or ""),
        train_metrics=t.train_metrics,
        split=split_in_words(recipe.data),
        looked=schedules.looks(recipe),
        rates_looked=recipe.optimizer.schedule == "plateau",
        tuned=p.tuned,
        start_seeded=origin.seeded,
        start_names=origin.also,
        start_looked=origin.looked,
        **facts,
    )


def recipe_digest(recipe: Recipe) -> str:
    """SHA-256 of a recipe's settings, whatever file they are in."""
    content = json.dumps(recipe.to_dict(), sort_keys=True, ensure_ascii=False)
    return hashlib.sha256(content.encode()).hexdigest()


def read(folder: Path, header: Mapping[str, Any], *, finished: bool) -> Guarantee | None:
    """The guarantee in a run folder; None in those of versions that wrote none.

    Args:
        folder: The run.
        header: The ledger's first line.
        finished: True if the run came to its end.

    Raises:
        UserError: If it cannot be read, or is missing.
    """
    path = folder / files.GUARANTEE
    if path.is_file():
        try:
            content = json_lines.parse(path.read_bytes())
        except (OSError, ValueError) as error:
            raise UserError(f"{path} cannot be read: {error}.") from None
        return Guarantee.from_dict(content, where=str(path))
    number = header.get("version")
    if finished and type(number) is int and number >= files.VERSION:
        raise UserError(
            f"{folder} holds no {files.GUARANTEE}, which runs of this version have: it was removed."
        )
    return None


def differences(
    follows: Guarantee,
    *,
    stated: Guarantee | None,
    weights: Mapping[str, Any],
    statement: str,
) -> list[str]:
    """Differences between what a run's files state and what its ledger says.

    Args:
        follows: The guarantee that follows from the ledger.
        stated: The one of guarantee.json; None for a run of a version that wrote none.
        weights: The description in the weights file; empty without one.
        statement: The text of the statement; empty without one.

    Returns:
        Parts of a sentence.
    """
    if not follows.private:
        claimed = stated is not None and stated.private
        return [f"{files.GUARANTEE} states that it is private"] if claimed else []
    found = [] if stated is None else _of_file(stated, follows, weights)
    if weights:
        found += _of_weights(weights, follows)
    if statement:
        found += _of_statement(statement, stated, follows, weights)
    return found


def _of_file(stated: Guarantee, follows: Guarantee, weights: Mapping[str, Any]) -> list[str]:
    a, b = stated.to_dict(), follows.to_dict()
    skipped = (*_NOT_IN_LEDGER, *(_SENTENCES if stated.versions != follows.versions else ()))
    found = [
        f"{files.GUARANTEE} states {name} = {_shown(a[name])} and the ledger {_shown(b[name])}"
        for name in a
        if name not in skipped and not _same(a[name], b[name], loose=name.endswith("epsilon"))
    ]
    if not _same(_own_first(a["exposures"]), _own_first(b["exposures"])):
        found.append(f"{files.GUARANTEE} states other exposures of data than the ledger")
    if not stated.start.startswith(follows.start):
        found.append(f"{files.GUARANTEE} states another start than the ledger")
    if stated.digests.get("recipe") != follows.digests["recipe"]:
        found.append(f"{files.GUARANTEE} holds the digest of another recipe")
    if weights.get(TENSORS, stated.digests.get("weights")) != stated.digests.get("weights"):
        found.append(f"{files.GUARANTEE} holds the digest of other weights")
    return found


def _of_weights(weights: Mapping[str, Any], follows: Guarantee) -> list[str]:
    found = []
    if STATEMENT in weights and TENSORS not in weights:
        found.append("the weights hold no digest of their tensors")
    stated = weights.get("guarantee")
    if not isinstance(stated, dict) or stated.get("private") is not True:
        return [*found, "the weights do not state that they are private"]
    summary = follows.summary()
    exposures = summary.pop("exposures")
    if stated.get("delta", follows.delta) != follows.delta:
        found.append(f"the weights state δ = {stated['delta']} and the ledger {follows.delta:g}")
    if stated.get("unit", summary["unit"]) != summary["unit"]:
        found.append(f"the weights state the unit '{stated['unit']}'")
    costs = stated.get("epsilon")
    for name, value in costs.items() if isinstance(costs, dict) else ():
        if name in follows.epsilon and not _same(value, summary["epsilon"][name], loose=True):
            found.append(f"the weights state {_shown(value)} by {name.upper()}")
    if "exposures" not in stated and STATEMENT not in weights:
        return found  # Older versions did not write them.
    if not _same(_own_first(stated.get("exposures")), _own_first(exposures)):
        found.append("the weights state other exposures of data than follow from the ledger")
    return found


def _of_statement(
    text: str, stated: Guarantee | None, follows: Guarantee, weights: Mapping[str, Any]
) -> list[str]:
    found = []
    if STATEMENT in weights and weights[STATEMENT] != statement_digest(text):
        found.append("the statement is not the text that the weights hold the digest of")
    if stated is not None and stated.versions == follows.versions:
        if text != chapters.statement(stated):
            found.append(f"the statement is not the text that follows from {files.GUARANTEE}")
    elif chapters.epsilon_and_delta(follows) not in text:
        found.append(f"the statement does not say {chapters.epsilon_and_delta(follows)}")
    return found


def _own_first(exposures: Any) -> Any:
    """Exposures without the names and sentences of the first, which the ledger does not hold."""
    if not isinstance(exposures, list) or not exposures or not isinstance(exposures[0], dict):
        return None
    named = ("data", "also", "looked")
    return [{k: v for k, v in exposures[0].items() if k not in named}, *exposures[1:]]


def _same(a: Any, b: Any, *, loose: bool = False) -> bool:
    if isinstance(a, dict) and isinstance(b, dict):
        return a.keys() == b.keys() and all(
            _same(a[key], b[key], loose=loose or key == "epsilon") for key in a
        )
    if isinstance(a, list) and isinstance(b, list):
        return len(a) == len(b) and all(_same(x, y, loose=loose) for x, y in zip(a, b, strict=True))
    if loose and all(type(value) in (int, float) for value in (a, b)):
        return agree(a, b)
    return type(a) is type(b) and bool(a == b)


def agree(a: float, b: float) -> bool:
    """Tell whether two epsilons are equal but for rounding."""
    return bool(a == b or abs(a - b) <= AGREE * abs(b))


def _shown(value: Any) -> str:
    return f"{value:.6g}" if type(value) is float else repr(value)
