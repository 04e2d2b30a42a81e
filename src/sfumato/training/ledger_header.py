"""The first line of a run's ledger."""

from __future__ import annotations

from typing import Any

from sfumato.data import Dataset
from sfumato.privacy.accounting.exposure import steps_to_list
from sfumato.privacy.numerics.randomness import Randomness
from sfumato.recipe import Recipe
from sfumato.training import phases, run_folder
from sfumato.training.canary_plan import CanaryPlan
from sfumato.training.initial.start import Origin
from sfumato.training.recipe_data import data_tag
from sfumato.training.setup import Plan


def ledger_header(
    recipe: Recipe,
    plan: Plan,
    dataset: Dataset,
    randomness: Randomness,
    physical: int,
    origin: Origin,
    canaries: CanaryPlan | None,
) -> dict[str, Any]:
    """The first line of the ledger: the mechanism, its settings and its data."""
    unit = recipe.data.unit
    return {
        "version": run_folder.VERSION,
        "mechanism": "Poisson-subsampled Gaussian" if recipe.privacy.enabled else "none",
        "relation": f"add or remove one {'example' if unit == 'image' else unit}",
        "examples": plan.sampler.examples,
        "rate": plan.sampler.rate,
        "sigma": plan.noise.multiplier,
        **({"sigmas": steps_to_list(plan.history(plan.steps))} if plan.schedule else {}),
        "clip": phases.first_clip(recipe),
        "delta": recipe.privacy.delta,
        "budget": recipe.privacy.epsilon,
        "accountant": recipe.privacy.accountant,
        "steps": plan.steps,
        "data": data_tag(randomness.key, dataset),
        "physical_batch": physical,
        "recipe": recipe.to_dict(),
        **({"start": origin.to_dict()} if origin.weights else {}),
        **({"selection": plan.selection.to_dict()} if plan.selection else {}),
        **(canaries.header if canaries else {}),
    }
