"""Random numbers of a model that belong to the rows of a batch: dropout and stochastic depth.

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
        """One key of 32 bits for each row; rows of padding have those of the first examples."""
        own = torch.arange(rows // views, device=device)
        if self.examples is not None and len(self.examples):
            own = self.examples.to(device)[own % len(self.examples)]
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
    if function is torch.rand_like:
        size, kind = args[0].shape, kwargs.get("dtype") or args[0].dtype
    else:
        size = args[0] if len(args) == 1 and not isinstance(args[0], int) else args
        kind = kwargs.get("dtype") or torch.get_default_dtype()
    drawn = draws.uniform(tuple(size))
    return None if drawn is None else drawn.to(kind)


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

DRAWINGS: dict[Any, Drawing] = {
    **dict.fromkeys((F.dropout, torch.dropout, *_CHANNELWISE), _dropout),
    **dict.fromkeys((Tensor.bernoulli_, torch._C.TensorBase.bernoulli_), _bernoulli_),
    torch.bernoulli: _bernoulli,
    **dict.fromkeys((torch.rand, torch.rand_like), _rand),
    F.scaled_dot_product_attention: _attention,
}
"""Functions that draw random numbers for the rows of a batch."""
