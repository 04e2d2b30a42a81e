"""Models in which one example reaches another, each in its own way: none may pass."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from sound_models import Model, around, head
from torch import Tensor, nn

MIXING: dict[str, Callable[[], nn.Module]] = {}


class Fn(nn.Module):
    def __init__(self, function: Callable[[nn.Module, Tensor], Tensor]) -> None:
        super().__init__()
        self.function = function

    def forward(self, x: Tensor) -> Tensor:
        return self.function(self, x)


def mixing(name: str, function: Callable[[nn.Module, Tensor], Tensor]) -> None:
    """A convolution, a layer that mixes, and a head."""

    def build() -> nn.Module:
        model = nn.Sequential()
        model.add_module("conv", nn.Conv2d(3, 4, 3, padding=1))
        model.add_module("culprit", Fn(function))
        model.add_module("act", nn.Tanh())
        for i, layer in enumerate(head(4)):
            model.add_module(f"head{i}", layer)
        return model

    MIXING[name] = build


def layers(name: str, *parts: Callable[[], nn.Module]) -> None:
    MIXING[name] = lambda: around(nn.Conv2d(3, 4, 3), *(part() for part in parts), channels=4)


layers("batch norm", lambda: nn.BatchNorm2d(4))
layers("batch norm without statistics", lambda: nn.BatchNorm2d(4, track_running_stats=False))
layers("sync batch norm", lambda: nn.SyncBatchNorm(4))
layers("instance norm with statistics", lambda: nn.InstanceNorm2d(4, track_running_stats=True))

mixing("batch mean", lambda m, x: x - x.mean(0))
mixing("whole mean", lambda m, x: x - x.mean())
mixing("detached batch mean", lambda m, x: x - x.mean(0).detach())
mixing("detached batch deviation", lambda m, x: x / x.detach().std(0, correction=0).add(1))
mixing("largest of the batch", lambda m, x: x / x.detach().abs().max())
mixing("roll", lambda m, x: x.roll(1, 0))
mixing("flip", lambda m, x: x.flip(0))
mixing("swap of the ends", lambda m, x: torch.cat([x[-1:], x[1:-1], x[:1]]) if len(x) > 1 else x)
mixing("sort", lambda m, x: x.sort(0).values)
mixing("order", lambda m, x: x[x.mean((1, 2, 3)).argsort()])
mixing(
    "attention over the batch",
    lambda m, x: (
        x + torch.einsum("ij,jchw->ichw", torch.softmax(x.flatten(1) @ x.flatten(1).T, 1), x)
    ),
)
mixing("cumulative sum", lambda m, x: x.cumsum(0))
mixing("tiny", lambda m, x: x + 1e-6 * x.mean(0))
mixing("very tiny", lambda m, x: x + 1e-12 * x.mean(0))
mixing("only in training", lambda m, x: x - x.mean(0) if m.training else x)
mixing("only above four", lambda m, x: x - x.mean(0) if len(x) > 4 else x)
mixing("only above sixteen", lambda m, x: x - x.mean(0) if len(x) > 16 else x)
mixing(
    "neighbours in pairs",
    lambda m, x: x + 0.1 * x[torch.arange(len(x)).bitwise_xor(1).clamp(max=len(x) - 1)],
)
mixing("only large values", lambda m, x: x / x.detach().abs().max().clamp(min=50))
mixing("zero times the mean", lambda m, x: x + 0 * x.mean(0))
mixing("mixup", lambda m, x: 0.9 * x + 0.1 * x[torch.randperm(len(x))])
mixing(
    "mixup now and then", lambda m, x: 0.9 * x + 0.1 * x.roll(1, 0) if torch.rand(()) < 0.3 else x
)
mixing("ghost batch norm", lambda m, x: torch.cat([p - p.mean(0) for p in x.split(2)]))


class _Averaged(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x.clone()

    @staticmethod
    def backward(ctx: Any, d: Tensor) -> Tensor:
        return 0.5 * d + 0.5 * d.mean(0)


class _Normalised(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x.clone()

    @staticmethod
    def backward(ctx: Any, d: Tensor) -> Tensor:
        return d / (d.norm() + 1e-3)


class _SlightlyAveraged(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x.clone()

    @staticmethod
    def backward(ctx: Any, d: Tensor) -> Tensor:
        return d + 1e-6 * d.mean(0)


mixing("backward average", lambda m, x: _Averaged.apply(x))
mixing("backward norm", lambda m, x: _Normalised.apply(x))
mixing("tiny backward average", lambda m, x: _SlightlyAveraged.apply(x))


class Running(nn.Module):
    """Keeps a running mean of the data, in a buffer or in a plain attribute."""

    mean: Tensor

    def __init__(self, *, buffer: bool, used: bool) -> None:
        super().__init__()
        self.used = used
        if buffer:
            self.register_buffer("mean", torch.zeros(4, 1, 1))
        else:
            self.mean = torch.zeros(4, 1, 1)

    def forward(self, x: Tensor) -> Tensor:
        if self.training:
            self.mean = 0.9 * self.mean + 0.1 * x.detach().mean((0, 2, 3)).view(-1, 1, 1).to(
                self.mean
            )
        return x - self.mean if self.used else x


class Remembers(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.history: list[float] = []

    def forward(self, x: Tensor) -> Tensor:
        self.history.append(float(x.detach().abs().max()))
        return x


layers("running mean in a buffer", lambda: Running(buffer=True, used=True))
layers("running mean for later", lambda: Running(buffer=True, used=False))
layers("running mean in an attribute", lambda: Running(buffer=False, used=False))
layers("list of maxima", Remembers)


class Renormalised(nn.Module):
    """Changes its own parameter with what it sees."""

    def __init__(self) -> None:
        super().__init__()
        self.gain = nn.Parameter(torch.ones(()))

    def forward(self, x: Tensor) -> Tensor:
        with torch.no_grad():
            self.gain.mul_(0.9).add_(0.1 * x.abs().mean())
        return x * self.gain.detach()


layers("parameter set in the forward pass", Renormalised)


def wrong_rows() -> nn.Module:
    return Model(lambda m, x: m.out(x).mean(0), out=nn.Sequential(*head(3)))


MIXING["mean of the outputs"] = wrong_rows
