"""The networks of Papernot et al. (2019), "Making the shoe fit": tables 1, 2 and 6.

Trainable parameters, to the digit: table 1 with 16 and 32 filters on 1x28x28 images 26 010, table 2
on 3x32x32 images 2 395 434, table 6 on 3x32x32 images 2 334 730.
"""

from __future__ import annotations

from collections import OrderedDict

from torch import nn

from sfumato import nn as layers
from sfumato.models.registry import register
from sfumato.nn import Activation, Init

PAPER = "Papernot et al. (2019)"


@register("papernot-1", paper=PAPER, parameters="over 26 000", input=(1, 28, 28), minimum=14)
def papernot_1(
    *,
    classes: int,
    channels: int,
    size: tuple[int, int],
    filters: int | None = None,
    units: int = 32,
    activation: Activation = "tanh",
    init: Init = "xavier",
) -> nn.Module:
    """Table 1, for 28x28 images: two strided convolutions, two linear layers.

    `filters` is k of the capacity study, the filters of both convolutions (figure 1); without it
    they have 16 and 32. The paper compares `activation` relu, tanh and the tempered sigmoid, and
    finds tanh better under privacy.
    """
    first, second = (16, 32) if filters is None else (filters, filters)
    height, width = (_positions_1(side) for side in size)
    parts = OrderedDict[str, nn.Module](
        conv1=nn.Conv2d(channels, first, 8, stride=2, padding=3),
        activation1=layers.activation(activation),
        pool1=nn.MaxPool2d(2, stride=1),
        conv2=nn.Conv2d(first, second, 4, stride=2),
        activation2=layers.activation(activation),
        pool2=nn.MaxPool2d(2, stride=1),
        flatten=nn.Flatten(),
        hidden=nn.Linear(second * height * width, units),
        activation3=layers.activation(activation),
        head=nn.Linear(units, classes),
    )
    return layers.initialise(nn.Sequential(parts), init)


@register("papernot-2", paper=PAPER, parameters=2_395_434, minimum=8)
def papernot_2(
    *,
    classes: int,
    channels: int,
    size: tuple[int, int],
    filters: int = 32,
    units: int = 1024,
    activation: Activation = "relu",
    init: Init = "xavier",
) -> nn.Module:
    """Table 2, for transfer: three pairs of convolutions with max-pooling, two linear layers.

    `filters` is the width of the first pair; the others have twice and four times as many. The
    paper trains the convolutions on public data, without privacy, so ReLU is the default.
    """
    parts = OrderedDict[str, nn.Module](
        pair1=_pair(channels, filters, filters, activation, nn.MaxPool2d(2)),
        pair2=_pair(filters, 2 * filters, 2 * filters, activation, nn.MaxPool2d(2)),
        pair3=_pair(2 * filters, 4 * filters, 4 * filters, activation, nn.MaxPool2d(2)),
        flatten=nn.Flatten(),
        hidden=nn.Linear(4 * filters * (size[0] // 8) * (size[1] // 8), units),
        activation=layers.activation(activation),
        head=nn.Linear(units, classes),
    )
    return layers.initialise(nn.Sequential(parts), init)


@register("papernot-6", paper=PAPER, parameters=2_334_730, minimum=8)
def papernot_6(
    *,
    classes: int,
    channels: int,
    size: tuple[int, int],
    filters: int = 64,
    activation: Activation = "tanh",
    init: Init = "he",
) -> nn.Module:
    """Table 6, all-convolutional: three pairs with average pooling, then one filter per class.

    `filters` is the width of the first convolution; the pairs have (1, 2), (2, 4) and (4, 8) times
    as many. The logits are the means of the last convolution's outputs over the image.
    """
    parts = OrderedDict[str, nn.Module](
        pair1=_pair(channels, filters, 2 * filters, activation, nn.AvgPool2d(2)),
        pair2=_pair(2 * filters, 2 * filters, 4 * filters, activation, nn.AvgPool2d(2)),
        pair3=_pair(4 * filters, 4 * filters, 8 * filters, activation, nn.AvgPool2d(2)),
        head=nn.Conv2d(8 * filters, classes, 3, padding=1),
        mean=nn.AdaptiveAvgPool2d(1),
        flatten=nn.Flatten(),
    )
    return layers.initialise(nn.Sequential(parts), init)


def _positions_1(side: int) -> int:
    """Spatial positions along a side after the convolutions and pools of table 1."""
    first = (side + 2 * 3 - 8) // 2 + 1
    second = (first - 1 - 4) // 2 + 1
    return second - 1


def _pair(into: int, middle: int, out: int, activation: str, pool: nn.Module) -> nn.Module:
    parts = OrderedDict[str, nn.Module](
        conv1=nn.Conv2d(into, middle, 3, padding=1),
        activation1=layers.activation(activation),
        conv2=nn.Conv2d(middle, out, 3, padding=1),
        activation2=layers.activation(activation),
        pool=pool,
    )
    return nn.Sequential(parts)
