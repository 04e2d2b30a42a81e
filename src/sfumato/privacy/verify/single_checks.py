"""Single trials of the engine on a model: what `verify` reports, one function each."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor, nn

from sfumato.memory import out_of_memory
from sfumato.privacy.checks.agreement import errors, tolerance
from sfumato.privacy.checks.isolation import LOOSE, without
from sfumato.privacy.checks.model_under_test import (
    Comparison,
    Draws,
    held,
    how_to_compare,
    narrowest,
)
from sfumato.privacy.checks.random_inputs import replacement
from sfumato.privacy.clipping import MARGIN, Flat
from sfumato.privacy.engines.engine import Engine
from sfumato.privacy.engines.objective import Objective
from sfumato.privacy.engines.one_at_a_time import one_at_a_time
from sfumato.privacy.engines.operators import Operators
from sfumato.privacy.mechanism import PrivateGradients
from sfumato.privacy.noise import GaussianNoise
from sfumato.privacy.numerics.distance import distance
from sfumato.privacy.numerics.model_state import Snapshot, seed
from sfumato.privacy.per_example import Gradients, Loss, PerExample
from sfumato.privacy.sampling import PoissonSampler, physical_batches
from sfumato.privacy.statistics import BatchStatistics

EXAMPLES = 5
Outcome = tuple[bool, str, float | None]


@dataclass
class Trial:
    """A variant of a model under test.

    Attributes:
        label: What distinguishes the variant.
        model: The model.
        like_x: Inputs like those to draw.
        like_y: Targets like those to draw.
        loss: From outputs and targets to one loss per row.
        own: Whether this is the model as it will be trained.
        confirmed: Whether there is a variant in float64 beside it.
        chosen: The engine that was chosen for the model as it will be trained.
    """

    label: str
    model: nn.Module
    like_x: Tensor
    like_y: Tensor
    loss: Loss
    own: bool = False
    confirmed: bool = False
    chosen: Engine | None = None

    @cached_property
    def per_example(self) -> PerExample:
        """Per-example gradients of the model."""
        return PerExample(self.model, loss=self.loss)

    def engine(self, views: int = 1, loss: Loss | None = None) -> Engine:
        """The chosen engine for so many views."""
        objective = Objective(self.model, loss or self.loss, views)
        return Operators(objective) if self.chosen is None else self.chosen.on(objective)

    @cached_property
    def draws(self) -> Draws:
        """Random inputs and targets."""
        return Draws.for_objective(Objective(self.model, self.loss), self.like_x, self.like_y)

    @cached_property
    def comparison(self) -> Comparison:
        """The way in which the model can be compared with itself."""
        return how_to_compare(self.model, self.draws.x(3))

    @cached_property
    def state(self) -> Snapshot:
        """The model's state before anything ran."""
        return Snapshot(self.model)

    @cached_property
    def dtype(self) -> torch.dtype:
        """The least precise floating-point type that the model computes in."""
        return narrowest(self.model, self.draws.x(1))

    @property
    def tolerance(self) -> float:
        """The error that rounding may cause."""
        return tolerance(self.dtype, confirmed=self.confirmed)

    def batch(self, examples: int = EXAMPLES, views: int = 1) -> tuple[Tensor, Tensor]:
        """Random inputs and targets for some examples."""
        return self.draws.x(examples * views), self.draws.y(examples)

    def run(self, x: Tensor, y: Tensor, *, views: int = 1, loss: Loss | None = None) -> Gradients:
        """The engine's gradients, from a fixed state and with random numbers held still."""
        self.state.restore()
        with held(self.model, self.comparison):
            seed(self.model)
            found = self.engine(views, loss).gradients(x.clone(), y)
        self.state.restore()
        return found

    def alone(self, x: Tensor, y: Tensor, *, views: int = 1) -> Gradients:
        """The reference's gradients, likewise."""
        self.state.restore()
        with held(self.model, self.comparison):
            seed(self.model)
            found = one_at_a_time(self.model, x.clone(), y, loss=self.loss, views=views)
        self.state.restore()
        return found

    def private(self, clip: float) -> PrivateGradients:
        """The mechanism without noise, on the engine that has been checked."""
        private = PrivateGradients(
            self.model,
            sampler=PoissonSampler(EXAMPLES, 1),
            clipping=Flat(clip),
            noise=GaussianNoise(0.0),
            loss=self.loss,
            check=False,
        )
        private.per_example = self.per_example
        return private

    def unused(self) -> list[str]:
        """A warning for each parameter that receives no gradient from random inputs."""
        norms = self.alone(*self.batch()).squared_norms().sum(0)
        names = self.per_example.trainable
        return [
            f"parameter '{name}' receives no gradient: noise alone will move it; freeze it"
            for name, norm in zip(names, norms.tolist(), strict=True)
            if norm == 0
        ]


