"""The data sets that weights depend on: those of a run's start, and of the start's start.

A run whose initial weights were trained on the same images releases the start's noisy steps and
then its own, so the two histories compose: they are one list of `Step`s, in whatever order.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from sfumato.privacy.accounting.accountants import Step, merge


@dataclass(frozen=True)
class Exposure:
    """A data set that weights depend on, and the protection of its images.

    Attributes:
        data: Its name.
        public: Whether a user declared that it is public.
        steps: Noisy steps taken on it; empty if it was used without noise.
        epsilon: Epsilon of these steps, by accountant, as the run that took them reported it.
        delta: As in (epsilon, delta).
        seeded: Whether that noise follows from a stated seed.
        drawn: Whether a program drew the images at random, so that they show nobody.
        also: Other names that these images, or some of the steps' images, were known by.
        looked: Decisions made by looking at some of them without noise, in sentences.
        selected: Whether the steps are those of the best of several runs: `epsilon` counts the
            choice, which the steps alone do not show.
        unit: The unit of privacy that the steps protect, such as `patient`.
    """

    data: str
    public: bool = False
    steps: tuple[Step, ...] = ()
    epsilon: Mapping[str, float] = field(default_factory=dict)
    delta: float = 0.0
    seeded: bool = False
    drawn: bool = False
    also: tuple[str, ...] = ()
    looked: tuple[str, ...] = ()
    selected: bool = False
    unit: str = "image"

    @property
    def names(self) -> tuple[str, ...]:
        """The name of the data set and all its other names."""
        return (self.data, *self.also)

    @property
    def noisy(self) -> bool:
        """Tell whether noise protects the data."""
        return bool(self.steps)

    @property
    def bare(self) -> bool:
        """Tell whether neither noise nor a user's declaration that it is public covers the data."""
        return not self.steps and not self.public

    def to_dict(self) -> dict[str, Any]:
        """Plain values, for a file."""
        return {
            "data": self.data,
            "public": self.public,
            "steps": steps_to_list(self.steps),
            "epsilon": dict(self.epsilon),
            "delta": self.delta,
            "seeded": self.seeded,
            **({"drawn": True} if self.drawn else {}),
            **({"also": list(self.also)} if self.also else {}),
            **({"looked": list(self.looked)} if self.looked else {}),
            **({"selected": True} if self.selected else {}),
            **({"unit": self.unit} if self.unit != "image" else {}),
        }

    @classmethod
    def from_dict(cls, content: Mapping[str, Any]) -> Exposure:
        """Read `to_dict` back."""
        return cls(
            data=str(content["data"]),
            public=content["public"] is True,
            steps=steps_from_list(content["steps"]),
            epsilon={str(k): float(v) for k, v in content["epsilon"].items()},
            delta=float(content["delta"]),
            seeded=content["seeded"] is not False,
            drawn=content.get("drawn") is True,
            also=tuple(map(str, content.get("also", ()))),
            looked=tuple(map(str, content.get("looked", ()))),
            selected=content.get("selected", False) is not False,
            unit=str(content.get("unit", "image")),
        )


def steps_to_list(steps: Sequence[Step]) -> list[list[float]]:
    """A history as lists of sampling probability, noise multiplier and count."""
    return [[step.q, step.noise_multiplier, step.count] for step in merge(steps)]


def steps_from_list(content: Sequence[Sequence[float]]) -> tuple[Step, ...]:
    """Read `steps_to_list` back."""
    return tuple(Step(float(q), float(sigma), int(count)) for q, sigma, count in content)
