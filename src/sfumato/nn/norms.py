"""Normalisation layers by name, and their place: before or after the activation, or after a sum."""

from __future__ import annotations

from collections import OrderedDict
from typing import Literal, get_args

from torch import nn

from sfumato.errors import UserError, nearest
from sfumato.nn.activations import activation

Norm = Literal["group", "layer", "instance", "none", "batch"]
NormOrder = Literal["norm-activation", "activation-norm"]


def divisor(channels: int, at_most: int) -> int:
    """The largest divisor of `channels` that is not above `at_most`."""
    return next(d for d in range(min(channels, at_most), 0, -1) if channels % d == 0)


def norm(kind: Norm, channels: int, *, groups: int = 32) -> nn.Module:
    """A normalisation layer with a gain and a shift per channel.

    Args:
        kind: `group` (Wu and He, 2018), its extremes `layer` (one group) and `instance` (one group
            per channel), `none`, or `batch`. Batch normalisation mixes the examples of a batch: it
            is for runs without privacy only.
        channels: The channels of the input.
        groups: For `group`: the number of groups, reduced to the next divisor of the channels.

    Raises:
        UserError: An unknown kind, or fewer than one group.
    """
    if groups < 1:
        raise UserError(f"A norm needs at least 1 group, not {groups}.")
    match kind:
        case "group":
            return nn.GroupNorm(divisor(channels, groups), channels)
        case "layer":
            return nn.GroupNorm(1, channels)
        case "instance":
            return nn.GroupNorm(channels, channels)
        case "batch":
            return nn.BatchNorm2d(channels)
        case "none":
            return nn.Identity()
    known = get_args(Norm)
    raise UserError(
        f"There is no norm '{kind}'.{nearest(str(kind), known)} Known norms: {', '.join(known)}."
    )


def scale_norm(kind: Norm, channels: int, *, groups: int = 32) -> nn.Module:
    """ScaleNorm (Klause et al., 2022): the norm that follows a residual sum.

    The sum of a normalised and a raw path is skewed; normalising it once more brings both paths to
    the same scale before the next block.
    """
    return norm(kind, channels, groups=groups)


def check_norms(module: nn.Module, *, size: tuple[int, int]) -> None:
    """Refuse norms over a single value, whose output would be zero for every image.

    Args:
        module: The part of a network to check.
        size: Height and width of its input.

    Raises:
        UserError: A group of a norm has one channel and one spatial position.
    """
    for layer in module.modules():
        single = isinstance(layer, nn.GroupNorm) and layer.num_channels == layer.num_groups
        if single and size == (1, 1):
            raise UserError(
                "The images are so small that one pixel is left in the last layers, and with one "
                "channel per group nothing remains to normalise: use larger images, fewer groups, "
                "or norm = 'layer'."
            )


def normalised(order: NormOrder, norm: nn.Module, name: str) -> OrderedDict[str, nn.Module]:
    """A norm and the activation called `name`, in the given order, for an `nn.Sequential`."""
    pair = [("norm", norm), ("activation", activation(name))]
    return OrderedDict(pair if order == "norm-activation" else pair[::-1])
