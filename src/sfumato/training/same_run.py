"""Checks that a run is what it was when it began, before it is resumed."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from sfumato.errors import UserError
from sfumato.privacy.ledger import Ledger
from sfumato.privacy.numerics.randomness import SOURCE, Randomness
from sfumato.recipe import Recipe, differences, from_record, loads
from sfumato.training import run_folder
from sfumato.training.initial.start import Origin

_NOT_COMPARED = ("kind", "previous", "noise", "initial")
"""Entries of the ledger's first line that do not follow from the recipe and the data."""


def refuse_changes(
    folder: Path, header: Mapping[str, Any], expected: Mapping[str, Any], recipe: Recipe
) -> None:
    """Refuse a run whose mechanism, settings or data are no longer those of its ledger.

    Args:
        folder: The run folder.
        header: The ledger's first line.
        expected: The first line that a ledger of this recipe and data would have now.
        recipe: The recipe.
    """
    found = {k: v for k, v in header.items() if k not in _NOT_COMPARED}
    found["version"] = expected["version"]  # Runs of an older version go on in this one.
    # Settings that did not exist when the run began are filled in.
    found["recipe"] = recipe.to_dict()
    changed = differences(found, dict(expected))
    if changed:
        raise UserError(
            f"{folder} cannot go on, because something is no longer what it was: "
            f"{'; '.join(_in_words(c) for c in changed)}."
        )


def _in_words(change: str) -> str:
    if change.startswith("data was"):
        return "the training images or their labels are not the ones the run started with"
    return change


def same_recipe(folder: Path, header: Mapping[str, Any], changes: Mapping[str, Any]) -> Recipe:
    """The recipe that the ledger states, if the file and the command line agree with it."""
    stated = from_record(header.get("recipe", {}), where=run_folder.LEDGER)
    path, now = folder / run_folder.RECIPE, stated
    if path.exists():
        now = loads(path.read_text(encoding="utf-8"), where=str(path), record=True)
    changed = differences(stated.to_dict(), now.replace(dict(changes)).to_dict())
    if changed:
        raise UserError(
            f"{folder} cannot go on with another recipe: {'; '.join(changed)}. Start a new run to "
            "train with other settings."
        )
    return stated


def same_randomness(folder: Path, recipe: Recipe, origin: Origin) -> Randomness:
    """The key of a run, from its seed or its file."""
    if recipe.training.seed is not None:
        return origin.seeded_randomness(recipe.training.seed)
    try:
        return Randomness((folder / run_folder.KEY).read_bytes(), False)
    except OSError as error:
        raise UserError(
            f"{folder / run_folder.KEY} cannot be read ({error.strerror}), and without it the run "
            "cannot go on: its last steps could not be repeated with the same noise."
        ) from None


def noise_from(device: torch.device) -> dict[str, str]:
    """The device and versions that the noise depends on beside the key."""
    return {"source": SOURCE, "device": device.type, "torch": torch.__version__}


def check_repeats(folder: Path, ledger: Ledger, done: int, device: torch.device) -> None:
    """Refuse to resume after step `done` if steps would be repeated with other noise.

    Two versions of a step with different noise reveal more than one, and the ledger counts one.
    """
    if done > ledger.steps:
        raise UserError(
            f"{folder / run_folder.LEDGER} ends at step {ledger.steps}, but the last checkpoint is "
            f"of step {done}: some of what was released is not accounted for. Restore the ledger "
            "that belongs to this checkpoint."
        )
    before = {**noise_from(device), "source": None, **ledger.header.get("noise", {})}
    began, version = str(before["device"]), str(before["torch"])
    if began != device.type:
        raise UserError(
            f"{folder} began on {began} and cannot go on on {device.type}, where the "
            "same key gives other noise: a step that was taken there and is taken again here would "
            f"be released twice and counted once. Let it go on there with --device {began}."
        )
    if before["source"] != SOURCE and done < ledger.steps:
        raise UserError(
            f"{folder} began with a version of sfumato whose noise had another source: steps "
            f"{done + 1} to {ledger.steps} would be taken again with other noise, and be released "
            "twice but counted once. Go on with that version."
        )
    if version != torch.__version__ and done < ledger.steps:
        raise UserError(
            f"{folder} began with PyTorch {version}, and this is {torch.__version__}: "
            f"steps {done + 1} to {ledger.steps} would be taken again, perhaps with other noise, "
            "and be released twice but counted once. Go on with that version."
        )
