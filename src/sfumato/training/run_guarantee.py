"""The guarantee of a run, derived from its recipe and ledger, and compared with its files.

*Guarantee:* The numbers in a private run's files are accepted only if the same follows from the
ledger: epsilon by every accountant, delta, the steps, the number of images, the sampling rate, the
exposures of data, and whatever else the recipe and the ledger decide.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, cast

from sfumato import version
from sfumato.data.catalogue import DRAWN
from sfumato.errors import UserError
from sfumato.io import json_lines
from sfumato.io.json_lines import number
from sfumato.models import is_library_name
from sfumato.privacy import statement_chapters
from sfumato.privacy.accounting.accountants import AccountantName, Step, merge
from sfumato.privacy.accounting.exposure import Exposure
from sfumato.privacy.accounting.selection import Selection
from sfumato.privacy.guarantee import Guarantee, current_versions
from sfumato.recipe import Recipe
from sfumato.text import GIVEN
from sfumato.training import phases, run_folder, schedules
from sfumato.training.balance import relative_rates
from sfumato.training.classifier import STATEMENT, TENSORS, read_weights, statement_digest
from sfumato.training.initial.start import Origin, known_as
from sfumato.training.recipe_data import split_in_words

_AGREE = 1e-3
"""Relative difference up to which two epsilons count as equal."""

_NOT_IN_LEDGER = (
    "clipping", "validation", "start", "versions", "digests", "taken", "checked_at_end",
    "audit",
)  # fmt: skip
_SENTENCES = ("split", "looked", "phases")


def guarantee_of(
    recipe: Recipe,
    header: Mapping[str, Any],
    history: Sequence[Step],
    *,
    taken: int | None = None,
    named: str = "",
    frozen: str = "",
    **facts: Any,
) -> Guarantee:
    """The guarantee that follows from a run's recipe and ledger.

    Args:
        recipe: The recipe that the ledger states.
        header: The ledger's first line.
        history: The ledger's steps.
        taken: Steps taken; as many as are counted if None.
        named: The data set's own name, for `exposures`; that of the recipe if empty.
        frozen: A sentence on parameters that were not trained.
        facts: Other attributes that only the run itself knows.
    """
    p, t = recipe.privacy, recipe.training
    origin, selection = Origin.of(header), Selection.of(header)
    steps = merge(history)
    counted = sum(step.count for step in steps)
    named = named or known_as(recipe.data.name)
    start = " ".join(filter(None, [_given(recipe), origin.words, frozen]))
    examples, rate = int(header.get("examples", 0)), float(header.get("rate", 0.0))
    facts = {
        "data": recipe.data.name,
        "public": recipe.data.public,
        "batchnorm_to": recipe.model.batchnorm_to or "",
        "phases": phases.in_words(recipe, int(header.get("steps", counted))),
        "start": start,
        "taken": counted if taken is None else taken,
        "versions": current_versions() | _library(recipe),
        "digests": {"recipe": recipe_digest(header)},
        **facts,
    }
    if not p.enabled:
        seeded = t.seed is not None or origin.seeded
        own = Exposure(
            named, recipe.data.public, delta=p.delta, seeded=seeded,
            drawn=recipe.data.name in DRAWN,
        )  # fmt: skip
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
        selection=selection,
        known_as=named,
        others=origin.exposures,
        budget=p.epsilon,
        examples=examples,
        batch=round(rate * examples, 6),
        rate=rate,
        planned=int(header.get("steps", counted)),
        clip=float(header.get("clip", p.clip)),
        unit=recipe.data.unit,
        images_per_unit=1 if recipe.data.unit == "image" else recipe.data.per_unit,
        balance=relative_rates(recipe.data.balance),
        views=t.views + t.self_mix,
        averaged=bool(t.average),
        seeded=t.seed is not None,
        noise_source=str(header.get("noise", {}).get("source") or ""),
        train_metrics=t.train_metrics,
        split=split_in_words(recipe.data),
        looked=schedules.looks(recipe),
        rates_looked=recipe.optimizer.schedule == "plateau",
        tuned=p.tuned,
        canaries=int(header.get("canaries", {}).get("count", 0)),
        start_seeded=origin.seeded,
        start_names=origin.also,
        start_looked=origin.looked,
        **facts,
    )


def _library(recipe: Recipe) -> dict[str, str]:
    """The version of the library that the model comes from, by its name."""
    package = recipe.model.name.partition(":")[0]
    return {package: version.of(package)} if is_library_name(recipe.model.name) else {}


def _given(recipe: Recipe) -> str:
    """A sentence on a model that was given as an object; empty for one that a name stands for."""
    name = recipe.model.name
    if not name.startswith(GIVEN):
        return ""
    return (
        f"The model is {name.removeprefix(GIVEN)}, given as an object in Python. Epsilon does not "
        "cover initial weights that it came with."
    )


def recipe_digest(header: Mapping[str, Any]) -> str:
    """SHA-256 of the recipe in a ledger's first line, as JSON with sorted keys."""
    content = json.dumps(header.get("recipe", {}), sort_keys=True, ensure_ascii=False)
    return hashlib.sha256(content.encode()).hexdigest()


