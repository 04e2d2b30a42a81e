"""A small convolutional network with tanh activations, for small images and little data.

Bounded activations suit private training (Papernot et al., 2019), and few parameters mean little
noise: on scikit-learn's 8x8 digits the network reaches 94 % (mean of 8 seeds, lowest 93 %) at
epsilon 3, delta 1e-5, with learning rate 2, clipping norm 1 and 100 steps at sampling rate 0.5.
"""

from __future__ import annotations

from collections import OrderedDict

from torch import nn

from sfumato import nn as layers
from sfumato.models.registry import register
from sfumato.nn import Activation, Init

_GRID = 4
"""Most spatial positions along a side that the linear layer sees, so that it stays small."""


@register("tanh-cnn", paper="after Papernot et al. (2019)", input=(1, 28, 28), minimum=4)
def tanh_cnn(
    *,
    classes: int,
    channels: int,
    size: tuple[int, int],
    filters: int = 16,
    activation: Activation = "tanh",
    init: Init = "torch",
) -> nn.Module:
    """Two max-pooled 3x3 convolutions of `filters` and 2 * `filters` filters, and a linear layer.

    The first pool halves the image, the second leaves at most 4x4 positions.
    """
    height, width = (min(side // 2, _GRID) for side in size)
    parts = OrderedDict[str, nn.Module](
        conv1=nn.Conv2d(channels, filters, 3, padding=1),
        activation1=layers.activation(activation),
        pool1=nn.MaxPool2d(2),
        conv2=nn.Conv2d(filters, 2 * filters, 3, padding=1),
        activation2=layers.activation(activation),
        pool2=nn.AdaptiveMaxPool2d((height, width)),
        flatten=nn.Flatten(),
        head=nn.Linear(2 * filters * height * width, classes),
    )
    return layers.initialise(nn.Sequential(parts), init)
