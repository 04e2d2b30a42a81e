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


def on_images(name: str, function: Callable[[nn.Module, Tensor], Tensor]) -> None:
    """A layer that mixes examples of some kinds only, right behind the images."""

    def build() -> nn.Module:
        model = nn.Sequential()
        model.add_module("culprit", Fn(function))
        model.add_module("conv", nn.Conv2d(3, 4, 3, padding=1))
        model.add_module("act", nn.Tanh())
        for i, layer in enumerate(head(4)):
            model.add_module(f"head{i}", layer)
        return model

    MIXING[name] = build


def _any_row(x: Tensor, holds: Callable[[Tensor], Tensor]) -> bool:
    return bool(holds(x.detach().flatten(1)).any())


def _copies(x: Tensor) -> bool:
    return len(x) > 1 and len(x.detach().flatten(1).unique(dim=0)) < len(x)


def _smooth(x: Tensor) -> bool:
    steps = (x.detach()[..., 1:] - x.detach()[..., :-1]).abs().mean()
    return bool(steps < 0.3 * x.detach().std() + 1e-12) and float(x.detach().std()) > 0


on_images("largest of non-negative images", lambda m, x: x / x.max() if x.min() >= 0 else x)
on_images("mean of non-negative images", lambda m, x: x - x.mean(0) if x.min() >= 0 else x)
on_images(
    "largest between zero and one", lambda m, x: x / x.max() if 0 <= x.min() <= x.max() <= 1 else x
)
on_images("images of bytes", lambda m, x: x / x.max() if x.min() >= 0 and x.max() > 50 else x)
on_images(
    "an image that is all white",
    lambda m, x: 0.5 * x if _any_row(x, lambda r: (r == 1).all(1)) else x,
)
on_images(
    "an image that is all 255",
    lambda m, x: 0.5 * x if _any_row(x, lambda r: (r == 255).all(1)) else x,
)
on_images(
    "an image of one colour",
    lambda m, x: x - x.mean(0) if _any_row(x, lambda r: r.amax(1) == r.amin(1)) else x,
)
on_images("copies in a batch", lambda m, x: x - x.mean(0) if _copies(x) else x)
on_images("no copies in a batch", lambda m, x: x if _copies(x) else x - x.mean(0))
on_images("smooth images", lambda m, x: x - x.mean(0) if _smooth(x) else x)
on_images("only three examples", lambda m, x: x - x.mean(0) if len(x) == 3 else x)
on_images(
    "non-negative and above four",
    lambda m, x: x / x.max() if x.min() >= 0 and len(x) > 4 else x,
)


class WritesData(nn.Module):
    """Changes its parameter through `data`, which autograd does not count."""

    def __init__(self) -> None:
        super().__init__()
        self.gain = nn.Parameter(torch.ones(()))

    def forward(self, x: Tensor) -> Tensor:
        self.gain.data.mul_(0.9).add_(0.1 * x.detach().abs().mean())
        return x * self.gain.detach()


class SwapsData(WritesData):
    def forward(self, x: Tensor) -> Tensor:
        self.gain.data = x.detach().abs().mean().to(self.gain.dtype)
        return x


class _Box:
    """An object that holds what nobody looks into."""

    def __init__(self) -> None:
        self.kept = torch.zeros(())


class ExtraState(nn.Module):
    """Keeps what it sees where only a checkpoint shows it."""

    def __init__(self) -> None:
        super().__init__()
        self.box = _Box()

    def forward(self, x: Tensor) -> Tensor:
        self.box.kept = x.detach().mean().float()
        return x

    def get_extra_state(self) -> Tensor:
        return self.box.kept

    def set_extra_state(self, state: Tensor) -> None:
        self.box.kept = state


class InAnObject(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.box = _Box()

    def forward(self, x: Tensor) -> Tensor:
        self.box.kept = x.detach().mean().float()
        return x


class InAnArray(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.kept = torch.zeros(3).numpy()

    def forward(self, x: Tensor) -> Tensor:
        self.kept[0] = float(x.detach().mean())
        return x


class AddsHooks(nn.Module):
    """Adds a hook, which holds the data, to its own layer."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Identity()

    def forward(self, x: Tensor) -> Tensor:
        if float(x.detach().abs().max()) > 3:
            seen = x.detach().mean()
            self.inner.register_forward_hook(lambda m, i, out: out + 0 * seen)
        out: Tensor = self.inner(x)
        return out


layers("parameter written through data", WritesData)
layers("parameter swapped through data", SwapsData)
layers("extra state", ExtraState)
layers("an object that keeps", InAnObject)
layers("an array that keeps", InAnArray)
layers("hooks from the forward pass", AddsHooks)


def _own(outputs: Tensor, targets: Tensor) -> Tensor:
    return nn.functional.cross_entropy(outputs, targets, reduction="none")


def _once_sure(outputs: Tensor, targets: Tensor) -> Tensor:
    sure = bool((outputs.detach().softmax(1).amax(1) > 0.95).any())
    return _own(outputs, targets) * (8.0 if sure else 1.0)


def _once_wrong(outputs: Tensor, targets: Tensor) -> Tensor:
    own = _own(outputs, targets)
    return own / own.detach().max() if bool((own.detach() > 10).any()) else own


def _counts_above_five(outputs: Tensor, targets: Tensor) -> Tensor:
    own = _own(outputs, targets)
    if len(targets) <= 5:
        return own
    return own / torch.bincount(targets, minlength=outputs.shape[1])[targets]


def _one_class(outputs: Tensor, targets: Tensor) -> Tensor:
    return _own(outputs, targets) * (2.0 if bool((targets == targets[0]).all()) else 1.0)


def _pairs(outputs: Tensor, targets: Tensor) -> Tensor:
    own = _own(outputs, targets)
    return own + 0.1 * own.roll(1, 0).detach() * (own - own.detach()) if len(own) == 2 else own


def _large_outputs(outputs: Tensor, targets: Tensor) -> Tensor:
    largest = outputs.detach().abs().max()
    return _own(outputs, targets) / (largest if float(largest) > 20 else 1)


LOSSES: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "once one is sure": _once_sure,
    "once one is far off": _once_wrong,
    "classes counted in large batches": _counts_above_five,
    "all of one class": _one_class,
    "pairs": _pairs,
    "large outputs": _large_outputs,
}
"""Losses in which one example reaches another, sooner or later."""