def _read(folder: Path, header: Mapping[str, Any], *, finished: bool) -> Guarantee | None:
    """The guarantee in a run folder; None for versions that wrote none.

    Args:
        folder: The run.
        header: The ledger's first line.
        finished: True if the run came to its end.

    Raises:
        UserError: If it cannot be read, or is missing.
    """
    path = folder / run_folder.GUARANTEE
    if path.is_file():
        try:
            content = json_lines.parse(path.read_bytes())
        except (OSError, ValueError) as error:
            raise UserError(f"{path} cannot be read: {error}.") from None
        return Guarantee.from_dict(content, where=str(path))
    version = header.get("version")
    if finished and type(version) is int and version >= run_folder.VERSION:
        raise UserError(
            f"{folder} holds no {run_folder.GUARANTEE}, which runs of this version have: it was "
            "removed."
        )
    return None


def judged(
    folder: Path,
    recipe: Recipe,
    header: Mapping[str, Any],
    history: Sequence[Step],
    *,
    final: Mapping[str, Any],
    statement: str,
) -> tuple[Guarantee | None, list[str]]:
    """The guarantee of a run folder; None, with the reasons, if it cannot be established.

    *Guarantee:* It follows from the ledger, and every file that states one states the same.

    Args:
        folder: The run.
        recipe: Its recipe.
        header: The ledger's first line; empty without a ledger.
        history: The ledger's steps.
        final: The last line of a finished run's metrics; empty before.
        statement: The text of its statement; empty before.
    """
    problems: list[str] = []
    weights: Mapping[str, Any] = {}
    stated = None
    there = (folder / run_folder.WEIGHTS).is_file()
    try:
        weights = read_weights(folder / run_folder.WEIGHTS)[0] if there else {}
    except UserError as error:
        problems.append(f"{error} No guarantee is stated.")
    try:
        stated = _read(folder, header, finished=there and bool(statement))
    except UserError as error:
        problems.append(f"{error} No guarantee is stated.")
    if not header:
        return None, problems
    if (words := _cut(history, stated)) and recipe.privacy.enabled:
        return None, [*problems, words]
    ended, reported = number(final, "step"), number(final, "epsilon")
    taken = None if ended is None else int(ended)
    follows = guarantee_of(recipe, header, history, taken=taken)
    wrong = _differences(follows, stated=stated, weights=weights, statement=statement)
    if follows.private and reported is not None and not _agree(follows.spent, reported):
        wrong.append(f"the run reported {reported:.4f} when it ended")
    cost = f"epsilon {follows.spent:.4f}" if follows.private else "a run without privacy"
    problems += [
        f"The ledger comes to {cost}, but {words}: the folder holds files of different runs, or "
        "one was edited. No guarantee is stated."
        for words in wrong
    ]
    return (None if problems else stated or follows), problems


def _cut(history: Sequence[Step], stated: Guarantee | None) -> str:
    """A sentence on a ledger with fewer steps than the guarantee counts; empty for any other."""
    there = sum(step.count for step in history)
    counted = 0 if stated is None else sum(step.count for step in stated.steps)
    if there >= counted:
        return ""
    return (
        f"The ledger ends after step {there}, but {run_folder.GUARANTEE} counts {counted} steps: "
        "the end of the ledger was cut off, or the folder holds files of different runs. No "
        "guarantee is stated."
    )


def _differences(
    follows: Guarantee,
    *,
    stated: Guarantee | None,
    weights: Mapping[str, Any],
    statement: str,
) -> list[str]:
    """Differences between a run's files and its ledger.

    Args:
        follows: The guarantee that follows from the ledger.
        stated: The guarantee in guarantee.json; None for a version that wrote none.
        weights: The description in the weights file; empty without one.
        statement: The text of the statement; empty without one.

    Returns:
        Parts of a sentence.
    """
    if not follows.private:
        claimed = stated is not None and stated.private
        return [f"{run_folder.GUARANTEE} states that it is private"] if claimed else []
    found = [] if stated is None else _of_file(stated, follows, weights)
    if weights:
        found += _of_weights(weights, follows)
    if statement:
        found += _of_statement(statement, stated, follows, weights)
    return found


