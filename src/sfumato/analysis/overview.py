"""Everything at once: the parts of an analysis of a run, one after another.

    run = sfumato.open("runs/digits-001")
    found = analyze(run, parts=["calibration", "curvature"])
    found.to_dict()

*Guarantee:* By default only held-out images are looked at. Numbers computed on the training images
(`on="train"`) are a release outside the mechanism: they carry a warning wherever they go.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor

from sfumato.analysis.activation_statistics import Activations, activations_of
from sfumato.analysis.calibration import Calibration, calibrate
from sfumato.analysis.classification import Array
from sfumato.analysis.cost import Cost, cost_of
from sfumato.analysis.curvature import PHYSICAL_BATCH, Hessian, Trace, trace_of
from sfumato.analysis.gradients import GradientNorms, gradient_norms
from sfumato.analysis.run_access import (
    at_snapshot,
    draw_images,
    mechanism,
    next_phase,
    part_of,
)
from sfumato.analysis.sparsity import Sparsity, sparsity_of
from sfumato.analysis.spectrum import EXACT, Spectrum, spectrum_of
from sfumato.analysis.trained_part import trained_part
from sfumato.data import ImageSet
from sfumato.data.progress_bar import progress
from sfumato.errors import UserError, nearest
from sfumato.memory import BatchSize, out_of_memory
from sfumato.privacy.per_example import PerExample
from sfumato.run import Run
from sfumato.training.class_weights import loss_of

PARTS = ("calibration", "curvature", "activations", "sparsity", "gradients", "cost")

EXAMPLES = 512
"""Images that a part other than calibration looks at unless told otherwise."""

WARNING = (
    "These numbers were computed on the training images: epsilon does not cover them. Keep them as "
    "confidential as the images."
)

TRACE_PROBES = 50


@dataclass(frozen=True)
class Effort:
    """The amount of work to spend.

    Attributes:
        examples: Images to look at; all for calibration and `EXAMPLES` for the rest if None.
        seed: Which images, and the random vectors of the curvature.
        iterations: Lanczos steps.
        probes: Random vectors of the spectrum.
        trace_probes: The most random vectors of the trace.
    """

    examples: int | None = None
    seed: int = 0
    iterations: int = 40
    probes: int = 3
    trace_probes: int = TRACE_PROBES

    def __post_init__(self) -> None:
        for name, least in (("examples", 2), ("iterations", 2), ("probes", 1), ("seed", 0)):
            value = getattr(self, name)
            if value is not None and value < least:
                raise UserError(f"--{name} must be at least {least}, not {value}.")


@dataclass(eq=False)
class Analysis:
    """The results of an analysis so far; parts not asked for or not reached are None.

    Attributes:
        run: The run.
        on: The part of the data looked at.
        effort: With how much work.
        calibration: See `sfumato.analysis.calibration`.
        trace: Of the Hessian.
        spectrum: Of the Hessian.
        loss: The mean loss on the images of the curvature.
        activations: Of the weights analysed.
        sparsity: Of the weights analysed.
        gradients: Of the weights analysed.
        cost: Of the network.
        course: By part, its value at each snapshot, as (step, value).
        missing: By part, why it could not be shown.
    """

    run: Run
    on: str
    effort: Effort
    calibration: Calibration | None = None
    trace: Trace | None = None
    spectrum: Spectrum | None = None
    loss: float | None = None
    activations: Activations | None = None
    sparsity: Sparsity | None = None
    gradients: GradientNorms | None = None
    cost: Cost | None = None
    course: dict[str, list[tuple[int, Any]]] = field(default_factory=dict)
    missing: dict[str, str] = field(default_factory=dict)

    @property
    def warning(self) -> str:
        """A remark that must accompany these numbers, or empty."""
        return WARNING if self.on == "train" and self.run.recipe.privacy.enabled else ""

    def to_dict(self) -> dict[str, Any]:
        """Plain values for JSON; what is not finite is None."""
        run = self.run
        content: dict[str, Any] = {
            "run": str(run.folder),
            "model": run.recipe.model.name,
            "data": run.dataset.name,
            "on": self.on,
            "weights": run.weights,
            "step": run.step,
            "seed": self.effort.seed,
        }
        if self.warning:
            content["warning"] = self.warning
        if run.notes:
            content["notes"] = list(run.notes)
        if self.calibration:
            content["calibration"] = self.calibration.to_dict()
        if self.trace or self.spectrum:
            content["curvature"] = {
                "loss": self.loss,
                "trace": self.trace.to_dict() if self.trace else None,
                **(self.spectrum.to_dict() if self.spectrum else {}),
            }
        for part in ("activations", "sparsity", "gradients", "cost"):
            value = getattr(self, part)
            if value is not None:
                content[part] = value.to_dict()
            if self.course.get(part):
                content.setdefault(part, {})["course"] = [
                    {"step": step, **_brief(part, each)} for step, each in self.course[part]
                ]
        if self.missing:
            content["missing"] = dict(self.missing)
        plain: dict[str, Any] = _finite(content)
        return plain


def analyze(
    run: Run,
    *,
    parts: Sequence[str] = PARTS,
    on: str | None = None,
    effort: Effort | None = None,
) -> Analysis:
    """Measure the parts asked for; one that cannot be measured says why in `missing`.

    Args:
        run: From `sfumato.open`.
        parts: Any of `PARTS`.
        on: `validation`, `test` or `train`; validation if the run has it, else test, if None.
        effort: The amount of work to spend.
    """
    found = begin(run, on=on, effort=effort)
    for part in check_parts(parts):
        measure(found, part)
    return found


def check_parts(parts: Sequence[str]) -> tuple[str, ...]:
    """The parts in their own order, each once."""
    for part in parts:
        if part not in PARTS:
            raise UserError(
                f"There is no analysis '{part}'.{nearest(part, PARTS)} Known: {', '.join(PARTS)}."
            )
    return tuple(part for part in PARTS if part in parts)


def begin(run: Run, *, on: str | None = None, effort: Effort | None = None) -> Analysis:
    """An analysis with nothing in it yet."""
    return Analysis(run, part_of(run, on)[0], effort or Effort())


def measure(found: Analysis, part: str) -> None:
    """Measure one part and put it in its place, or the reason why not into `missing`."""
    try:
        _MEASURES[part](found)
    except UserError as error:
        found.missing[part] = str(error)
    except Exception as error:
        if not out_of_memory(error):
            raise
        found.missing[part] = "there is not enough memory for it: lower --examples."


def logits(run: Run, part: ImageSet, *, count: int | None = None, seed: int = 0) -> Array:
    """The network's outputs on images of a part, in bounded memory."""
    return _outputs(run, part, count, seed)[0]


