"""What a row wants to know of a finished model, besides its accuracy."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import torch
from torch import Tensor, nn

from sfumato.errors import UserError
from sfumato.recipe import Recipe
from sfumato.training.classifier import Classifier, load

_IMAGES = 2000
"""Test images are enough in this number for a mean to two digits."""


def measure(
    names: tuple[str, ...], folder: Path, recipe: Recipe, root: Path | None
) -> dict[str, float]:
    """The measures with these names, of the weights in a run folder."""
    if not names:
        return {}
    from sfumato import data

    unknown = [name for name in names if name not in _MEASURES]
    if unknown:
        raise UserError(f"There is no measure '{unknown[0]}': choose {', '.join(_MEASURES)}.")
    d = recipe.data
    test = data.load(d.name, root=root, size=d.size, channels=d.channels).test
    images = torch.from_numpy(test.images[:_IMAGES].copy())
    classifier = load(folder)
    return {name: _MEASURES[name](classifier, images) for name in names}


@torch.no_grad()
def activation_norm(classifier: Classifier, images: Tensor) -> float:
    """Mean L2 norm of the first convolution's activations (Papernot et al. 2019, figure 3)."""
    layers = dict(classifier.network.named_children())
    if "activation1" not in layers:
        raise UserError("The measure 'activation-norm' is for networks with a layer 'activation1'.")
    total, count = 0.0, 0

    def note(_module: nn.Module, _inputs: object, output: Tensor) -> None:
        nonlocal total, count
        total += float(output.flatten(1).norm(dim=1).sum())
        count += len(output)

    hook = layers["activation1"].register_forward_hook(note)
    try:
        classifier.predict(images)
    finally:
        hook.remove()
    return total / count


_MEASURES: dict[str, Callable[[Classifier, Tensor], float]] = {"activation-norm": activation_norm}
