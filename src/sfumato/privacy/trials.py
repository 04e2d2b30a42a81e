"""Single trials of the engine on a model: what `verify` reports, one function each."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property

import torch
from torch import Tensor, nn

from sfumato.privacy.clipping import MARGIN, Flat
from sfumato.privacy.gradients import Gradients, Loss, PerExample
from sfumato.privacy.isolation import LOOSE, replacement, without
from sfumato.privacy.mechanism import BatchStatistics, PrivateGradients
from sfumato.privacy.noise import GaussianNoise
from sfumato.privacy.probe import Comparison, Draws, errors, held, how_to_compare, tolerance
from sfumato.privacy.reference import one_at_a_time
from sfumato.privacy.sampling import PoissonSampler, physical_batches
from sfumato.privacy.state import Snapshot, seed
from sfumato.privacy.tracing import distance

EXAMPLES = 5
Outcome = tuple[bool, str, float | None]


@dataclass
class Trial:
    """A variant of a model under test, with what is drawn for it and its engines by views."""

    label: str
    model: nn.Module
    like_x: Tensor
    like_y: Tensor
    loss: Loss
    engines: dict[int, PerExample] = field(default_factory=dict)

    @cached_property
    def draws(self) -> Draws:
        """Random inputs and targets."""
        return Draws.for_model(self.model, self.loss, self.like_x, self.like_y)

    @cached_property
    def comparison(self) -> Comparison:
        """How the model can be compared with itself."""
        return how_to_compare(self.model, self.draws.x(3))

    @cached_property
    def state(self) -> Snapshot:
        """The model's state before anything ran."""
        return Snapshot(self.model)

    @property
    def dtype(self) -> torch.dtype:
        """The precision of the parameters."""
        return next((p.dtype for p in self.model.parameters()), self.like_x.dtype)

    def batch(self, examples: int = EXAMPLES, views: int = 1) -> tuple[Tensor, Tensor]:
        """Random inputs and targets for some examples."""
        return self.draws.x(examples * views), self.draws.y(examples)

    def run(self, engine: PerExample, x: Tensor, y: Tensor) -> Gradients:
        """The engine's gradients, from a fixed state and with random numbers held still."""
        self.state.put_back()
        with held(self.model, self.comparison):
            seed(self.model)
            engine._method_for(x, y)
            seed(self.model)
            found = engine(x.clone(), y)
        self.state.put_back()
        return found

    def alone(self, x: Tensor, y: Tensor, *, views: int = 1) -> Gradients:
        """The reference's gradients, likewise."""
        self.state.put_back()
        with held(self.model, self.comparison):
            seed(self.model)
            found = one_at_a_time(self.model, x.clone(), y, loss=self.loss, views=views)
        self.state.put_back()
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
        private.per_example = self.engines[1]
        return private

    def unused(self) -> list[str]:
        """A warning for each parameter that receives no gradient from random inputs."""
        norms = self.alone(*self.batch()).squared_norms().sum(0)
        names = self.engines[1].trainable
        return [
            f"parameter '{name}' receives no gradient: noise alone will move it; freeze it"
            for name, norm in zip(names, norms.tolist(), strict=True)
            if norm == 0
        ]


def gradients_agree(
    trial: Trial, engine: PerExample, batch: int
) -> tuple[bool, str, float, dict[str, float]]:
    """Every parameter's per-example gradient against one example at a time."""
    if trial.comparison == "not at all":
        return False, "the model draws random numbers that cannot be held still", 0.0, {}
    table: dict[str, float] = {}
    for examples in (3, batch):
        x, y = trial.batch(examples, engine.views)
        reference = trial.alone(x, y, views=engine.views)
        for name, error in errors(trial.run(engine, x, y), reference).items():
            table[name] = max(error, table.get(name, 0.0))
    worst = max(table, key=lambda name: table[name], default="")
    error = table.get(worst, 0.0)
    passed = error <= tolerance(trial.dtype)
    detail = f"by {engine.method}"
    if trial.comparison != "as it is":
        detail += f", compared {trial.comparison}"
    return passed, detail if passed else f"{detail}: parameter '{worst}' differs", error, table