def _of_file(stated: Guarantee, follows: Guarantee, weights: Mapping[str, Any]) -> list[str]:
    skipped = _NOT_IN_LEDGER if _one_version(stated, follows) else (*_NOT_IN_LEDGER, *_SENTENCES)
    wanted = {k: v for k, v in follows.to_dict().items() if k not in skipped}
    found = _contradictions(f"{run_folder.GUARANTEE} states", stated.to_dict(), wanted)
    if not stated.start.startswith(follows.start):
        found.append(f"{run_folder.GUARANTEE} states another start than the ledger")
    if stated.canaries != follows.canaries or bool(stated.audit) != bool(stated.canaries):
        found.append(f"{run_folder.GUARANTEE} states another audit than the ledger")
    digests = {**follows.digests, **({"weights": weights.get(TENSORS)} if weights else {})}
    for name, digest in digests.items():
        if stated.digests.get(name) != digest:
            found.append(f"the digest of the {name} in {run_folder.GUARANTEE} is another")
    return found


def _of_weights(weights: Mapping[str, Any], follows: Guarantee) -> list[str]:
    found, stated = [], weights.get("guarantee")
    if STATEMENT in weights and TENSORS not in weights:
        found.append("the weights hold no digest of their tensors")
    if not isinstance(stated, dict) or stated.get("private") is not True:
        return [*found, "the weights do not state that they are private"]
    wanted = follows.summary()
    if STATEMENT not in weights:  # Older versions did not write everything.
        wanted = {name: value for name, value in wanted.items() if name in stated}
    return found + _contradictions("the weights state", stated, wanted)


def _of_statement(
    text: str, stated: Guarantee | None, follows: Guarantee, weights: Mapping[str, Any]
) -> list[str]:
    found = []
    if STATEMENT in weights and weights[STATEMENT] != statement_digest(text):
        found.append("the statement is not the text that the weights hold the digest of")
    if stated is not None and _one_version(stated, follows):
        if text != statement_chapters.statement(stated):
            found = [f"the statement is not the text that follows from {run_folder.GUARANTEE}"]
        return found
    # Accountants of other versions may differ in the last digits, but by no more than `_AGREE`.
    described = weights.get("guarantee") if stated is None else stated.to_dict()
    costs = described.get("epsilon") if isinstance(described, dict) else None
    other = costs.get(follows.accountant) if isinstance(costs, dict) else None
    known = [value for value in (follows.spent, other) if type(value) is float]
    if not any(
        said in text for v in known for said in statement_chapters.headlines(v, follows.delta)
    ):
        found.append(
            f"the statement does not say {statement_chapters.headlines(known[0], follows.delta)[0]}"
        )
    return found


def _one_version(a: Guarantee, b: Guarantee) -> bool:
    """Tell whether two guarantees were made by one version of sfumato, with the same sentences."""
    return a.versions.get("sfumato") == b.versions.get("sfumato")


def _contradictions(who: str, stated: Mapping[str, Any], wanted: Mapping[str, Any]) -> list[str]:
    """Fields that differ from the wanted ones; the ledger lacks the names of the first exposure."""
    found = []
    for name, b in wanted.items():
        a = stated.get(name)
        if name == "exposures":
            if not _same(_unnamed(a), _unnamed(b)):
                found.append(f"{who} other exposures of data than the ledger")
        elif not _same(a, b, loose=name.endswith("epsilon")):
            found.append(f"{who} {name} = {_shown(a)} and the ledger {_shown(b)}")
    return found


def _unnamed(exposures: Any) -> Any:
    if not isinstance(exposures, list) or not exposures or not isinstance(exposures[0], dict):
        return None
    named = ("data", "also", "looked")
    return [{k: v for k, v in exposures[0].items() if k not in named}, *exposures[1:]]


def _same(a: Any, b: Any, *, loose: bool = False) -> bool:
    """Tell whether plain values are equal; loosely, epsilons may differ by rounding or be fewer."""
    if isinstance(a, dict) and isinstance(b, dict):
        keys = a.keys() <= b.keys() if loose else a.keys() == b.keys()
        return keys and all(_same(a[key], b[key], loose=loose or key == "epsilon") for key in a)
    if isinstance(a, list) and isinstance(b, list):
        return len(a) == len(b) and all(_same(x, y, loose=loose) for x, y in zip(a, b, strict=True))
    if loose and all(type(value) in (int, float) for value in (a, b)):
        return _agree(a, b)
    return type(a) is type(b) and bool(a == b)


def _agree(a: float, b: float) -> bool:
    return bool(a == b or abs(a - b) <= _AGREE * abs(b))


def _shown(value: Any) -> str:
    return f"{value:.6g}" if type(value) is float else repr(value)
