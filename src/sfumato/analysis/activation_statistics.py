"""Activation statistics: histograms, moments and norms of the outputs of a network's layers.

Two passes over the images keep memory bounded: the first finds moments and ranges, the second fills
histograms. Layers are norms and activations, found as modules whatever the model, and the named
tensors of residual blocks (`sfumato.analysis.residuals`).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.utils import parametrize

from sfumato.analysis.classification import Array
from sfumato.analysis.residuals import watched
from sfumato.memory import BatchSize
from sfumato.privacy.numerics.precision import widest

HISTOGRAM = 60
"""Bins of a histogram."""

REACH = 5.0
"""Histograms reach so many standard deviations to both sides of the mean."""

_BATCH = 128


@dataclass(frozen=True, eq=False)
class Distribution:
    """The values of one tensor over all images, channels and positions.

    Attributes:
        name: The layer, or block and path such as `res1 V_A`.
        kind: `norm`, `activation`, `convolution`, `linear` or `residual`.
        count: Number of values.
        mean: Their mean.
        std: Their standard deviation.
        skewness: Third standardised moment: 0 for a distribution that is symmetric.
        smallest: The smallest value.
        largest: The largest value.
        zeros: The fraction that is exactly zero.
        norm: The l2 norm of an image's tensor, averaged over images.
        norm_std: The standard deviation of that norm over images.
        edges: Of the histogram; values beyond its ends are in no bin.
        counts: Values in each bin.
    """

    name: str
    kind: str
    count: int
    mean: float
    std: float
    skewness: float
    smallest: float
    largest: float
    zeros: float
    norm: float
    norm_std: float
    edges: Array
    counts: Array

    def to_dict(self) -> dict[str, Any]:
        """Plain values for JSON."""
        plain = {
            name: getattr(self, name)
            for name in ("name", "kind", "count", "mean", "std", "skewness", "smallest", "largest",
                         "zeros", "norm", "norm_std")
        }  # fmt: skip
        return plain | {"edges": self.edges.tolist(), "counts": self.counts.tolist()}


@dataclass(frozen=True)
class Activations:
    """The result of `activations_of`.

    Attributes:
        layers: Outputs of norms and activations, in the order in which they run.
        residuals: For every residual block its V_R, V_F, V_A and, with ScaleNorm, V_A^S.
    """

    layers: tuple[Distribution, ...]
    residuals: dict[str, dict[str, Distribution]]

    def to_dict(self) -> dict[str, Any]:
        """Plain values for JSON."""
        return {
            "layers": [layer.to_dict() for layer in self.layers],
            "residuals": {
                block: {path: d.to_dict() for path, d in paths.items()}
                for block, paths in self.residuals.items()
            },
        }


@dataclass
class _Moments:
    """Sums of one tensor's values, shifted by the first batch's mean so that nothing cancels."""

    kind: str
    shift: float = math.nan
    count: int = 0
    powers: list[float] = field(default_factory=lambda: [0.0, 0.0, 0.0])
    zeros: int = 0
    smallest: float = math.inf
    largest: float = -math.inf
    norms: list[float] = field(default_factory=list)
    edges: Array | None = None
    counts: Array | None = None

    def see(self, t: Tensor) -> None:
        if self.edges is not None and self.counts is not None:
            inside = t.detach().float().cpu().flatten().numpy()
            self.counts += np.histogram(inside, self.edges)[0]
            return
        values = t.detach().to(widest(t.device))
        if math.isnan(self.shift):
            self.shift = float(values.mean()) if values.numel() else 0.0
        off = values - self.shift
        self.count += values.numel()
        for k in range(3):
            self.powers[k] += float(off.pow(k + 1).sum())
        self.zeros += int((values == 0).sum())
        self.smallest = min(self.smallest, float(values.min()))
        self.largest = max(self.largest, float(values.max()))
        self.norms += torch.linalg.vector_norm(values.flatten(1), dim=1).tolist()

    def begin_histogram(self, bins: int) -> None:
        mean, std, _ = self.moments()
        low, high = max(self.smallest, mean - REACH * std), min(self.largest, mean + REACH * std)
        if not (math.isfinite(low) and math.isfinite(high)):
            low, high = -1.0, 1.0
        if high <= low:
            low, high = low - 0.5, high + 0.5
        self.edges, self.counts = np.linspace(low, high, bins + 1), np.zeros(bins, dtype=np.int64)

    def moments(self) -> tuple[float, float, float]:
        """Mean, standard deviation and skewness."""
        first, second, third = (power / self.count for power in self.powers)
        variance = max(0.0, second - first**2)
        central = third - 3 * first * second + 2 * first**3
        skewness = central / variance**1.5 if variance > 0 else 0.0
        return self.shift + first, math.sqrt(variance), skewness

    def distribution(self, name: str) -> Distribution:
        mean, std, skewness = self.moments()
        norms = np.array(self.norms)
        assert self.edges is not None and self.counts is not None
        return Distribution(
            name=name,
            kind=self.kind,
            count=self.count,
            mean=mean,
            std=std,
            skewness=skewness,
            smallest=self.smallest,
            largest=self.largest,
            zeros=self.zeros / self.count,
            norm=float(norms.mean()),
            norm_std=float(norms.std()),
            edges=self.edges,
            counts=self.counts,
        )


def layer_kind(module: nn.Module) -> str | None:
    """`norm`, `activation`, `convolution`, `linear`, or None for any other module."""
    kind = parametrize.type_before_parametrizations(module)
    if isinstance(module, nn.Conv1d | nn.Conv2d | nn.Conv3d):
        return "convolution"
    if isinstance(module, nn.Linear):
        return "linear"
    if "norm" in kind.__name__.lower():
        return "norm"
    home = kind.__module__
    if home in ("torch.nn.modules.activation", "sfumato.nn.activations"):
        return None if isinstance(module, nn.MultiheadAttention) else "activation"
    return "activation" if kind.__name__ == "FourierNonlinearity" else None


def layers(model: nn.Module) -> dict[str, str]:
    """Names and kinds of the norms and activations; of convolutions and products if none are."""
    kinds = {name: layer_kind(module) for name, module in _outermost(model)}
    wanted = {name: kind for name, kind in kinds.items() if kind in ("norm", "activation")}
    return wanted or {name: kind for name, kind in kinds.items() if kind is not None}


def _outermost(module: nn.Module, name: str = "") -> Iterator[tuple[str, nn.Module]]:
    """Modules by name, without looking inside those that are a layer themselves."""
    if layer_kind(module) is not None:
        yield name, module
        return
    for key, child in module.named_children():
        if key != "parametrizations":
            yield from _outermost(child, f"{name}.{key}" if name else key)


def activations_of(
    model: nn.Module,
    x: Tensor,
    *,
    bins: int = HISTOGRAM,
    batch: int = _BATCH,
    advance: Callable[[int], None] | None = None,
) -> Activations:
    """Distributions of what the layers and residual blocks of a model put out, in eval mode.

    Args:
        model: Any module; it is left as it was.
        x: Inputs `(n, ...)`, normalised.
        bins: Of the histograms.
        batch: Images run at once; fewer if the memory does not suffice.
        advance: Called with the number of images just run, twice for each image.
    """
    size = BatchSize(batch)
    return size.attempt(lambda rows: _activations(model, x, bins, rows, advance))


def _activations(
    model: nn.Module, x: Tensor, bins: int, batch: int, advance: Callable[[int], None] | None
) -> Activations:
    """As `activations_of`, so many images at once."""
    found: dict[tuple[str, str], _Moments] = {}

    def see(name: str, path: str, kind: str, tensor: Tensor) -> None:
        found.setdefault((name, path), _Moments(kind)).see(tensor)

    def run_all() -> None:
        for part in torch.split(x, batch):
            run(part)
            if advance:
                advance(len(part))

    with _evaluating(model), torch.no_grad():
        names = layers(model)
        hooks = [
            model.get_submodule(name).register_forward_hook(_hook(name, kind, see))
            for name, kind in names.items()
        ]
        try:
            with watched(model, lambda b, p, t: see(b, p, "residual", t)) as run:
                run_all()
                for moments in found.values():
                    moments.begin_histogram(bins)
                run_all()
        finally:
            for hook in hooks:
                hook.remove()
    residuals: dict[str, dict[str, Distribution]] = {}
    rest = []
    for (name, path), moments in found.items():
        if path:
            residuals.setdefault(name, {})[path] = moments.distribution(f"{name} {path}")
        else:
            rest.append(moments.distribution(name))
    return Activations(tuple(rest), residuals)


def _hook(
    name: str, kind: str, see: Callable[[str, str, str, Tensor], None]
) -> Callable[[nn.Module, Any, Any], None]:
    def hook(_module: nn.Module, _args: Any, result: Any) -> None:
        if isinstance(result, Tensor) and result.numel():
            see(name, "", kind, result)

    return hook


@contextmanager
def _evaluating(model: nn.Module) -> Iterator[None]:
    modes = {module: module.training for module in model.modules()}
    model.eval()
    try:
        yield
    finally:
        for module, mode in modes.items():
            module.training = mode


def first_activation(found: Activations) -> Distribution | None:
    """The outputs of the first layer's activation, which Papernot et al. (2019) report."""
    ranked: Sequence[str] = ("activation", "norm", "convolution", "linear")
    for kind in ranked:
        for layer in found.layers:
            if layer.kind == kind:
                return layer
    return None
