"""Networks as people write them in plain PyTorch, for measurements of models of their own.

They use what sfumato's own models avoid: parameters outside of layers (class token, position
embedding, LayerScale, a learned attention bias), activations in place, subclasses of layers,
PyTorch's own transformer. All are for images of 3x32x32.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn


class BasicBlock(nn.Module):
    """Two 3x3 convolutions with GroupNorm and in-place ReLU, and a shortcut."""

    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(inputs, outputs, 3, stride, 1, bias=False)
        self.norm1 = nn.GroupNorm(32, outputs)
        self.conv2 = nn.Conv2d(outputs, outputs, 3, 1, 1, bias=False)
        self.norm2 = nn.GroupNorm(32, outputs)
        self.relu = nn.ReLU(inplace=True)
        self.shortcut: nn.Module = nn.Identity()
        if stride > 1 or inputs != outputs:
            self.shortcut = nn.Sequential(
                nn.Conv2d(inputs, outputs, 1, stride, bias=False), nn.GroupNorm(32, outputs)
            )

    def forward(self, x: Tensor) -> Tensor:
        """Residual sum, added in place."""
        y = self.relu(self.norm1(self.conv1(x)))
        y = self.norm2(self.conv2(y))
        y += self.shortcut(x)
        out: Tensor = self.relu(y)
        return out


def resnet18(*, classes: int = 10, width: int = 64) -> nn.Module:
    """ResNet-18 for small images with GroupNorm and in-place ReLU."""
    layers: list[nn.Module] = [
        nn.Conv2d(3, width, 3, 1, 1, bias=False), nn.GroupNorm(32, width), nn.ReLU(inplace=True)
    ]  # fmt: skip
    inputs = width
    for stage in range(4):
        for block in range(2):
            outputs = width << stage
            layers.append(BasicBlock(inputs, outputs, 2 if stage and not block else 1))
            inputs = outputs
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(inputs, classes))


class Attention(nn.Module):
    """Self-attention; with `bias`, a learned one for each pair of tokens, added to the scores."""

    def __init__(self, width: int, heads: int, tokens: int, *, bias: bool) -> None:
        super().__init__()
        self.heads = heads
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.bias = nn.Parameter(torch.zeros(heads, tokens, tokens)) if bias else None

    def forward(self, x: Tensor) -> Tensor:
        """Attention of all tokens of an image to each other."""
        rows, tokens, width = x.shape
        qkv = self.qkv(x).reshape(rows, tokens, 3, self.heads, width // self.heads)
        q, k, v = qkv.permute(2, 0, 3, 1, 4).unbind(0)
        if self.bias is None:
            y = F.scaled_dot_product_attention(q, k, v)
        else:
            scores = q @ k.transpose(-2, -1) * (width // self.heads) ** -0.5 + self.bias
            y = scores.softmax(-1) @ v
        out: Tensor = self.out(y.transpose(1, 2).reshape(rows, tokens, width))
        return out


class TransformerBlock(nn.Module):
    """Attention and two linear layers, each normalised before; with LayerScale on request."""

    def __init__(self, width: int, heads: int, tokens: int, *, scaled: bool) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.attention = Attention(width, heads, tokens, bias=scaled)
        self.mlp = nn.Sequential(
            nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width)
        )
        self.gain1 = nn.Parameter(torch.full((width,), 0.1)) if scaled else None
        self.gain2 = nn.Parameter(torch.full((width,), 0.1)) if scaled else None

    def forward(self, x: Tensor) -> Tensor:
        """Two residual sums."""
        y = self.attention(self.norm1(x))
        x = x + (y if self.gain1 is None else self.gain1 * y)
        y = self.mlp(self.norm2(x))
        out: Tensor = x + (y if self.gain2 is None else self.gain2 * y)
        return out


class VisionTransformer(nn.Module):
    """A vision transformer with a class token and learned position embeddings."""

    def __init__(
        self, *, classes: int, width: int, depth: int, heads: int, patch: int, scaled: bool
    ) -> None:
        super().__init__()
        tokens = (32 // patch) ** 2 + 1
        self.patches = nn.Conv2d(3, width, patch, patch)
        self.token = nn.Parameter(torch.randn(1, 1, width) * 0.02)
        self.positions = nn.Parameter(torch.randn(1, tokens, width) * 0.02)
        self.blocks = nn.Sequential(
            *(TransformerBlock(width, heads, tokens, scaled=scaled) for _ in range(depth))
        )
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, classes)

    def forward(self, x: Tensor) -> Tensor:
        """Logits from the class token."""
        x = self.patches(x).flatten(2).transpose(1, 2)
        x = torch.cat([self.token.expand(x.shape[0], -1, -1), x], 1) + self.positions
        out: Tensor = self.head(self.norm(self.blocks(x))[:, 0])
        return out


def vit(*, classes: int = 10, width: int = 192, depth: int = 6, patch: int = 4) -> nn.Module:
    """Vision transformer."""
    return VisionTransformer(
        classes=classes, width=width, depth=depth, heads=3, patch=patch, scaled=False
    )


def scaled_vit(*, classes: int = 10, width: int = 192, depth: int = 6, patch: int = 4) -> nn.Module:
    """Vision transformer with LayerScale and a learned attention bias."""
    return VisionTransformer(
        classes=classes, width=width, depth=depth, heads=3, patch=patch, scaled=True
    )


class Encoder(nn.Module):
    """PyTorch's own transformer encoder on patches."""

    def __init__(self, *, classes: int, width: int, depth: int, patch: int) -> None:
        super().__init__()
        self.patches = nn.Conv2d(3, width, patch, patch)
        self.positions = nn.Parameter(torch.randn(1, (32 // patch) ** 2, width) * 0.02)
        layer = nn.TransformerEncoderLayer(
            width, 4, 4 * width, dropout=0.0, batch_first=True, norm_first=True
        )
        self.encoder = nn.TransformerEncoder(layer, depth, enable_nested_tensor=False)
        self.head = nn.Linear(width, classes)

    def forward(self, x: Tensor) -> Tensor:
        """Logits from the mean of the tokens."""
        x = self.patches(x).flatten(2).transpose(1, 2) + self.positions
        out: Tensor = self.head(self.encoder(x).mean(1))
        return out


def encoder(*, classes: int = 10, width: int = 128, depth: int = 4, patch: int = 4) -> nn.Module:
    """`nn.TransformerEncoder` on patches."""
    return Encoder(classes=classes, width=width, depth=depth, patch=patch)


class ChannelNorm(nn.LayerNorm):
    """Layer norm over the channels of images: a subclass that permutes."""

    def forward(self, x: Tensor) -> Tensor:
        """Normalise `(rows, channels, height, width)` over channels."""
        return super().forward(x.permute(0, 2, 3, 1)).permute(0, 3, 1, 2)


class ConvNeXtBlock(nn.Module):
    """A depthwise 7x7 convolution and two linear layers over channels, with LayerScale."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.depthwise = nn.Conv2d(width, width, 7, padding=3, groups=width)
        self.norm = nn.LayerNorm(width, eps=1e-6)
        self.wide, self.narrow = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)
        self.gain = nn.Parameter(torch.full((width,), 0.1))

    def forward(self, x: Tensor) -> Tensor:
        """Residual sum."""
        y = self.norm(self.depthwise(x).permute(0, 2, 3, 1))
        y = self.gain * self.narrow(F.gelu(self.wide(y)))
        out: Tensor = x + y.permute(0, 3, 1, 2)
        return out


def convnext(
    *,
    classes: int = 10,
    widths: tuple[int, ...] = (40, 80, 160, 320),
    depths: tuple[int, ...] = (2, 2, 6, 2),
) -> nn.Module:
    """ConvNeXt for small images."""
    layers: list[nn.Module] = [nn.Conv2d(3, widths[0], 2, 2), ChannelNorm(widths[0])]
    for stage, (width, depth) in enumerate(zip(widths, depths, strict=True)):
        if stage:
            layers += [ChannelNorm(widths[stage - 1]), nn.Conv2d(widths[stage - 1], width, 2, 2)]
        layers += [ConvNeXtBlock(width) for _ in range(depth)]
    top = widths[-1]
    return nn.Sequential(
        *layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.LayerNorm(top), nn.Linear(top, classes)
    )


class MBConv(nn.Module):
    """An inverted bottleneck with a depthwise convolution and squeeze-and-excitation."""

    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        middle = 4 * inputs
        self.residual = stride == 1 and inputs == outputs
        self.expand = nn.Sequential(
            nn.Conv2d(inputs, middle, 1, bias=False), nn.GroupNorm(8, middle),
            nn.SiLU(inplace=True),
            nn.Conv2d(middle, middle, 3, stride, 1, groups=middle, bias=False),
            nn.GroupNorm(8, middle), nn.SiLU(inplace=True),
        )  # fmt: skip
        self.squeeze, self.excite = (
            nn.Conv2d(middle, inputs // 4, 1),
            nn.Conv2d(inputs // 4, middle, 1),
        )
        self.project = nn.Sequential(
            nn.Conv2d(middle, outputs, 1, bias=False), nn.GroupNorm(8, outputs)
        )

    def forward(self, x: Tensor) -> Tensor:
        """The block, with a residual sum where shapes allow."""
        y = self.expand(x)
        gate = self.excite(F.silu(self.squeeze(y.mean((2, 3), keepdim=True)))).sigmoid()
        y = self.project(y * gate)
        out: Tensor = x + y if self.residual else y
        return out


def mbconv(*, classes: int = 10) -> nn.Module:
    """A small network of MBConv blocks."""
    layers: list[nn.Module] = [
        nn.Conv2d(3, 32, 3, 1, 1, bias=False), nn.GroupNorm(8, 32), nn.SiLU(inplace=True)
    ]  # fmt: skip
    inputs = 32
    for outputs, blocks, stride in ((24, 2, 1), (40, 2, 2), (80, 3, 2), (112, 2, 1)):
        for block in range(blocks):
            layers.append(MBConv(inputs, outputs, 1 if block else stride))
            inputs = outputs
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(inputs, classes))


class MixerBlock(nn.Module):
    """Linear layers over tokens, then over channels."""

    def __init__(self, width: int, tokens: int) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.tokens = nn.Sequential(
            nn.Linear(tokens, width // 2), nn.GELU(), nn.Linear(width // 2, tokens)
        )
        self.channels = nn.Sequential(
            nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width)
        )

    def forward(self, x: Tensor) -> Tensor:
        """Two residual sums."""
        x = x + self.tokens(self.norm1(x).transpose(1, 2)).transpose(1, 2)
        out: Tensor = x + self.channels(self.norm2(x))
        return out


class Mixer(nn.Module):
    """MLP-Mixer on patches."""

    def __init__(self, *, classes: int, width: int, depth: int, patch: int) -> None:
        super().__init__()
        self.patches = nn.Conv2d(3, width, patch, patch)
        tokens = (32 // patch) ** 2
        self.blocks = nn.Sequential(*(MixerBlock(width, tokens) for _ in range(depth)))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, classes)

    def forward(self, x: Tensor) -> Tensor:
        """Logits from the mean of the tokens."""
        x = self.patches(x).flatten(2).transpose(1, 2)
        out: Tensor = self.head(self.norm(self.blocks(x)).mean(1))
        return out


def mixer(*, classes: int = 10, width: int = 256, depth: int = 6, patch: int = 4) -> nn.Module:
    """MLP-Mixer."""
    return Mixer(classes=classes, width=width, depth=depth, patch=patch)


NAMES = ("resnet18", "vit", "scaled_vit", "encoder", "convnext", "mbconv", "mixer")
"""The functions that make these networks."""
