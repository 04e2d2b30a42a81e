"""Measures of a finished model besides its accuracy, on test images."""

from __future__ import annotations

import statistics
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from sfumato.errors import UserError, nearest

if TYPE_CHECKING:
    from sfumato.run import Run

_IMAGES = 2000
"""Number of test images that is enough for a mean to two digits."""

_CURVED = 512
"""Number of test images whose loss is differentiated twice."""

_TRACED = 0.03
"""Relative standard error of the Hessian's trace that is small enough."""

_NEAR_ZERO = 1e-3
"""Size below which a parameter counts as near zero; Hölzl et al. (2023) do not state theirs."""


def measure(
    names: tuple[str, ...], folder: Path, *, root: Path | None, device: str
) -> dict[str, float]:
    """The measures with these names, of the weights in a run folder.

    Args:
        names: Some of `MEASURES`, each of which gives one number or several.
        folder: The finished run.
        root: First folder to search for data sets.
        device: `auto`, `cpu`, `cuda` or `mps`.
    """
    for name in names:
        if name not in MEASURES:
            raise UserError(
                f"There is no measure '{name}'.{nearest(name, MEASURES)} "
                f"Known: {', '.join(MEASURES)}."
            )
    if not names:
        return {}
    from sfumato.run import Run
    from sfumato.training.devices import pick_device

    run = Run(folder, root=root, device=pick_device(device))
    return {key: number for name in names for key, number in MEASURES[name](run).items()}


def activation_norm(run: Run) -> dict[str, float]:
    """Mean l2 norm of the first layer's activations (Papernot et al., 2019, figure 3)."""
    from sfumato.analysis.activation_statistics import activations_of, first_activation
    from sfumato.analysis.run_access import draw_images

    x, _ = draw_images(run, run.dataset.test, _IMAGES)
    first = first_activation(activations_of(run.network, x, bins=1))
    return {} if first is None else {"activation-norm": first.norm}


def residuals(run: Run) -> dict[str, float]:
    """Mean and deviation of V_A before and after ScaleNorm, means over the residual blocks."""
    from sfumato.analysis import activations_of
    from sfumato.analysis.run_access import draw_images

    x, _ = draw_images(run, run.dataset.test, _IMAGES)
    blocks = activations_of(run.network, x, bins=1).residuals.values()
    found: dict[str, float] = {}
    for path in ("V_A", "V_A^S"):
        if own := [paths[path] for paths in blocks if path in paths]:
            found[f"{path} mean"] = statistics.fmean(d.mean for d in own)
            found[f"{path} std"] = statistics.fmean(d.std for d in own)
    return found


def curvature(run: Run) -> dict[str, float]:
    """Trace and largest eigenvalue of the loss's Hessian (Klause et al., 2022, section 3.1)."""
    from sfumato.analysis import Hessian, top_eigenvalues, trace_of
    from sfumato.analysis.curvature import PHYSICAL_BATCH
    from sfumato.analysis.run_access import draw_images

    x, y = draw_images(run, run.dataset.test, _CURVED)
    # On a GPU in one batch if it fits, whose graph is kept: twice as fast.
    batch = _CURVED if run.device.type == "cuda" else PHYSICAL_BATCH
    hessian = Hessian(run.network, x, y, physical_batch=batch)
    values, _ = top_eigenvalues(hessian, count=1)
    trace = trace_of(hessian, tolerance=_TRACED).value
    return {"Hessian trace": trace, "largest eigenvalue": float(values[0])}


def calibration(run: Run) -> dict[str, float]:
    """Brier score (0 to 2) and expected calibration error (Hölzl et al., 2023, section 4.3)."""
    from sfumato.analysis import scores, softmax
    from sfumato.analysis.overview import logits

    test = run.dataset.test
    found = scores(softmax(logits(run, test)), test.labels)
    return {"Brier score": found.brier, "ECE": found.ece}


def sparsity(run: Run) -> dict[str, float]:
    """The share of parameters near zero (Hölzl et al., 2023, figure 3)."""
    from sfumato.analysis import l0_eps

    return {"near-zero parameters": l0_eps(run.network.parameters(), eps=_NEAR_ZERO)}


MEASURES: dict[str, Callable[[Run], dict[str, float]]] = {
    "activation-norm": activation_norm,
    "residuals": residuals,
    "curvature": curvature,
    "calibration": calibration,
    "sparsity": sparsity,
}
