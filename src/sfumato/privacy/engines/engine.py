"""The interface of engines."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import ClassVar, Self

from torch import Tensor

from sfumato.privacy.engines.objective import Objective
from sfumato.privacy.engines.results import Gradients


class Engine(ABC):
    """A method of computing the per-example gradients of an objective.

    An engine checks nothing itself: `sfumato.privacy.checks.engine_choice` finds out which engine
    is right for a model.

    Args:
        objective: The model, its loss and its views.
    """

    name: ClassVar[str]

    def __init__(self, objective: Objective) -> None:
        self.objective = objective

    @abstractmethod
    def gradients(self, x: Tensor, y: Tensor) -> Gradients:
        """Per-example gradients of `len(y)` examples of `objective.views` rows each."""

    def on(self, objective: Objective) -> Self:
        """The same engine for another objective, such as a copy of the model in float64."""
        return type(self)(objective)
