"""Models and losses that try to obtain a proof of isolation although examples reach each other.

Each takes features `h` of shape (batch, 6) and its module, and returns features of that shape.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

WIDTH = 6
ATTACKS: dict[str, Callable[[], nn.Module]] = {}


class Attacked(nn.Module):
    """A linear layer, an attack and a linear layer."""

    seen: Tensor

    def __init__(self, attack: Callable[[Any, Tensor], Tensor], **parts: nn.Module) -> None:
        super().__init__()
        self.attack = attack
        self.first, self.last = nn.Linear(4, WIDTH), nn.Linear(WIDTH, 3)
        self.gain = nn.Parameter(torch.ones(WIDTH))
        self.register_buffer("seen", torch.zeros(WIDTH))
        self.plain = torch.zeros(WIDTH)
        self.calls = 0
        self.wants_gradient = False
        self.memory: list[Tensor] = []
        for name, part in parts.items():
            self.add_module(name, part)

    def forward(self, x: Tensor) -> Tensor:
        self.wants_gradient = x.requires_grad
        out: Tensor = self.last(self.attack(self, torch.tanh(self.first(x))))
        return out


def attack(name: str, **parts: Callable[[], nn.Module]) -> Callable[[Any], Any]:
    def add(function: Callable[[Any, Tensor], Tensor]) -> Callable[[Any, Tensor], Tensor]:
        ATTACKS[name] = lambda: Attacked(function, **{n: make() for n, make in parts.items()})
        return function

    return add


def simple(name: str, function: Callable[[Any, Tensor], Tensor]) -> None:
    attack(name)(function)


simple("as_strided", lambda m, h: h + torch.as_strided(h, (1, WIDTH), (WIDTH, 1)))
simple("as_strided to the next row", lambda m, h: torch.as_strided(h.contiguous(), h.shape, (0, 1)))
simple("flat, then a part summed", lambda m, h: h + h.reshape(-1)[:9].sum())
simple("flat, then shifted", lambda m, h: h.reshape(-1).roll(1).view_as(h))
simple("reshape across rows", lambda m, h: h.reshape(WIDTH, -1).softmax(1).reshape(h.shape))
simple("transposed reshape", lambda m, h: h.t().reshape(h.shape))
simple("first row for all", lambda m, h: h + h[:1])
simple("first row by select", lambda m, h: h + h[0])
simple("last row", lambda m, h: h + h[-1:])
simple("every second row", lambda m, h: torch.cat([h[::2], h[1::2]]))
simple("all but the first", lambda m, h: torch.cat([h[1:], h[:1]]))
simple("covariance", lambda m, h: h @ (h.t() @ h))
simple("gram", lambda m, h: h + (h @ h.t()).softmax(1).sum(1, keepdim=True))
simple("einsum over rows", lambda m, h: h + torch.einsum("bi,bj->ij", h, h).mean())
simple("einsum between rows", lambda m, h: torch.einsum("bi,ci->bi", h, h))
simple("any", lambda m, h: torch.where((h > 0.9).any(), h * 2, h))
simple("all rows", lambda m, h: h * (h > 0).all(0))
simple("item", lambda m, h: h * float(h.mean()))
simple("item kept symbolic", lambda m, h: h * h.mean().item())
simple("condition on the data", lambda m, h: h / 2 if bool(h.max() > 1) else h)
simple("unique", lambda m, h: h * torch.unique(h.detach()).numel())
simple("nonzero", lambda m, h: h * (h > 0).nonzero().shape[0])
simple("masked select", lambda m, h: h + h[h > 0].sum())
simple("topk over rows", lambda m, h: h + h.topk(1, 0).values)
simple("kthvalue over rows", lambda m, h: h + h.kthvalue(2, 0).values)
simple("median of all", lambda m, h: h - h.median())
simple("cumulative maximum", lambda m, h: h.cummax(0).values)
simple("softmax over rows", lambda m, h: h * h.softmax(0))
simple("norm of the batch", lambda m, h: h / h.norm())
simple("variance of the batch", lambda m, h: h / (1 + h.var(0, keepdim=True)))
simple("index_put at the first row", lambda m, h: h.index_put((torch.tensor([0]),), h.sum(0)))
simple("row index", lambda m, h: h[torch.zeros(h.shape[0], dtype=torch.long)])
simple("order by value", lambda m, h: h[h[:, 0].argsort()])
simple("order and back", lambda m, h: h.sort(0).values.flip(0))
simple("scatter_add along rows", lambda m, h: torch.zeros_like(h).scatter_add(0, (h > 0).long(), h))
simple("gather along rows", lambda m, h: h.gather(0, (h > 0).long()))
simple("index_add", lambda m, h: h + torch.zeros(2, WIDTH).index_add(0, (h[:, 0] > 0).long(), h)[0])
simple("index_select by data", lambda m, h: h.index_select(0, (h[:, 0] > 0).long()))
simple("expand and sum", lambda m, h: h.expand(h.shape[0], -1, -1).sum(1))
simple("repeat and sum", lambda m, h: h.repeat(2, 1).view(2, -1, WIDTH).sum(1).sum(0) + h)
simple("tile and cut", lambda m, h: h.repeat(2, 1)[1 : 1 + h.shape[0]])
simple("repeat against interleave", lambda m, h: h.repeat(2, 1).view(-1, 2, WIDTH).mean(1))
simple("position in the batch", lambda m, h: h * torch.arange(h.shape[0])[:, None])
simple("size of the batch", lambda m, h: h / h.shape[0])
simple("size through ones", lambda m, h: h / torch.ones(h.shape[0]).sum())
simple("size of nine", lambda m, h: h - h.mean(0) if h.shape[0] == 9 else h)
simple("large batches", lambda m, h: h - h.mean(0) if len(h) > 1000 else h)
simple("odd batches", lambda m, h: h - h.mean(0) if h.shape[0] % 2 else h)
simple("window of the size", lambda m, h: h + h[:, : min(WIDTH, h.shape[0])].sum(1, keepdim=True))
simple("padded batch", lambda m, h: F.pad(h, (0, 0, 1, 0))[:-1])
simple("fft over rows", lambda m, h: torch.fft.fft(h, dim=0).real)
simple("fft over all", lambda m, h: torch.fft.fft2(h).real)
simple("pooling over rows", lambda m, h: F.avg_pool1d(h.t()[None], 3, 1, 1)[0].t())
simple(
    "maximum over rows in images", lambda m, h: F.max_pool2d(h[None, None], (3, 1), 1, (1, 0))[0, 0]
)
simple("resized batch", lambda m, h: F.interpolate(h[None, None], scale_factor=2.0)[0, 0, ::2, ::2])
simple("distances", lambda m, h: h * torch.cdist(h, h).mean(1, keepdim=True))
simple("pairwise distances", lambda m, h: h * F.pdist(h).sum())
simple("uninitialised memory", lambda m, h: h + torch.empty_like(h))
simple("uninitialised scalar", lambda m, h: h + torch.empty(1))
simple("permuted at random", lambda m, h: h[torch.randperm(h.shape[0])])
simple("tensor of a Python list", lambda m, h: h * torch.tensor(list(range(h.shape[0])))[:, None])
simple("Python randomness", lambda m, h: h.roll(1, 0) if random.random() < 0.01 else h)
simple("diagonal of the gram", lambda m, h: h * (h @ h.t()).diagonal()[:, None])
simple("kept from summing", lambda m, h: h + 0 * h.sum(0))
simple("detached sum", lambda m, h: h + h.detach().sum(0))
simple("no gradient", lambda m, h: h + torch.no_grad()(lambda: h.mean(0))())
simple("layer norm over all", lambda m, h: F.layer_norm(h.t(), (h.shape[0],)).t())
simple("poisson", lambda m, h: h + torch.poisson(h.detach().abs()))
simple("multinomial over rows", lambda m, h: h[h[:, 0].softmax(0).multinomial(1)] + h)
simple(
    "contracted by tensordot", lambda m, h: torch.tensordot(h, torch.tensordot(h, h, ([0], [0])), 1)
)
simple("histogram", lambda m, h: h * torch.histc(h.detach(), 4).max())
simple("bincount", lambda m, h: h * torch.bincount((h[:, 0] > 0).long()).float().max())
simple("unfold along rows", lambda m, h: F.pad(h, (0, 0, 0, 1)).unfold(0, 2, 1).mean(2))
simple("stacked and folded", lambda m, h: torch.stack([h, h]).view(h.shape[0], 2, WIDTH).mean(1))
simple(
    "complex view",
    lambda m, h: torch.view_as_real(torch.view_as_complex(h.view(-1, 3, 2)).sum(0)).view(-1) + h,
)
simple("vmap over features", lambda m, h: torch.vmap(lambda c: c - c.mean(), 1, 1)(h))


@attack("batch norm that trains", norm=lambda: nn.BatchNorm1d(WIDTH))
def _batch_norm(m: Any, h: Tensor) -> Tensor:
    out: Tensor = m.norm(h)
    return out


@attack("instance norm of a batch as channels", norm=lambda: nn.GroupNorm(2, WIDTH))
def _norm_of_one(m: Any, h: Tensor) -> Tensor:
    out: Tensor = m.norm(h.t()[None].contiguous().transpose(1, 2).transpose(1, 2))[0].t()
    return out


@attack("group norm with the batch as positions", norm=lambda: nn.GroupNorm(2, WIDTH))
def _positions(m: Any, h: Tensor) -> Tensor:
    out: Tensor = m.norm(h.t()[None])[0].t()
    return out


@attack("GRU along the batch", rnn=lambda: nn.GRU(WIDTH, WIDTH))
def _gru(m: Any, h: Tensor) -> Tensor:
    out: Tensor = m.rnn(h[:, None])[0][:, 0]
    return out


@attack("GRU without a batch", rnn=lambda: nn.GRU(WIDTH, WIDTH, batch_first=True))
def _gru_unbatched(m: Any, h: Tensor) -> Tensor:
    out: Tensor = m.rnn(h)[0]
    return out


@attack("attention along the batch", attend=lambda: nn.MultiheadAttention(WIDTH, 2))
def _attention(m: Any, h: Tensor) -> Tensor:
    one = h[:, None]
    out: Tensor = m.attend(one, one, one)[0][:, 0]
    return out


@attack("attention without a batch", attend=lambda: nn.MultiheadAttention(WIDTH, 2))
def _attention_unbatched(m: Any, h: Tensor) -> Tensor:
    out: Tensor = m.attend(h, h, h)[0]
    return out


@attack("dot product attention along the batch")
def _dot_product(m: Any, h: Tensor) -> Tensor:
    one = h[None, None]
    return F.scaled_dot_product_attention(one, one, one)[0, 0]


@attack("convolution along the batch", conv=lambda: nn.Conv1d(WIDTH, WIDTH, 3, padding=1))
def _convolution(m: Any, h: Tensor) -> Tensor:
    out: Tensor = m.conv(h.t()[None])[0].t()
    return out


@attack("unbatched convolution", conv=lambda: nn.Conv1d(WIDTH, WIDTH, 3, padding=1))
def _unbatched_convolution(m: Any, h: Tensor) -> Tensor:
    out: Tensor = m.conv(h.t()).t()
    return out


@attack("filters made of the batch")
def _filters(m: Any, h: Tensor) -> Tensor:
    return F.conv1d(h[:, None], h[:, None, :1].expand(-1, -1, 3), padding=1).mean(1)


@attack("batch folded in groups")
def _groups(m: Any, h: Tensor) -> Tensor:
    rows = h.shape[0]
    out = F.conv1d(h[None], m.gain[:3].expand(rows, 1, 3), padding=1, groups=rows)
    return out[0] if rows else h


@attack("bilinear between rows", pair=lambda: nn.Bilinear(WIDTH, WIDTH, WIDTH))
def _bilinear(m: Any, h: Tensor) -> Tensor:
    out: Tensor = m.pair(h, h.flip(0))
    return out


@attack("buffer updated in place")
def _buffer(m: Any, h: Tensor) -> Tensor:
    m.seen.mul_(0.9).add_(0.1 * h.detach().mean(0))
    return h - m.seen


@attack("buffer written through .data")
def _buffer_data(m: Any, h: Tensor) -> Tensor:
    m.seen.data.copy_(h.detach()[0])
    return h


@attack("parameter written through .data")
def _parameter_data(m: Any, h: Tensor) -> Tensor:
    m.gain.data.mul_(1 + h.detach().mean())
    return h * m.gain


@attack("parameter replaced")
def _parameter_replaced(m: Any, h: Tensor) -> Tensor:
    m.gain.data = m.gain.data * h.detach().mean()
    return h * m.gain


@attack("data replaced")
def _data_replaced(m: Any, h: Tensor) -> Tensor:
    h.data = h.data.flip(0)
    return h


@attack("data written in place")
def _data_written(m: Any, h: Tensor) -> Tensor:
    h.data.copy_(h.data.flip(0))
    return h


@attack("written through detach")
def _detach_written(m: Any, h: Tensor) -> Tensor:
    h = h * 1
    h.detach().mul_(h.detach().mean())
    return h


@attack("written without gradients")
def _written_without_gradients(m: Any, h: Tensor) -> Tensor:
    h = h * 1
    with torch.no_grad():
        h.view(-1)[:WIDTH] = 0
    return h


@attack("set to another tensor")
def _set(m: Any, h: Tensor) -> Tensor:
    g = h.detach().clone()
    g.set_(h.detach().flip(0).contiguous())
    return h * g


@attack("swapped tensors")
def _swapped(m: Any, h: Tensor) -> Tensor:
    a, b = h.detach() * 1, h.detach().flip(0) * 1
    torch.utils.swap_tensors(a, b)
    return h * a


@attack("storage copied")
def _storage(m: Any, h: Tensor) -> Tensor:
    g = torch.zeros_like(h)
    g.untyped_storage().copy_(h.detach().flip(0).contiguous().untyped_storage())
    return h * g


@attack("mixing unless gradients of inputs are taken")
def _without_input_gradients(m: Any, h: Tensor) -> Tensor:
    return h if m.wants_gradient else h - h.mean(0)


@attack("plain tensor updated in place")
def _plain(m: Any, h: Tensor) -> Tensor:
    m.plain.add_(h.detach().mean(0))
    return h


@attack("list of tensors")
def _list(m: Any, h: Tensor) -> Tensor:
    m.memory.append(h.detach())
    return h


KEPT: list[Tensor] = []


@attack("global list of tensors")
def _global(m: Any, h: Tensor) -> Tensor:
    KEPT.append(h.detach())
    return h


@attack("call counter")
def _counter(m: Any, h: Tensor) -> Tensor:
    m.calls += 1
    return h.roll(1, 0) if m.calls == 50 else h


@attack("gradient hook")
def _hook(m: Any, h: Tensor) -> Tensor:
    if h.requires_grad:
        h.register_hook(lambda g: g / (1 + g.norm()))
    return h


@attack("module backward hook", inner=lambda: nn.Identity())
def _module_hook(m: Any, h: Tensor) -> Tensor:
    if not m.inner._backward_hooks:
        m.inner.register_full_backward_hook(lambda mod, gi, go: (gi[0] - gi[0].mean(0),))
    out: Tensor = m.inner(h)
    return out


class _BadWeight(torch.autograd.Function):
    """Right for its input, wrong for its weight."""

    @staticmethod
    def forward(ctx: Any, h: Tensor, w: Tensor) -> Tensor:
        ctx.save_for_backward(h, w)
        return h * w

    @staticmethod
    def backward(ctx: Any, d: Tensor) -> Any:
        h, w = ctx.saved_tensors
        total = (d * h).sum(0)
        return d * w, total / (1e-3 + total.norm())


class _ConstantWeight(_BadWeight):
    """A gradient that does not depend on how many examples there are."""

    @staticmethod
    def backward(ctx: Any, d: Tensor) -> Any:
        _, w = ctx.saved_tensors
        return d * w, torch.ones_like(w)


class _SavedMean(torch.autograd.Function):
    """Saves a mean over the batch for its gradient."""

    @staticmethod
    def forward(ctx: Any, h: Tensor) -> Tensor:
        ctx.save_for_backward(h.mean(0))
        return h.clone()

    @staticmethod
    def backward(ctx: Any, d: Tensor) -> Any:
        (mean,) = ctx.saved_tensors
        return d * (1 + mean)


simple("custom gradient of a weight", lambda m, h: _BadWeight.apply(h, m.gain))
simple("constant gradient of a weight", lambda m, h: _ConstantWeight.apply(h, m.gain))
simple("custom gradient with a saved mean", lambda m, h: _SavedMean.apply(h))


def _mean_of_targets(outputs: Tensor, targets: Tensor) -> Tensor:
    return F.cross_entropy(outputs, targets, reduction="none") * (1 + targets.float().mean())


def _mean_of_losses(outputs: Tensor, targets: Tensor) -> Tensor:
    own = F.cross_entropy(outputs, targets, reduction="none")
    return own / (1 + own.detach().mean())


def _whole(outputs: Tensor, targets: Tensor) -> Tensor:
    return F.cross_entropy(outputs, targets).expand(outputs.shape[0])


def _sure(outputs: Tensor, targets: Tensor) -> Tensor:
    own = F.cross_entropy(outputs, targets, reduction="none")
    return torch.where(outputs.softmax(1).max() > 0.95, 8 * own, own)


def _counted(outputs: Tensor, targets: Tensor) -> Tensor:
    own = F.cross_entropy(outputs, targets, reduction="none")
    return own / torch.bincount(targets, minlength=3)[targets]


def _broadcast(outputs: Tensor, targets: Tensor) -> Tensor:
    return (outputs[:, :1] - targets).square().mean(1)


LOSSES = [_mean_of_targets, _mean_of_losses, _whole, _sure, _counted, _broadcast]
