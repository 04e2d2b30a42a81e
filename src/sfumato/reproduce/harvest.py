"""A finished run folder as a line of results."""

from __future__ import annotations

import statistics
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from sfumato import environment, version
from sfumato.privacy.ledger import read as read_ledger
from sfumato.recipe import Recipe
from sfumato.reproduce import measures
from sfumato.reproduce.results_file import Entry
from sfumato.reproduce.row import Row, Setting
from sfumato.training import files, metrics
from sfumato.training.classifier import load
from sfumato.training.devices import pick_device


def harvest(
    folder: Path,
    *,
    row: Row,
    setting: Setting,
    recipe: Recipe,
    seed: int,
    device: str,
    root: Path | None,
) -> Entry:
    """What a finished run achieved, read from its own files."""
    records = metrics.read(folder / files.METRICS)
    final = next(r for r in reversed(records) if r.get("final"))
    header, _ = read_ledger(folder / files.LEDGER)
    classifier = load(folder)
    guarantee = classifier.description.guarantee
    private = bool(guarantee.get("private"))
    averaged = "test_accuracy_last" in final
    speeds = [r["views_per_second"] for r in records if r.get("views_per_second")]
    overrides = {**row.overrides(setting)}
    if recipe.training.precision != Recipe().training.precision:
        overrides["training.precision"] = recipe.training.precision
    return Entry(
        row=row.id,
        recipe=row.recipe,
        recipe_hash=row.fingerprint(setting),
        setting=setting,
        overrides=overrides,
        seed=seed,
        accuracy=final["test_accuracy"],
        accuracy_averaged=final["test_accuracy"] if averaged else None,
        accuracy_last=final["test_accuracy_last"] if averaged else final["test_accuracy"],
        epsilon={k: round(v, 5) for k, v in guarantee["epsilon"].items()} if private else {},
        delta=guarantee["delta"] if private else None,
        accountant=recipe.privacy.accountant if private else "",
        sigma=header["sigma"],
        steps=final["step"],
        examples=header["examples"],
        minutes=round(final.get("seconds", 0.0) / 60, 3),
        views_per_second=round(statistics.median(speeds), 1) if speeds else 0.0,
        parameters=sum(p.numel() for p in classifier.network.parameters()),
        measures=measures.measure(row.measures, folder, root=root, device=device),
        curve=curve(records),
        hardware=environment.hardware(pick_device(device)),
        versions=environment.versions(),
        commit=version.commit(),
        date=datetime.now(UTC).isoformat(timespec="seconds"),
    )


def curve(records: list[dict[str, Any]]) -> dict[str, Any]:
    """Accuracy along the way: on validation images where there are any, else on batches."""
    rows = [r for r in records if not r.get("final")]
    key = "validation_accuracy"
    if not any(key in r for r in rows):
        key = "train_accuracy"
    kept = [r for r in rows if r.get(key) is not None]
    return {
        "of": "validation images" if key == "validation_accuracy" else "training batches",
        "step": [r["step"] for r in kept],
        "epsilon": [round(r["epsilon"], 4) for r in kept if r.get("epsilon") is not None],
        "accuracy": [round(r[key], 4) for r in kept],
    }
