"""Random numbers for drawn images, all from one generator."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeAlias

import torch
from torch import Tensor


@dataclass(frozen=True)
class Chance:
    """Random numbers from one generator, on its device."""

    generator: torch.Generator

    def normal(self, *shape: int) -> Tensor:
        """Normal numbers with mean 0 and variance 1."""
        return torch.randn(shape, generator=self.generator, device=self.device)

    def uniform(self, *shape: int) -> Tensor:
        """Uniform numbers from 0 to 1."""
        return torch.rand(shape, generator=self.generator, device=self.device)

    def whole(self, below: int) -> int:
        """A whole number from 0, below this one."""
        return int(torch.randint(below, (), generator=self.generator, device=self.device))

    def order(self, count: int) -> Tensor:
        """A permutation of this many numbers."""
        return torch.randperm(count, generator=self.generator, device=self.device)

    @property
    def device(self) -> torch.device:
        """The device of the generator and of all numbers."""
        return self.generator.device


Painter: TypeAlias = Callable[[int, int, Chance], Tensor]
"""A function that draws n images of one side: `(n, 3, side, side)`."""
