"""Run folders with everything a report reads, made without training."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from sfumato import recipes
from sfumato.privacy import statement_chapters
from sfumato.privacy.accounting import accountants
from sfumato.privacy.accounting.accountants import Step
from sfumato.privacy.ledger import Ledger
from sfumato.training import run_guarantee
from tiny_run import DIGITS, write_weights


def make(
    folder: Path,
    *,
    sigma: float = 2.0,
    steps: int = 60,
    accuracy: float = 0.9,
    finished: bool = True,
    private: bool = True,
    data: str = "digits",
    classes: Sequence[str] = DIGITS,
    changes: dict[str, Any] | None = None,
    records: int = 60,
) -> Path:
    """Write a run folder; an unfinished one has taken half its steps."""
    folder.mkdir(parents=True)
    recipe = recipes.find("digits").replace(
        {"data.name": data, "privacy.enabled": private, "training.steps": steps, **(changes or {})}
    )
    (folder / "recipe.toml").write_text(recipe.to_toml(), encoding="utf-8")
    q, delta, taken = 0.1, recipe.privacy.delta, steps if finished else steps // 2
    header = {
        "version": 1, "examples": 1438, "rate": q, "sigma": sigma if private else 0.0,
        "clip": 1.0, "delta": delta, "budget": recipe.privacy.epsilon, "accountant": "pld",
        "steps": steps, "physical_batch": 64, "recipe": recipe.to_dict(),
        "noise": {"source": "chacha20"},
    }  # fmt: skip
    ledger = Ledger.create(folder / "ledger.jsonl", header)
    for number in range(1, taken + 1):
        ledger.record(number, Step(q, sigma if private else 0.0))
    ledger.close()
    spent = {
        name: accountants.epsilon([Step(q, sigma, taken)], delta=delta, accountant=name)
        for name in accountants.ACCOUNTANTS
        if private
    }
    _metrics(folder, taken, spent, accuracy, finished=finished, records=records)
    if finished:
        write_weights(folder, {"private": True}, classes=classes)
        found = run_guarantee.guarantee_of(
            recipe, header, [Step(q, sigma, taken)],
            clipping="each image's gradient scaled to norm at most C = 1",
        ) if private else run_guarantee.guarantee_of(recipe, header, ())  # fmt: skip
        (folder / "statement.md").write_text(statement_chapters.statement(found), encoding="utf-8")
    return folder


def _metrics(
    folder: Path,
    steps: int,
    spent: dict[str, float],
    accuracy: float,
    *,
    finished: bool,
    records: int,
) -> None:
    lines = []
    for k in range(1, records + 1):
        part = k / records
        lines.append(
            {
                "step": max(1, round(steps * part)), "loss": 2.3 * (1 - part) + 0.4,
                "train_accuracy": accuracy * part**0.3, "clipped": 1 - 0.6 * part, "lr": 2.0,
                "views_per_second": 9000.0 + k, "seconds": 10 * part,
            }
        )  # fmt: skip
        if spent:
            lines[-1]["epsilon"] = spent["pld"] * part**0.5
    if finished:
        final = {"final": True, "step": steps, "test_accuracy": accuracy, "seconds": 10.0}
        lines.append(final | ({"epsilon": spent["pld"]} if spent else {}))
    text = "".join(json.dumps(line) + "\n" for line in lines)
    (folder / "metrics.jsonl").write_text(text, encoding="utf-8")