def gradients_agree(
    trial: Trial, views: int, batch: int
) -> tuple[bool, str, float, dict[str, float]]:
    """Every parameter's per-example gradient against one example at a time."""
    if trial.comparison == "not at all":
        return False, "the model draws random numbers that cannot be held still", 0.0, {}
    table: dict[str, float] = {}
    for examples in (3, batch):
        x, y = trial.batch(examples, views)
        picks = sorted({0, 1, examples // 2, examples - 1})
        rows = torch.cat([x[i * views : (i + 1) * views] for i in picks])
        reference = trial.alone(rows, y[picks], views=views)
        ours = trial.run(x, y, views=views).some(picks)
        for name, error in errors(ours, reference).items():
            table[name] = max(error, table.get(name, 0.0))
    worst = max(table, key=lambda name: table[name], default="")
    error = table.get(worst, 0.0)
    passed = error <= trial.tolerance
    detail = f"by {trial.engine().name}; rounding may make it {trial.tolerance:g}"
    if trial.comparison == "held still":
        detail += ", with random numbers held still"
    elif trial.comparison == "in evaluation mode":
        detail += ", in evaluation mode"
    return passed, detail if passed else f"{detail}: parameter '{worst}' differs", error, table


def example_apart(trial: Trial) -> Outcome:
    """Changing one example, into NaN too, moves no other example's gradient."""
    x, y = trial.batch()
    base, again = trial.run(x, y), trial.run(x, y)
    allowed = 0.0 if _furthest(base, again, None) == 0 else LOOSE.get(trial.dtype, 1e-2)
    moved = 0.0
    for j, kind in ((0, "other"), (EXAMPLES // 2, "large"), (EXAMPLES - 1, "zeros")):
        try:
            after = trial.run(replacement(x, j, kind), y)
        except Exception as error:
            if out_of_memory(error):
                raise
            continue  # A model may refuse what its real inputs cannot be.
        moved = max(moved, _furthest(base, after, j))
    return moved <= allowed, f"{len(base.names)} parameters, {EXAMPLES} examples", moved


def _furthest(a: Gradients, b: Gradients, changed: int | None) -> float:
    examples = a.losses.shape[0]
    others = (
        torch.ones(examples, dtype=torch.bool) if changed is None else without(examples, changed)
    )
    others = others.to(a.losses.device)
    pairs = [(u, v) for u, v in zip(a.tensors, b.tensors, strict=True) if u is not None]
    missing = any(v is None for _, v in pairs)
    return max(
        [
            float("inf") if missing else 0.0,
            distance(a.losses[others], b.losses[others]),
            *(distance(u[others], v[others]) for u, v in pairs if v is not None),
        ]
    )


def _norms(gradients: Gradients) -> Tensor:
    return gradients.squared_norms().sum(1).sqrt()


def clipped_sum(trial: Trial) -> Outcome:
    """The sum of clipped gradients, whole and in padded physical batches, against the reference."""
    x, y = trial.batch()
    reference = trial.alone(x, y)
    norms = _norms(reference)
    clip = float(norms.median())
    if not clip > 0:
        return True, "all gradients vanish on random inputs", 0.0
    factors = (clip / norms).clamp(max=1)
    wanted = [torch.tensordot(factors.to(t), t, 1) for t in reference.tensors if t is not None]
    worst = 0.0
    for size in (EXAMPLES, 3):
        private = trial.private(clip)
        for part in physical_batches(torch.arange(EXAMPLES), size):
            own = part.indices.to(x.device)
            private._add(trial.run(x[own], y[own]), y[own], part.weights)
        sums: Mapping[str, Tensor] = private._sum.totals or {}
        off = sum(
            float((s - w).double().square().sum())
            for s, w in zip(sums.values(), wanted, strict=True)
        )
        worst = max(worst, off**0.5 / clip)
    allowed = EXAMPLES * (2 * MARGIN + trial.tolerance)
    return worst <= allowed, f"C = {clip:.3g}, whole and in padded batches of 3", worst


def realised_norm(trial: Trial) -> Outcome:
    """The norm of what a single drawn example adds to the sum, measured in float64."""
    x, y = trial.batch()
    typical = float(_norms(trial.run(x, y)).median()) or 1.0
    ratio = 0.0
    for scale in (1e-6, 1.0, 1e6):
        gradients = trial.run(x, y, loss=_scaled(trial.loss, scale))
        own = _norms(gradients).tolist()
        for j in range(EXAMPLES):
            for clip in (typical, own[j]):
                if 0 < clip < float("inf"):
                    ratio = max(ratio, _added(trial, gradients, y, j, clip) / clip)
    return ratio <= 1, "small, typical and huge gradients, and C at the norm itself", ratio


def _scaled(loss: Loss, scale: float) -> Loss:
    return lambda outputs, targets: scale * loss(outputs, targets)


def _added(trial: Trial, gradients: Gradients, y: Tensor, j: int, clip: float) -> float:
    private = trial.private(clip)
    private._add(gradients, y, (~without(EXAMPLES, j)).float())
    sums = (private._sum.totals or {}).values()
    return math.sqrt(sum(float(s.cpu().double().square().sum()) for s in sums))


def empty_batch(trial: Trial) -> Outcome:
    """No examples: a sum of zeros, and a release all the same."""
    x, y = trial.batch()
    private = trial.private(1.0)
    private.accumulate(x[:0], y[:0])
    private.release()
    parameters = trial.per_example.trainable
    fine = all(p.grad is not None and not bool(p.grad.any()) for p in parameters.values())
    for p in parameters.values():
        p.grad = None
    return fine, "a step of pure noise", None


def single_example(trial: Trial) -> Outcome:
    """One example: the reference's gradient."""
    x, y = trial.batch(1)
    found = errors(trial.run(x, y), trial.alone(x, y))
    worst = max(found.values(), default=0.0)
    return worst <= trial.tolerance, "equal to the reference", worst


def not_finite(trial: Trial) -> Outcome:
    """An example of NaN is counted and left out; the others' sum stays what it was."""
    x, y = trial.batch()
    if not x.is_floating_point():
        return True, "inputs are whole numbers", None
    j = EXAMPLES // 2
    ours = trial.run(replacement(x, j, "not finite"), y)
    private, without_it = trial.private(1.0), trial.private(1.0)
    private._add(ours, y, None)
    without_it._add(trial.run(x, y), y, without(EXAMPLES, j).float())
    statistics: BatchStatistics = private._sum.statistics
    sums: Mapping[str, Tensor] = private._sum.totals or {}
    wanted: Mapping[str, Tensor] = without_it._sum.totals or {}
    if not all(bool(torch.isfinite(s).all()) for s in sums.values()):
        return False, "the sum is not finite", None
    if statistics.not_finite != 1:
        return True, "the model turns NaN into numbers", None
    moved = max((distance(wanted[name], sums[name]) for name in sums), default=0.0)
    return moved <= LOOSE.get(trial.dtype, 1e-2), "counted and left out", float(moved)
