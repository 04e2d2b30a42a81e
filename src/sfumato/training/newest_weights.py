"""The newest weights of a run folder: the final ones, or those of a checkpoint or snapshot."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import torch

from sfumato import models
from sfumato.data import Dataset
from sfumato.errors import CodeError, UserError
from sfumato.models import Trust
from sfumato.recipe import Recipe
from sfumato.training import checkpoint, classifier, run_folder, snapshots
from sfumato.training.classifier import Classifier, Description


def final(
    folder: Path, device: str | torch.device, trust_code: Iterable[models.Code], notes: list[str]
) -> Classifier | None:
    """The classifier of the final weights; None, with a note, if they cannot be used.

    Args:
        folder: The run.
        device: The device of the network.
        trust_code: Modules outside sfumato whose models the weights may name.
        notes: Receives the note.

    Raises:
        CodeError: If the weights name a model whose code is not trusted.
    """
    if (folder / run_folder.WEIGHTS).is_file():
        try:
            return classifier.load(folder, device=device, trust_code=trust_code)
        except CodeError:
            raise
        except UserError as error:
            notes.append(f"The final weights of {folder} are left out: {error}")
    return None


def newest(
    folder: Path, recipe: Recipe, dataset: Dataset, trust: Trust, notes: list[str]
) -> tuple[Classifier, str, int]:
    """The classifier of a run that has not finished, its weights in words, and their step.

    Args:
        folder: The run.
        recipe: Its recipe.
        dataset: Its data, from which classes and image shape follow.
        trust: The code outside sfumato that the recipe may name.
        notes: Receives remarks for a reader.

    Raises:
        UserError: If there is neither a checkpoint nor a snapshot that can be read.
    """
    state, damaged = checkpoint.latest(folder / run_folder.CHECKPOINTS)
    notes += [f"Checkpoint {path} is damaged and was passed over." for path in damaged]
    kept = snapshots.read(folder)
    if state is not None and (not kept or kept[-1][0] <= state.step):
        tensors, step, what = state.part("model"), state.step, "checkpoint"
        tensors |= state.part("average")
    elif kept:
        tensors, step, what = snapshots.tensors(kept[-1][1]), kept[-1][0], "snapshot"
    else:
        raise UserError(
            f"{folder} has no weights yet: neither {run_folder.WEIGHTS} nor a checkpoint or "
            "snapshot that can be read."
        )
    m, d = recipe.model, dataset
    network = models.create_trusted(
        m.name, m.options, classes=len(d.classes), channels=d.channels, size=d.size, trust=trust,
        batchnorm_to=m.batchnorm_to,
    )  # fmt: skip
    try:
        network.load_state_dict(tensors)
    except RuntimeError as error:
        raise UserError(f"The {what} of {folder} does not fit '{m.name}': {error}") from None
    description = Description(
        m.name, dict(m.options), d.classes, d.channels, d.size, d.mean, d.std,
        {"private": recipe.privacy.enabled}, batchnorm_to=m.batchnorm_to,
    )  # fmt: skip
    weights = f"{what} of step {step}"
    lacking = "has not finished"
    if run_folder.weights_removed(folder):
        lacking = f"has lost its {run_folder.WEIGHTS}"
    notes.append(f"{folder} {lacking}: these are the numbers of its {weights}.")
    return Classifier(network, description), weights, step
