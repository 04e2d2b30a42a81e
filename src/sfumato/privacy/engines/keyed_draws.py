"""Random numbers of a model that belong to the rows of a batch: dropout, noise, random slopes.

Each row has a key, made of the seed of a step, the number of its example and of its view. A call
that draws random numbers for a batch computes them from the keys of the rows, its own number and
the position of each entry, by an integer hash. So an example has the same random numbers however
its draw is split over physical batches and ranks, and in every engine that runs operators. They are
neither secret nor part of the guarantee.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

_MASK = 0xFFFFFFFF
_GOLDEN = 0x9E3779B9


def _mixed(z: Tensor) -> Tensor:
    """An integer hash of 32 bits with little bias (Wellons, `lowbias32`), in int64."""
    z = z & _MASK
    z = z ^ (z >> 16)
    z = (z * 0x7FEB352D) & _MASK
    z = z ^ (z >> 15)
    z = (z * 0x846CA68B) & _MASK
    return z ^ (z >> 16)


@dataclass(frozen=True, eq=False)
class RowSeeds:
    """Seeds of the random numbers of a batch's rows.

    Attributes:
        seed: The seed of a step.
        examples: Numbers of the examples, which no two of a step share; if None, they are counted
            from `first` on.
        first: Number of the first example.
    """

    seed: int
    examples: Tensor | None = None
    first: int = 0

    def keys(self, rows: int, views: int, device: torch.device) -> Tensor:
        """One key of 32 bits for each row, of padding too."""
        own = torch.arange(rows // views, device=device)
        if self.examples is not None:
            padding = -1 - own[len(self.examples) :]  # Numbers that no example has.
            own = torch.cat([self.examples.to(own)[: len(own)], padding])
        low, high = self.seed & _MASK, self.seed >> 32 & _MASK
        keys = _mixed(_mixed(own + self.first + low) + high)
        if views == 1:
            return keys
        each = torch.arange(views, device=device) * _GOLDEN
        return _mixed(keys.unsqueeze(1) + each).flatten()


class KeyedDraws:
    """The draws of one pass.

    Args:
        keys: One key for each row.
    """

    def __init__(self, keys: Tensor) -> None:
        self._keys, self._calls = keys, 0

    @property
    def rows(self) -> int:
        """The number of rows."""
        return len(self._keys)

    def uniform(self, shape: tuple[int, ...]) -> Tensor | None:
        """Uniform numbers in [0, 1) for a tensor whose first dimension has the rows, or None."""
        rows = self.rows
        if not shape or not shape[0] or shape[0] % rows:
            return None
        self._calls += 1
        keys = _mixed(self._keys + self._calls * _GOLDEN)
        entries = torch.arange(math.prod(shape) // rows, device=keys.device)
        drawn = _mixed(_mixed(entries + 1).unsqueeze(0) ^ keys.unsqueeze(1))
        return ((drawn >> 8).float() * 2.0**-24).view(shape)

    def normal(self, shape: tuple[int, ...]) -> Tensor | None:
        """Standard normal numbers by the transform of Box and Muller, or None."""
        first, second = self.uniform(shape), self.uniform(shape)
        if first is None or second is None:
            return None
        return (-2 * torch.log1p(-first)).sqrt() * (2 * math.pi * second).cos()

    def exponential(self, shape: tuple[int, ...]) -> Tensor | None:
        """Exponentially distributed numbers above zero, or None."""
        drawn = self.uniform(shape)
        return None if drawn is None else -torch.log1p(-drawn).clamp(max=-(2.0**-25))


Drawing = Callable[..., Any]
"""From the draws of a pass, a function and its arguments to the result, or None if it has no rows
in its first dimension."""


def _factors(draws: KeyedDraws, x: Tensor, p: float, shape: tuple[int, ...]) -> Tensor | None:
    """Zeros with probability p, and 1 / (1 - p) otherwise."""
    if (drawn := draws.uniform(shape)) is None:
        return None
    return ((drawn >= p).to(x.dtype) / (1 - p)).to(x.dtype)


def _dropout(draws: KeyedDraws, function: Any, args: Any, kwargs: dict[str, Any]) -> Any:
    own = {"p": 0.5, "training": True, "inplace": False}
    own |= dict(zip(("input", "p", "training", "inplace"), args, strict=False)) | kwargs
    own["training"] = own.pop("train", own["training"])
    x: Any = own["input"]
    if not own["training"] or not 0 < own["p"] < 1:
        return None
    whole = function in _CHANNELWISE
    shape = (*x.shape[:2], *(1,) * (x.dim() - 2)) if whole else tuple(x.shape)
    factors = _factors(draws, x, own["p"], shape)
    if factors is None:
        return None
    return x.mul_(factors) if own["inplace"] else x * factors


def _bernoulli_(draws: KeyedDraws, function: Any, args: Any, kwargs: dict[str, Any]) -> Any:
    x, p = args[0], args[1] if len(args) > 1 else kwargs.get("p", 0.5)
    drawn = draws.uniform(tuple(x.shape))
    return None if drawn is None else x.copy_(drawn < p)


def _bernoulli(draws: KeyedDraws, function: Any, args: Any, kwargs: dict[str, Any]) -> Any:
    if len(args) > 1 or kwargs or (drawn := draws.uniform(tuple(args[0].shape))) is None:
        return None
    return (drawn < args[0]).to(args[0].dtype)


def _rand(draws: KeyedDraws, function: Any, args: Any, kwargs: dict[str, Any]) -> Any:
    draw = draws.normal if function in (torch.randn, torch.randn_like) else draws.uniform
    if kwargs.get("generator") is not None or kwargs.get("out") is not None:
        return None
    if function in (torch.rand_like, torch.randn_like):
        size, kind = args[0].shape, kwargs.get("dtype") or args[0].dtype
    else:
        size = kwargs.get("size", args[0] if args and not isinstance(args[0], int) else args)
        kind = kwargs.get("dtype") or torch.get_default_dtype()
    drawn = draw(tuple(size))
    if drawn is None or not kind.is_floating_point:
        return None
    return drawn.to(kind).requires_grad_(kwargs.get("requires_grad", False))


def _filled(draws: KeyedDraws, function: Any, args: Any, kwargs: dict[str, Any]) -> Any:
    """A tensor that is filled with uniform, normal or exponential numbers in place."""
    x, name = args[0], function.__name__
    names, default = _FILLED[name]
    own = {**dict(zip(names, default, strict=True)), **dict(zip(names, args[1:], strict=False))}
    own |= kwargs
    if own.pop("generator", None) is not None or not x.is_floating_point():
        return None
    draw = {"normal_": draws.normal, "exponential_": draws.exponential}.get(name, draws.uniform)
    if (drawn := draw(tuple(x.shape))) is None:
        return None
    a, *rest = (own[key] for key in names)
    if name == "exponential_":
        return x.copy_(drawn / a)
    return x.copy_(a + drawn * (rest[0] if name == "normal_" else rest[0] - a))


def _normal(draws: KeyedDraws, function: Any, args: Any, kwargs: dict[str, Any]) -> Any:
    """`torch.normal` of means and deviations, or of a size."""
    own: dict[str, Any] = {"mean": 0.0, "std": 1.0}
    own |= dict(zip(("mean", "std", "size"), args, strict=False)) | kwargs
    given = [t for t in (own["mean"], own["std"]) if isinstance(t, Tensor)]
    if set(own) - {"mean", "std", "size"} or not (given or own.get("size")):
        return None
    shape = own.get("size") or torch.broadcast_tensors(*given)[0].shape  # type: ignore[no-untyped-call]
    if (drawn := draws.normal(tuple(shape))) is None:
        return None
    kind = given[0].dtype if given else torch.get_default_dtype()
    with torch.no_grad():
        return drawn.to(kind) * own["std"] + own["mean"]


def _rectified(draws: KeyedDraws, function: Any, args: Any, kwargs: dict[str, Any]) -> Any:
    """A rectifier with random slopes."""
    names = ("input", "lower", "upper", "training", "inplace")
    own: dict[str, Any] = {"lower": 1 / 8, "upper": 1 / 3, "training": False, "inplace": False}
    own |= dict(zip(names, args, strict=False)) | kwargs
    x: Any = own["input"]
    if not own["training"] or (drawn := draws.uniform(tuple(x.shape))) is None:
        return None
    slopes = own["lower"] + (own["upper"] - own["lower"]) * drawn.to(x.dtype)
    slopes = torch.where(x > 0, 1.0, slopes)
    return x.mul_(slopes) if own["inplace"] else x * slopes


def _alpha_dropout(draws: KeyedDraws, function: Any, args: Any, kwargs: dict[str, Any]) -> Any:
    """Dropout that keeps mean and variance of numbers that a SELU returned."""
    names = ("input", "p", "training", "inplace")
    own: dict[str, Any] = {"p": 0.5, "training": False, "inplace": False}
    own |= dict(zip(names, args, strict=False)) | kwargs
    own["training"] = own.pop("train", own["training"])
    x, p = own["input"], own["p"]
    if not own["training"] or not 0 < p < 1:
        return None
    whole = function in _ALPHA_CHANNELWISE
    shape = (*x.shape[:2], *(1,) * (x.dim() - 2)) if whole else tuple(x.shape)
    if (drawn := draws.uniform(shape)) is None:
        return None
    kept = (drawn >= p).to(x.dtype)
    scale = 1 / math.sqrt((_SELU**2 * p + 1) * (1 - p))
    shift = _SELU * scale * (kept - 1 + p)
    return x.mul_(kept * scale).add_(shift) if own["inplace"] else x * (kept * scale) + shift


def _gumbel_softmax(draws: KeyedDraws, function: Any, args: Any, kwargs: dict[str, Any]) -> Any:
    """A softmax of logits with Gumbel noise."""
    own: dict[str, Any] = {"tau": 1.0, "hard": False, "dim": -1}
    own |= dict(zip(("logits", "tau", "hard", "eps", "dim"), args, strict=False)) | kwargs
    logits: Any = own["logits"]
    if (drawn := draws.exponential(tuple(logits.shape))) is None:
        return None
    soft = ((logits - drawn.log().to(logits.dtype)) / own["tau"]).softmax(own["dim"])
    if not own["hard"]:
        return soft
    index = soft.max(own["dim"], keepdim=True)[1]
    return torch.zeros_like(logits).scatter_(own["dim"], index, 1.0) - soft.detach() + soft


def _attention(draws: KeyedDraws, function: Any, args: Any, kwargs: dict[str, Any]) -> Any:
    """Attention with dropout of its weights, which the fused kernels draw otherwise."""
    names = ("query", "key", "value", "attn_mask", "dropout_p", "is_causal")
    own = dict(zip(names, args, strict=False)) | kwargs
    query, key, value, p = own["query"], own["key"], own["value"], own.get("dropout_p", 0.0)
    if not 0 < p < 1 or own.get("enable_gqa"):
        return None
    scale = own.get("scale") or 1 / math.sqrt(query.shape[-1])
    scores = query @ key.transpose(-2, -1) * scale
    factors = _factors(draws, query, p, tuple(scores.shape))
    if factors is None:
        return None
    if own.get("is_causal"):
        seen = torch.ones(scores.shape[-2:], dtype=torch.bool, device=scores.device).tril()
        scores = scores.masked_fill(~seen, float("-inf"))
    if (mask := own.get("attn_mask")) is not None:
        scores = (
            scores.masked_fill(~mask, float("-inf"))
            if mask.dtype == torch.bool
            else (scores + mask)
        )
    return (scores.softmax(-1) * factors) @ value


_CHANNELWISE = (F.dropout1d, F.dropout2d, F.dropout3d, torch.feature_dropout)

_ALPHA_CHANNELWISE = (F.feature_alpha_dropout, torch.feature_alpha_dropout)

_SELU = 1.7580993408473766
"""The number that a SELU approaches from above, with its sign changed."""

_FILLED: dict[str, tuple[tuple[str, ...], tuple[float, ...]]] = {
    "uniform_": (("from", "to"), (0.0, 1.0)),
    "normal_": (("mean", "std"), (0.0, 1.0)),
    "exponential_": (("lambd",), (1.0,)),
}
"""Names and defaults of the arguments of functions that fill a tensor."""

DRAWINGS: dict[Any, Drawing] = {
    **dict.fromkeys((F.dropout, torch.dropout, *_CHANNELWISE), _dropout),
    **dict.fromkeys((Tensor.bernoulli_, torch._C.TensorBase.bernoulli_), _bernoulli_),
    torch.bernoulli: _bernoulli,
    **dict.fromkeys((torch.rand, torch.rand_like, torch.randn, torch.randn_like), _rand),
    **{
        getattr(space, name): _filled for name in _FILLED for space in (Tensor, torch._C.TensorBase)
    },
    torch.normal: _normal,
    **dict.fromkeys((F.rrelu, torch.rrelu), _rectified),
    **dict.fromkeys((F.alpha_dropout, torch.alpha_dropout, *_ALPHA_CHANNELWISE), _alpha_dropout),
    F.gumbel_softmax: _gumbel_softmax,
    F.scaled_dot_product_attention: _attention,
}
"""Functions that draw random numbers for the rows of a batch."""
