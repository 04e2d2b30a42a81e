"""Whitening layers of a new model, fitted to drawn images.

*Guarantee:* The images are drawn by the program, always the same ones, so what the layers hold
depends on no image that a run is trained on.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from sfumato.data import drawn
from sfumato.live import working
from sfumato.nn.whitening import ChannelWhitening

_KIND = "dead-leaves"
"""The kind of images."""
_IMAGES = 256
_TOGETHER = 32
"""Number of images that are drawn, and that run at once."""


def fitted_names(model: nn.Module) -> list[str]:
    """The names of the parameters that whitening layers have, in the order of the model."""
    layers = {m for m in model.modules() if isinstance(m, ChannelWhitening)}
    own = {id(p) for layer in layers for p in layer.parameters()}
    return [name for name, p in model.named_parameters() if id(p) in own]


def fit_whitening(
    model: nn.Module,
    *,
    channels: int,
    size: tuple[int, int],
    mean: Sequence[float],
    std: Sequence[float],
) -> None:
    """Fit the whitening layers of a model, none of which may precede another.

    Args:
        model: The model with its initial weights, on the CPU.
        channels: Channels of its images.
        size: Their height and width.
        mean: Normalisation constants.
        std: The same.
    """
    layers = [module for module in model.modules() if isinstance(module, ChannelWhitening)]
    if not layers:
        return
    images = _drawn(channels, size, mean, std)
    seen: dict[nn.Module, list[Tensor]] = {layer: [] for layer in layers}
    hooks = [
        layer.register_forward_pre_hook(lambda module, args: seen[module].append(args[0]))
        for layer in layers
    ]
    modes = {module: module.training for module in model.modules()}
    model.eval()
    try:
        with torch.no_grad(), working("fitting layers to drawn images"):
            for first in range(0, len(images), _TOGETHER):
                model(images[first : first + _TOGETHER])
    finally:
        for hook in hooks:
            hook.remove()
        for module, mode in modes.items():
            module.training = mode
    for layer in layers:
        layer.fit(torch.cat(seen[layer]))


def _drawn(
    channels: int, size: tuple[int, int], mean: Sequence[float], std: Sequence[float]
) -> Tensor:
    """Normalised images of this shape; grey ones if they are neither grey nor in colour."""
    height, width = size
    own = channels if channels in (1, 3) else 1
    generator = torch.Generator().manual_seed(0)
    images = drawn.draw(_KIND, _IMAGES, side=max(size), channels=own, generator=generator)
    x = images[..., :height, :width].float().expand(-1, channels, -1, -1) / 255
    shape = (1, -1, 1, 1)
    return (x - torch.tensor(mean).view(shape)) / torch.tensor(std).view(shape)
