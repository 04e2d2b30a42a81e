"""The recipes whose accuracies docs/initialisation.md and `sfumato.recipes.measured` quote."""

from __future__ import annotations

from typing import Any

import pytest

from sfumato import recipes
from sfumato.training import setup

_ALIKE: dict[str, Any] = {
    "privacy.epsilon": 8.0,
    "privacy.delta": 1e-5,
    "privacy.accountant": "pld",
    "privacy.clipping": "flat",
    "privacy.clip": 1.0,
    "optimizer.name": "sgd",
    "optimizer.lr": 0.5,
    "optimizer.noise_power": 1.0,
    "optimizer.momentum": 0.0,
    "optimizer.weight_decay": 0.0,
    "optimizer.schedule": "cosine",
    "training.batch": None,
    "training.views": 1,
    "training.average": 0.98,
    "training.average_kind": "ema",
}

_LAYERS: dict[str, Any] = _ALIKE | {
    "model.name": "eq-resnet9-d4",
    "model.options": {"reads": ["conv3"], "grid": 5, "mirror": True},
    "start.source": "drawn-mixture",
    "start.how": "transfer",
    "start.reset": ["head", "conv4", "res2"],
    "start.zero": ["head"],
    "start.train": ["head"],
    "optimizer.effective_noise": 0.006,
    "training.steps": 250,
}

MEASURED: dict[str, dict[str, Any]] = {
    "last-layer": _LAYERS,
    "last-layer-grey": _LAYERS
    | {
        "model.options": {
            "reads": ["conv3", "wavelets"],
            "grid": 5,
            "whiten": 0.5,
            "mirror": False,
        },
        "start.source": "dead-leaves",
        "optimizer.lr": 0.33,
    },
    "wavelets": _ALIKE
    | {
        "model.name": "scatternet",
        "model.options": {},
        "start.source": "",
        "optimizer.effective_noise": 0.008,
        "training.steps": 400,
    },
}
"""The settings that accuracies were measured with. Whoever changes one measures again."""


@pytest.mark.parametrize("name", MEASURED)
def test_a_recipe_has_the_settings_that_accuracies_were_measured_with(name: str) -> None:
    recipe, settings = recipes.find(name), MEASURED[name]
    found = {}
    for key in settings:
        section, setting = key.split(".")
        found[key] = getattr(getattr(recipe, section), setting)
    assert found == settings
    told = {".".join(key.split(".")[:2]) for key in recipe.changed()} - {"name", "about"}
    assert told <= set(settings), "the recipe says more than was measured"
    assert setup.expected_batch(recipe.training, 4000) == 500, "an eighth of the images"