def example_apart(trial: Trial) -> Outcome:
    """Changing one example, into NaN too, moves no other example's gradient."""
    engine = trial.engines[1]
    x, y = trial.batch()
    base, again = trial.run(engine, x, y), trial.run(engine, x, y)
    allowed = 0.0 if _furthest(base, again, None) == 0 else LOOSE.get(trial.dtype, 1e-2)
    moved = 0.0
    for j, kind in ((0, "other"), (EXAMPLES // 2, "large"), (EXAMPLES - 1, "zeros")):
        moved = max(moved, _furthest(base, trial.run(engine, replacement(x, j, kind), y), j))
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
    factors = (clip / norms).clamp(max=1).to(trial.dtype)
    wanted = [torch.tensordot(factors, t, 1) for t in reference.tensors if t is not None]
    worst = 0.0
    for size in (EXAMPLES, 2, 3):
        private = trial.private(clip)
        for part in physical_batches(torch.arange(EXAMPLES), size):
            own = part.indices.to(x.device)
            private._add(trial.run(trial.engines[1], x[own], y[own]), y[own], part.weights)
        sums = private._sums or {}
        off = sum(
            float((s - w).double().square().sum())
            for s, w in zip(sums.values(), wanted, strict=True)
        )
        worst = max(worst, off**0.5 / clip)
    allowed = EXAMPLES * (2 * MARGIN + tolerance(trial.dtype))
    return worst <= allowed, f"C = {clip:.3g}, whole and in batches of 2 and 3", worst


def realised_norm(trial: Trial) -> Outcome:
    """The norm of what a single drawn example adds to the sum, measured in float64."""
    engine, (x, y) = trial.engines[1], trial.batch()
    typical = float(_norms(trial.run(engine, x, y)).median()) or 1.0
    ratio = 0.0
    for scale in (1e-6, 1.0, 1e6):
        engine.loss = lambda out, target, scale=scale: scale * trial.loss(out, target)
        try:
            gradients = trial.run(engine, x, y)
        finally:
            engine.loss = trial.loss
        own = _norms(gradients).tolist()
        for j in range(EXAMPLES):
            for clip in (typical, own[j]):
                if 0 < clip < float("inf"):
                    ratio = max(ratio, _added(trial, gradients, y, j, clip) / clip)
    return ratio <= 1, "small, typical and huge gradients, and C at the norm itself", ratio


def _added(trial: Trial, gradients: Gradients, y: Tensor, j: int, clip: float) -> float:
    private = trial.private(clip)
    private._add(gradients, y, (~without(EXAMPLES, j)).float())
    sums = (private._sums or {}).values()
    return sum(float(s.cpu().double().square().sum()) for s in sums) ** 0.5


def empty_batch(trial: Trial) -> Outcome:
    """No examples: a sum of zeros, and a release all the same."""
    x, y = trial.batch()
    private = trial.private(1.0)
    private.accumulate(x[:0], y[:0])
    private.release()
    parameters = trial.engines[1].trainable
    fine = all(p.grad is not None and not bool(p.grad.any()) for p in parameters.values())
    for p in parameters.values():
        p.grad = None
    return fine, "a step of pure noise", None


def single_example(trial: Trial) -> Outcome:
    """One example: the reference's gradient."""
    x, y = trial.batch(1)
    found = errors(trial.run(trial.engines[1], x, y), trial.alone(x, y))
    worst = max(found.values(), default=0.0)
    return worst <= tolerance(trial.dtype), "equal to the reference", worst


def not_finite(trial: Trial) -> Outcome:
    """An example of NaN is counted and left out; the others' sum stays what it was."""
    x, y = trial.batch()
    if not x.is_floating_point():
        return True, "inputs are whole numbers", None
    j = EXAMPLES // 2
    ours = trial.run(trial.engines[1], replacement(x, j, "not finite"), y)
    private, without_it = trial.private(1.0), trial.private(1.0)
    private._add(ours, y, None)
    without_it._add(trial.run(trial.engines[1], x, y), y, without(EXAMPLES, j).float())
    statistics: BatchStatistics = private._statistics
    sums, wanted = private._sums or {}, without_it._sums or {}
    if not all(bool(torch.isfinite(s).all()) for s in sums.values()):
        return False, "the sum is not finite", None
    if statistics.not_finite != 1:
        return True, "the model turns NaN into numbers", None
    moved = max((distance(wanted[name], sums[name]) for name in sums), default=0.0)
    return moved <= LOOSE.get(trial.dtype, 1e-2), "counted and left out", float(moved)