@torch.no_grad()
def _outputs(run: Run, part: ImageSet, count: int | None, seed: int) -> tuple[Array, Array]:
    index = np.arange(len(part))
    if count is not None and count < len(part):
        index = np.sort(np.random.default_rng(seed).permutation(len(part))[:count])

    def outputs(some: slice) -> Array:
        x, _ = draw_images(run, part.take(index[some]), None)
        logits: Tensor = run.network(x)
        return logits.cpu().double().numpy()

    rows = []
    with progress(f"{run.folder.name}: outputs", len(index), unit="images") as advance:
        for found in BatchSize(256).parts(len(index), outputs):
            rows.append(found)
            advance(len(found))
    return np.concatenate(rows), part.labels[index]


def _calibration(found: Analysis) -> None:
    run, effort = found.run, found.effort
    _, part = part_of(run, found.on)
    outputs, labels = _outputs(run, part, effort.examples, effort.seed)
    other = run.dataset.validation
    held_out = None
    if found.on != "validation" and other is not None and len(other) > 1:
        held_out = (*_outputs(run, other, None, effort.seed), "validation")
    elif found.on == "train":
        held_out = (*_outputs(run, run.dataset.test, None, effort.seed), "test")
    found.calibration = calibrate(outputs, labels, held_out=held_out, seed=effort.seed)


