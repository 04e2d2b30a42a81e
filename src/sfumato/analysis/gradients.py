"""Gradients under clipping and noise: norms, clipped fraction and signal-to-noise.

Measured on images that need not be the training images, with the run's own clipping rule and noise.
The signal of a layer is the norm of its part of the mean clipped gradient; the noise that a step
adds to it has norm sigma * S / B * sqrt(d) for d parameters, sensitivity S and expected batch B.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from sfumato.errors import UserError
from sfumato.memory import BatchSize
from sfumato.privacy.clipping import ClippingRule
from sfumato.privacy.numerics.parameter_groups import layer_of
from sfumato.privacy.per_example import PerExample

_BATCH = 32


@dataclass(frozen=True)
class LayerGradient:
    """The gradient of one layer's parameters.

    Attributes:
        name: The layer.
        size: Its trainable parameters d.
        norm: Norm of an example's gradient, averaged over examples.
        clipped_norm: The same after clipping.
        signal: Norm of the mean clipped gradient over all images that might have been drawn,
            estimated without the bias that a finite number of examples gives it.
        measured: Norm of the mean clipped gradient over these examples, bias and all.
        noise: Expected norm of the noise that a step adds; 0 without privacy.
    """

    name: str
    size: int
    norm: float
    clipped_norm: float
    signal: float
    measured: float
    noise: float

    @property
    def snr(self) -> float:
        """Signal over noise; infinite without noise."""
        return self.signal / self.noise if self.noise else math.inf


@dataclass(frozen=True)
class GradientNorms:
    """The result of `gradient_norms`.

    Attributes:
        layers: In the order of parameters.
        whole: All of them together.
        clipped: Fraction of examples that the rule shortens.
        examples: How many examples.
        rule: The clipping rule in words.
        quantiles: The 5, 25, 50, 75 and 95 % quantiles of the norm of an example's whole gradient.
    """

    layers: tuple[LayerGradient, ...]
    whole: LayerGradient
    clipped: float
    examples: int
    rule: str
    quantiles: tuple[float, ...]

    def to_dict(self) -> dict[str, Any]:
        """Plain values for JSON."""
        return {
            "examples": self.examples,
            "clipped": self.clipped,
            "rule": self.rule,
            "norm_quantiles": list(self.quantiles),
            "whole": _plain(self.whole),
            "layers": [_plain(layer) for layer in self.layers],
        }


def gradient_norms(
    model: nn.Module,
    x: Tensor,
    y: Tensor,
    *,
    clipping: ClippingRule,
    noise_multiplier: float = 0.0,
    expected_batch: float,
    batch: int = _BATCH,
    engine: PerExample | None = None,
    advance: Callable[[int], None] | None = None,
) -> GradientNorms:
    """Per-example gradients of a model on images, layer by layer, as the mechanism would see them.

    Args:
        model: As `sfumato.privacy.PerExample` takes it; used in eval mode and left as it was.
        x: Images `(n, ...)`, normalised, as they are: without augmentation.
        y: Labels.
        clipping: The rule, for any parameters.
        noise_multiplier: sigma of a step.
        expected_batch: B.
        batch: Examples differentiated at once; fewer if the memory does not suffice.
        engine: One made for this model earlier, so that it is not checked anew.
        advance: Called with the number of examples just done.

    Raises:
        UserError: If there are fewer than two images, or the model mixes examples.
    """
    if len(y) < 2:
        raise UserError(f"Gradient norms need at least 2 images, not {len(y)}.")
    per_example = engine or PerExample(model)
    parameters = per_example.trainable
    rule = clipping.bind(list(parameters), [p.shape for p in parameters.values()])
    sums = [torch.zeros_like(p, dtype=torch.float64, device="cpu") for p in parameters.values()]
    squares, shortened, weights = [], 0, []
    modes = {module: module.training for module in model.modules()}

    def part(rows: slice) -> tuple[Tensor, Tensor, Sequence[Tensor]]:
        found = per_example(x[rows], y[rows])
        squared = found.squared_norms()
        weight = rule.weights(squared)
        return squared, weight, found.weighted_sum(weight)

    model.eval()
    try:
        for squared, weight, clipped in BatchSize(batch).parts(len(y), part):
            for total, own in zip(sums, clipped, strict=True):
                total += own.to("cpu", torch.float64)
            shortened += int(rule.clipped(squared).sum())
            squares.append(squared.to("cpu", torch.float64))
            weights.append(weight.to("cpu", torch.float64))
            if advance:
                advance(len(squared))
    finally:
        for module, mode in modes.items():
            module.training = mode
    sigma = rule.gradient_noise(noise_multiplier) if noise_multiplier else 0.0
    each = sigma * rule.sensitivity / expected_batch if sigma else 0.0
    before, factors = torch.cat(squares), torch.cat(weights)
    after = torch.where(factors > 0, before * factors.square(), 0.0)
    sizes = [p.numel() for p in parameters.values()]
    columns = _layers(list(parameters))
    rows = [
        _measure(name, where, before, after, sums, sizes, each) for name, where in columns.items()
    ]
    everything = list(range(len(sizes)))
    norms = before.sum(1).sqrt()
    quantiles = torch.quantile(norms, norms.new_tensor([0.05, 0.25, 0.5, 0.75, 0.95]))
    return GradientNorms(
        layers=tuple(rows),
        whole=_measure("(all)", everything, before, after, sums, sizes, each),
        clipped=shortened / len(y),
        examples=len(y),
        rule=rule.describe(),
        quantiles=tuple(quantiles.tolist()),
    )


def _layers(names: Sequence[str]) -> dict[str, list[int]]:
    """For every layer the columns of its parameters, as per-layer clipping groups them."""
    columns: dict[str, list[int]] = {}
    for index, name in enumerate(names):
        columns.setdefault(layer_of(name), []).append(index)
    return columns


def _measure(
    name: str,
    where: list[int],
    before: Tensor,
    after: Tensor,
    sums: Sequence[Tensor],
    sizes: Sequence[int],
    each: float,
) -> LayerGradient:
    """Norms of some parameters' gradients.

    For n examples with clipped gradients c_i of mean m, E|mean c|^2 = |m|^2 + (E|c|^2 - |m|^2)/n,
    so (n |mean c|^2 - mean |c|^2) / (n - 1) is |m|^2 without bias.
    """
    n = len(before)
    squared = sum(float(sums[k].square().sum()) for k in where) / n**2
    own = after[:, where].sum(1)
    unbiased = (n * squared - float(own.mean())) / (n - 1)
    size = sum(sizes[k] for k in where)
    return LayerGradient(
        name=name,
        size=size,
        norm=float(before[:, where].sum(1).sqrt().mean()),
        clipped_norm=float(own.sqrt().mean()),
        signal=math.sqrt(max(0.0, unbiased)),
        measured=math.sqrt(squared),
        noise=each * math.sqrt(size),
    )


def _plain(layer: LayerGradient) -> dict[str, Any]:
    return {
        "name": layer.name,
        "size": layer.size,
        "norm": layer.norm,
        "clipped_norm": layer.clipped_norm,
        "signal": layer.signal,
        "measured": layer.measured,
        "noise": layer.noise,
        "snr": layer.snr if layer.noise else None,
    }
