"""Networks in plain PyTorch whose weights meet the batch in unusual ways.

Recurrent layers, experts, weights that are computed from other numbers or from the image itself,
graphs, splines: what takes the fast pass furthest from layers that are used once. All are small,
and for images of 3x32x32.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.utils import parametrizations


def _rows(x: Tensor) -> Tensor:
    """The rows of images as sequences `(images, 32, 96)`."""
    return x.transpose(1, 2).flatten(2)


def _tokens(x: Tensor) -> Tensor:
    """Spatial positions as tokens `(images, positions, channels)`."""
    return x.flatten(2).transpose(1, 2)


class Recurrent(nn.Module):
    """A recurrent layer of PyTorch over the rows of an image."""

    def __init__(self, layer: nn.RNNBase, classes: int) -> None:
        super().__init__()
        self.layer = layer
        width = layer.hidden_size * (1 + layer.bidirectional)
        self.head = nn.Linear(width, classes)

    def forward(self, x: Tensor) -> Tensor:
        """Logits from the mean over steps."""
        out: Tensor = self.head(self.layer(_rows(x))[0].mean(1))
        return out


def lstm(*, classes: int = 10, width: int = 64) -> nn.Module:
    """`nn.LSTM`."""
    return Recurrent(nn.LSTM(96, width, batch_first=True), classes)


def gru(*, classes: int = 10, width: int = 64) -> nn.Module:
    """`nn.GRU` of two layers in both directions."""
    return Recurrent(nn.GRU(96, width, 2, batch_first=True, bidirectional=True), classes)


class CellLoop(nn.Module):
    """A recurrent cell in a loop over the rows of an image."""

    def __init__(self, width: int, classes: int) -> None:
        super().__init__()
        self.cell, self.head = nn.LSTMCell(96, width), nn.Linear(width, classes)

    def forward(self, x: Tensor) -> Tensor:
        """Logits from the last hidden state."""
        hidden = cell = x.new_zeros(len(x), self.cell.hidden_size)
        for row in _rows(x).unbind(1):
            hidden, cell = self.cell(row, (hidden, cell))
        out: Tensor = self.head(hidden)
        return out


def cell_loop(*, classes: int = 10, width: int = 64) -> nn.Module:
    """`nn.LSTMCell` in a loop."""
    return CellLoop(width, classes)


class Experts(nn.Module):
    """Experts whose weights are one tensor, mixed by a gate for each token."""

    def __init__(self, width: int, experts: int, classes: int) -> None:
        super().__init__()
        self.patches, self.gate = nn.Conv2d(3, width, 4, 4), nn.Linear(width, experts)
        self.wide = nn.Parameter(torch.randn(experts, width, 2 * width) * width**-0.5)
        self.narrow = nn.Parameter(torch.randn(experts, 2 * width, width) * width**-0.5)
        self.head = nn.Linear(width, classes)

    def forward(self, x: Tensor) -> Tensor:
        """Logits from the mean of the tokens."""
        tokens = _tokens(self.patches(x))
        inner = torch.einsum("btd,edh->bteh", tokens, self.wide).relu()
        found = torch.einsum("bteh,ehd->bted", inner, self.narrow)
        mixed = (found * self.gate(tokens).softmax(-1).unsqueeze(-1)).sum(2)
        out: Tensor = self.head((tokens + mixed).mean(1))
        return out


def experts(*, classes: int = 10, width: int = 32) -> nn.Module:
    """A mixture of four experts by `einsum`."""
    return Experts(width, 4, classes)


class Splines(nn.Module):
    """A layer of Kolmogorov and Arnold: a function of its own for each pair of numbers."""

    def __init__(self, inputs: int, outputs: int, points: int = 5) -> None:
        super().__init__()
        self.base = nn.Linear(inputs, outputs)
        self.coefficients = nn.Parameter(torch.randn(outputs, inputs, points) * 0.1)
        self.points: Tensor
        self.register_buffer("points", torch.linspace(-1, 1, points))

    def forward(self, x: Tensor) -> Tensor:
        """A linear layer and a sum of bumps."""
        bumps = (-8 * (x.unsqueeze(-1) - self.points).square()).exp()
        out: Tensor = self.base(F.silu(x)) + torch.einsum("big,oig->bo", bumps, self.coefficients)
        return out


def splines(*, classes: int = 10, width: int = 64) -> nn.Module:
    """A Kolmogorov-Arnold network of two layers."""
    return nn.Sequential(
        nn.AvgPool2d(4), nn.Flatten(), Splines(192, width), Splines(width, classes)
    )


def orthogonal(*, classes: int = 10, width: int = 64) -> nn.Module:
    """Linear layers with orthogonal matrices, which are exponentials of parameters."""
    inner = [parametrizations.orthogonal(nn.Linear(width, width)) for _ in range(2)]
    return nn.Sequential(
        nn.AvgPool2d(2), nn.Flatten(), nn.Linear(768, width), inner[0], nn.Tanh(), inner[1],
        nn.Tanh(), nn.Linear(width, classes),
    )  # fmt: skip


def weight_norm(*, classes: int = 10, width: int = 32) -> nn.Module:
    """Convolutions whose filters have lengths of their own (`weight_norm`)."""
    return _convolutions(
        lambda i, o: parametrizations.weight_norm(nn.Conv2d(i, o, 3, 2, 1)), classes, width
    )


class StandardisedConv2d(nn.Conv2d):
    """A convolution that standardises its filters in the forward pass."""

    def forward(self, x: Tensor) -> Tensor:
        """Convolve with filters of mean 0 and deviation 1."""
        deviation, mean = torch.std_mean(self.weight, (1, 2, 3), keepdim=True)
        weight = (self.weight - mean) / (deviation + 1e-5)
        return F.conv2d(x, weight, self.bias, self.stride, self.padding)


def standardised(*, classes: int = 10, width: int = 32) -> nn.Module:
    """Convolutions with weight standardisation written by hand."""
    return _convolutions(lambda i, o: StandardisedConv2d(i, o, 3, 2, 1), classes, width)


def _convolutions(make: Callable[[int, int], nn.Module], classes: int, width: int) -> nn.Module:
    layers: list[nn.Module] = []
    for inputs, outputs in ((3, width), (width, 2 * width), (2 * width, 2 * width)):
        layers += [make(inputs, outputs), nn.GroupNorm(4, outputs), nn.ReLU()]
    return nn.Sequential(
        *layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(2 * width, classes)
    )


class FiltersFromImage(nn.Module):
    """A convolution whose filters a linear layer makes of each image."""

    def __init__(self, width: int, classes: int) -> None:
        super().__init__()
        self.first, self.head = nn.Conv2d(3, width, 3, 2, 1), nn.Linear(width, classes)
        self.filters = nn.Linear(width, 9 * width**2)

    def forward(self, x: Tensor) -> Tensor:
        """Logits from the mean over positions."""
        y = self.first(x).relu()
        images, width, height, breadth = y.shape
        filters = self.filters(y.mean((2, 3))).view(images * width, width, 3, 3)
        z = F.conv2d(y.reshape(1, -1, height, breadth), filters, padding=1, groups=images)
        out: Tensor = self.head(z.view_as(y).relu().mean((2, 3)))
        return out


def filters_from_image(*, classes: int = 10, width: int = 16) -> nn.Module:
    """A hypernetwork: filters for each image."""
    return FiltersFromImage(width, classes)


class FiltersFromCodes(nn.Module):
    """Convolutions whose filters one linear layer makes of learned codes."""

    def __init__(self, width: int, classes: int, depth: int) -> None:
        super().__init__()
        self.first, self.head = nn.Conv2d(3, width, 3, 2, 1), nn.Linear(width, classes)
        self.filters = nn.Linear(8, 9 * width**2)
        self.codes = nn.ParameterList([nn.Parameter(torch.randn(8)) for _ in range(depth)])

    def forward(self, x: Tensor) -> Tensor:
        """Logits from the mean over positions."""
        y = self.first(x).relu()
        for code in self.codes:
            width = y.shape[1]
            y = F.conv2d(y, self.filters(code).view(width, width, 3, 3), padding=1).relu()
        out: Tensor = self.head(y.mean((2, 3)))
        return out


def filters_from_codes(*, classes: int = 10, width: int = 16) -> nn.Module:
    """A hypernetwork: filters from learned codes."""
    return FiltersFromCodes(width, classes, 3)


class Adapted(nn.Module):
    """A frozen linear layer with an adapter of low rank, and lengths of its rows (DoRA)."""

    def __init__(self, inputs: int, outputs: int, rank: int = 4) -> None:
        super().__init__()
        self.frozen = nn.Linear(inputs, outputs).requires_grad_(False)
        self.down = nn.Parameter(torch.randn(rank, inputs) * 0.1)
        self.up = nn.Parameter(torch.zeros(outputs, rank))
        self.lengths = nn.Parameter(self.frozen.weight.detach().norm(dim=1, keepdim=True))

    def forward(self, x: Tensor) -> Tensor:
        """The layer with its changed matrix."""
        changed = self.frozen.weight + self.up @ self.down
        weight = self.lengths * changed / changed.norm(dim=1, keepdim=True)
        return F.linear(x, weight, self.frozen.bias)


class OverTokens(nn.Module):
    """Patches, layers over tokens, and a linear layer on their mean."""

    def __init__(self, layers: Sequence[nn.Module], width: int, classes: int) -> None:
        super().__init__()
        self.patches = nn.Conv2d(3, width, 4, 4)
        self.layers, self.head = nn.Sequential(*layers), nn.Linear(width, classes)

    def forward(self, x: Tensor) -> Tensor:
        """Logits."""
        out: Tensor = self.head(self.layers(_tokens(self.patches(x))).mean(1))
        return out


def adapters(*, classes: int = 10, width: int = 64) -> nn.Module:
    """Four linear layers with DoRA."""
    layers: list[nn.Module] = []
    for _ in range(2):
        layers += [Adapted(width, 2 * width), nn.GELU(), Adapted(2 * width, width)]
    return OverTokens(layers, width, classes)


class SpatialGate(nn.Module):
    """A block of gMLP: half of the channels, mixed over tokens, multiply the others."""

    def __init__(self, width: int, tokens: int) -> None:
        super().__init__()
        self.norm, self.inner = nn.LayerNorm(width), nn.LayerNorm(width)
        self.wide, self.narrow = nn.Linear(width, 2 * width), nn.Linear(width, width)
        self.over_tokens = nn.Conv1d(tokens, tokens, 1)

    def forward(self, x: Tensor) -> Tensor:
        """Residual sum."""
        kept, gate = F.gelu(self.wide(self.norm(x))).chunk(2, -1)
        out: Tensor = x + self.narrow(kept * self.over_tokens(self.inner(gate)))
        return out


def gated(*, classes: int = 10, width: int = 48) -> nn.Module:
    """gMLP of two blocks."""
    return OverTokens([SpatialGate(width, 64) for _ in range(2)], width, classes)


class Graph(nn.Module):
    """Graph convolutions over patches that are neighbours if they look alike."""

    def __init__(self, width: int, classes: int, depth: int) -> None:
        super().__init__()
        self.patches, self.head = nn.Conv2d(3, width, 4, 4), nn.Linear(width, classes)
        self.weights = nn.ParameterList(
            [nn.Parameter(torch.randn(width, width) * width**-0.5) for _ in range(depth)]
        )

    def forward(self, x: Tensor) -> Tensor:
        """Logits from the mean of the nodes."""
        nodes = _tokens(self.patches(x))
        edges = (nodes @ nodes.transpose(1, 2) * nodes.shape[2] ** -0.5).softmax(-1)
        for weight in self.weights:
            nodes = (edges @ nodes @ weight).relu()
        out: Tensor = self.head(nodes.mean(1))
        return out


def graph(*, classes: int = 10, width: int = 32) -> nn.Module:
    """A graph network of three layers."""
    return Graph(width, classes, 3)


class UNet(nn.Module):
    """A small U-Net, whose maps are averaged in the end."""

    def __init__(self, width: int, classes: int) -> None:
        super().__init__()
        self.one, self.two, self.three = (
            nn.Conv2d(i, o, 3, padding=1)
            for i, o in ((3, width), (width, 2 * width), (2 * width, 4 * width))
        )
        self.up_two = nn.ConvTranspose2d(4 * width, 2 * width, 2, 2)
        self.up_one = nn.ConvTranspose2d(2 * width, width, 2, 2)
        self.four, self.five = (nn.Conv2d(2 * o, o, 3, padding=1) for o in (2 * width, width))
        self.head = nn.Linear(width, classes)

    def forward(self, x: Tensor) -> Tensor:
        """Logits from the mean over positions."""
        one = self.one(x).relu()
        two = self.two(F.max_pool2d(one, 2)).relu()
        three = self.three(F.max_pool2d(two, 2)).relu()
        four = self.four(torch.cat([self.up_two(three), two], 1)).relu()
        five = self.five(torch.cat([self.up_one(four), one], 1)).relu()
        out: Tensor = self.head(five.mean((2, 3)))
        return out


def unet(*, classes: int = 10, width: int = 16) -> nn.Module:
    """A U-Net of three levels."""
    return UNet(width, classes)


def perceptron(*, classes: int = 10, width: int = 256) -> nn.Module:
    """Three linear layers, of which the first has most of the parameters."""
    return nn.Sequential(
        nn.Flatten(), nn.Linear(3072, width), nn.ReLU(), nn.Linear(width, width), nn.ReLU(),
        nn.Linear(width, classes),
    )  # fmt: skip


NAMES = (
    "lstm", "gru", "cell_loop", "experts", "splines", "orthogonal", "weight_norm", "standardised",
    "filters_from_image", "filters_from_codes", "adapters", "gated", "graph", "unet", "perceptron",
)  # fmt: skip
"""The functions that make these networks."""