def _curvature(found: Analysis) -> None:
    run, effort = found.run, found.effort
    x, y = _images(found)
    part, entering = trained_part(run.network, x)
    fixed = part is not run.network
    hessian = Hessian(part, entering, y, physical_batch=len(x) if fixed else PHYSICAL_BATCH)
    with torch.no_grad():
        outputs = torch.cat([*BatchSize(256).parts(len(x), lambda part: run.network(x[part]))])
        found.loss = float(hessian.loss(outputs.cpu().double(), y.cpu()))
    exact = hessian.size <= EXACT
    products = hessian.size if exact else effort.probes * min(effort.iterations, hessian.size)
    label = f"{run.folder.name}: curvature"
    with progress(label, products + effort.trace_probes, unit="products") as advance:
        found.trace = trace_of(
            hessian, probes=effort.trace_probes, seed=effort.seed, advance=advance
        )
        found.spectrum = spectrum_of(
            hessian,
            iterations=effort.iterations,
            probes=effort.probes,
            seed=effort.seed,
            advance=advance,
        )


def _activations(found: Analysis) -> None:
    run = found.run
    x, _ = _images(found)
    total = 2 * len(x) * (1 + len(run.snapshots))
    with progress(f"{run.folder.name}: activations", total, unit="images") as advance:
        found.activations = activations_of(run.network, x, advance=advance)
        _at_snapshots(
            found, "activations", lambda _: activations_of(run.network, x, bins=1, advance=advance)
        )


def _sparsity(found: Analysis) -> None:
    run = found.run
    x, y = _images(found)
    with progress(f"{run.folder.name}: sparsity", 1 + len(run.snapshots)) as advance:
        found.sparsity = sparsity_of(run.network, x, y)
        advance(1)

        def one(_: int) -> Sparsity:
            value = sparsity_of(run.network, x, y)
            advance(1)
            return value

        _at_snapshots(found, "sparsity", one)


def _gradients(found: Analysis) -> None:
    run = found.run
    x, y = _images(found)
    total = len(y) * (1 + len(run.snapshots))
    engine = PerExample(run.network, loss=loss_of(run.recipe, run.device))
    with progress(f"{run.folder.name}: gradients", total, unit="images") as advance:

        def one(step: int | None) -> GradientNorms:
            rule, sigma, batch = mechanism(run, step)
            with next_phase(run, step):
                return gradient_norms(
                    run.network, x, y, clipping=rule, noise_multiplier=sigma, expected_batch=batch,
                    engine=engine, advance=advance,
                )  # fmt: skip

        found.gradients = one(run.step)
        _at_snapshots(found, "gradients", one)


def _cost(found: Analysis) -> None:
    d = found.run.description
    found.cost = cost_of(found.run.network, (d.channels, *d.size))


_MEASURES: dict[str, Callable[[Analysis], None]] = {
    "calibration": _calibration,
    "curvature": _curvature,
    "activations": _activations,
    "sparsity": _sparsity,
    "gradients": _gradients,
    "cost": _cost,
}


def _images(found: Analysis) -> tuple[Tensor, Tensor]:
    _, part = part_of(found.run, found.on)
    return draw_images(found.run, part, found.effort.examples or EXAMPLES, seed=found.effort.seed)


def _at_snapshots(found: Analysis, part: str, value: Callable[[int], Any]) -> None:
    """The value of a part with the weights of every snapshot that can be read."""
    course = found.course.setdefault(part, [])
    for step, path in found.run.snapshots:
        try:
            with at_snapshot(found.run, path):
                course.append((step, value(step)))
        except UserError as error:
            note = f"Snapshot of step {step} left out: {error}"
            if note not in found.run.notes:
                found.run.notes.append(note)


def _brief(part: str, value: Any) -> dict[str, Any]:
    """The part of an analysis that is kept of a snapshot: no histograms, no tables by tensor."""
    if part == "activations":
        kept = ("mean", "std", "skewness", "norm", "norm_std")
        return {
            "layers": {d.name: {k: getattr(d, k) for k in kept} for d in value.layers},
            "residuals": {
                block: {path: {k: getattr(d, k) for k in kept} for path, d in paths.items()}
                for block, paths in value.residuals.items()
            },
        }
    content: dict[str, Any] = value.to_dict()
    content.pop("by_tensor", None)
    return content


def _finite(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _finite(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(inner) for inner in value]
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value
