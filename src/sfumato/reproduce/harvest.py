"""A finished run folder as a line of results."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from sfumato import environment, version
from sfumato.recipe import Recipe
from sfumato.reproduce import measures
from sfumato.reproduce.results_file import Entry
from sfumato.reproduce.row import Row, Setting
from sfumato.run import Run
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
    """The results of a finished run, read from its own files."""
    run = Run(folder)
    final, guarantee = run.final, run.verify()
    averaged = "test_accuracy_last" in final
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
        epsilon={name: round(value, 5) for name, value in guarantee.epsilon.items()},
        delta=guarantee.delta if run.private else None,
        accountant=guarantee.accountant if run.private else "",
        sigma=run.header["sigma"],
        steps=run.steps,
        examples=run.header["examples"],
        minutes=round(final.get("seconds", 0.0) / 60, 3),
        views_per_second=round(run.views_per_second or 0.0, 1),
        parameters=sum(p.numel() for p in run.classifier.network.parameters()),
        measures=measures.measure(row.measures, folder, root=root, device=device),
        curve=curve(run.metrics),
        hardware=environment.hardware(pick_device(device)),
        versions=environment.versions(),
        commit=version.commit(),
        date=datetime.now(UTC).isoformat(timespec="seconds"),
    )


def curve(records: list[dict[str, Any]]) -> dict[str, Any]:
    """Accuracy over training: on validation images if there are any, else on batches."""
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
