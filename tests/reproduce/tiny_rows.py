"""A paper whose rows take seconds, and made-up results."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from sfumato.reproduce.results_file import Entry
from sfumato.reproduce.row import Paper, Row, Setting

SMALL = {
    "privacy.accountant": "rdp",
    "model.options.filters": 4,
    "training.batch": 100,
    "training.steps": 6,
    "training.log_every": 2,
}


def row(name: str, published: float | None = None, **more: Any) -> Row:
    changes = SMALL | more.pop("changes", {})
    return Row(
        paper="tiny", name=name, recipe="digits", source="table 1", published=published,
        changes=changes, **more,
    )  # fmt: skip


def paper(*rows: Row) -> Paper:
    return Paper(key="tiny", title="Tiny", authors="Nobody", measured="On digits.", rows=rows)


def entry(row: Row, accuracy: float, *, setting: Setting = "published", seed: int = 0) -> Entry:
    recipe = row.recipe_for(setting)
    private = recipe.privacy.enabled
    epsilon = {"pld": 0.9 * recipe.privacy.epsilon, "rdp": recipe.privacy.epsilon}
    return Entry(
        row=row.id,
        recipe=row.recipe,
        recipe_hash=row.fingerprint(setting),
        setting=setting,
        seed=seed,
        accuracy=accuracy,
        accuracy_last=accuracy,
        epsilon=epsilon if private else {},
        accountant=recipe.privacy.accountant if private else "",
        delta=1e-5 if private else None,
        minutes=2.5,
        measures=dict.fromkeys(row.measures, 3.0),
        curve={"of": "batches", "step": [1, 2], "epsilon": [1.0, 2.0], "accuracy": [0.3, 0.5]},
        hardware="a machine",
    )


def lines(path: Path) -> list[str]:
    return path.read_text(encoding="utf-8").splitlines()
