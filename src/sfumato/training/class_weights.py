"""Class weights: a loss in which examples of some classes count more than those of others.

*Guarantee:* The weights are settings of the recipe, never counted from the private labels. They
multiply the loss of each image before its gradient is clipped, so an example still adds at most C,
and sensitivity, epsilon and delta are those of a run without weights.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from sfumato.errors import UserError
from sfumato.privacy.engines.objective import Loss, cross_entropy
from sfumato.recipe import Recipe
from sfumato.training.per_class import check_count, check_numbers


class WeightedCrossEntropy(nn.Module):
    """Cross-entropy of each row, times the weight of its class.

    Args:
        weights: One for each class, in the order of classes.
    """

    weights: Tensor

    def __init__(self, weights: Sequence[float]) -> None:
        super().__init__()
        self.register_buffer("weights", torch.tensor(weights, dtype=torch.float32))

    def forward(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """One loss per row."""
        return cross_entropy(outputs, targets) * self.weights[targets]


def loss_of(recipe: Recipe, device: torch.device) -> Loss:
    """The loss that a recipe trains with."""
    weights = recipe.training.class_weights
    return WeightedCrossEntropy(weights).to(device) if weights else cross_entropy


def check_class_weights(recipe: Recipe, classes: Sequence[str]) -> None:
    """Refuse class weights that do not fit the classes or the clipping rule.

    Args:
        recipe: The recipe.
        classes: Names of the classes, in their order.

    Raises:
        UserError: If they do not.
    """
    weights = recipe.training.class_weights
    if not weights:
        return
    check_count("training.class_weights", weights, classes)
    check_numbers("training.class_weights", weights, "4 for a class that is to count four times")
    if recipe.privacy.enabled and recipe.privacy.clipping == "automatic":
        raise UserError(
            "training.class_weights has no effect with privacy.clipping = 'automatic', which gives "
            "the gradient of every example nearly the same norm, whatever its loss is multiplied "
            "by: choose another rule, such as flat, or leave the weights out."
        )
