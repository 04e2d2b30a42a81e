"""The rule of `F.embedding_bag`: sums, means and maxima of rows of a table.

The rows of a bag are looked up one by one, each with the leaf of its example, and reduced by
ordinary operators.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from sfumato.privacy.engines import autograd_functions
from sfumato.privacy.engines.contact_rule import Met, Rule, named
from sfumato.privacy.engines.leaves import NotPerOperator

_BAG = (
    "input", "weight", "offsets", "max_norm", "norm_type", "scale_grad_by_freq", "mode", "sparse",
    "per_sample_weights", "include_last_offset", "padding_idx",
)  # fmt: skip

_MAX = 2
"""The number of this mode in PyTorch."""


def embedding_bag(met: Met, function: Rule, args: Any, kwargs: dict[str, Any]) -> Tensor:
    """`F.embedding_bag` in every mode, with bags of one length or with offsets."""
    own = named(_BAG, args, kwargs)
    if own.get("max_norm") is not None or own.get("scale_grad_by_freq"):
        raise NotPerOperator("an embedding is rescaled as it is read")
    if met.contact.source != 0 or not met.contact.place.leads or own["input"].is_nested:
        raise NotPerOperator("an embedding has bags of more than one row of the batch")
    words, offsets, bags = _bags(own)
    given = own["weight"], words, own.get("padding_idx")
    if own.get("mode", "mean") == "max":
        return _maxima(met, *given, offsets)
    found = _looked_up(met, *given)
    if (factors := own.get("per_sample_weights")) is not None:
        found = found * factors.reshape(-1, 1)
    total = found.new_zeros(len(offsets), found.shape[1]).index_add(0, bags, found)
    if own.get("mode", "mean") == "sum":
        return total
    are_words = _is_word(given[0], words, given[2]).to(total.dtype)
    counts = are_words.new_zeros(len(offsets)).index_add(0, bags, are_words)
    return total / counts.clamp(min=1).unsqueeze(1)


def _bags(own: dict[str, Any]) -> tuple[Tensor, Tensor, Tensor]:
    """The words of all bags, where each bag begins, and the bag of each word."""
    words: Tensor = own["input"]
    offsets: Any = own.get("offsets")
    if words.dim() == 2:
        starts = torch.arange(len(words), device=words.device)
        return words.flatten(), starts * words.shape[1], starts.repeat_interleave(words.shape[1])
    if own.get("include_last_offset"):
        if int(offsets[-1]) != len(words):
            raise NotPerOperator("an embedding has words behind its last bag")
        offsets = offsets[:-1]
    places = torch.arange(len(words), device=words.device)
    bags = torch.searchsorted(offsets.to(places.dtype), places, right=True) - 1
    return words, offsets, bags


def _is_word(weight: Tensor, words: Tensor, padding: int | None) -> Tensor:
    """Tell which words are no padding."""
    if padding is None:
        return torch.ones_like(words, dtype=torch.bool)
    return words != (padding + len(weight) if padding < 0 else padding)


def _looked_up(met: Met, weight: Tensor, words: Tensor, padding: int | None) -> Tensor:
    """The row of each word, `(words, width)`; zeros for padding, also in the gradient."""
    value, leaf = met.leaves.value(weight), met.leaves.of(weight)
    each = words.view(met.leaves.rows, -1)
    y = autograd_functions.embedding(each, value, leaf, None, met.leaves.views).flatten(0, 1)
    if padding is None:
        return y
    return y.masked_fill(~_is_word(weight, words, padding).unsqueeze(1), 0)


def _maxima(
    met: Met, weight: Tensor, words: Tensor, padding: int | None, offsets: Tensor
) -> Tensor:
    """The largest number of each column: the rows of a table of numbers, by PyTorch's choice."""
    value, leaf = met.leaves.value(weight), met.leaves.of(weight)
    entries, width = weight.shape
    with torch.no_grad():
        _, _, sizes, chosen = torch.embedding_bag(
            value, words, offsets.to(words.dtype), False, _MAX, False, None, False, padding
        )
    numbers = (chosen * width + torch.arange(width, device=words.device)).clamp(min=0)
    table = None if leaf is None else leaf.reshape(len(leaf), entries * width, 1)
    y = autograd_functions.embedding(
        numbers.view(met.leaves.rows, -1), value.reshape(-1, 1), table, None, met.leaves.views
    )
    return y.reshape(chosen.shape).masked_fill((sizes == 0).unsqueeze(1), 0)


BAGS: dict[Any, Rule] = {F.embedding_bag: embedding_bag}
"""The rule by its function."""
