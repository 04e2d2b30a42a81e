"""Accuracy and loss of a network on an image set."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from sfumato.data import ImageStore
from sfumato.data.prediction_views import averaged
from sfumato.data.progress_bar import progress
from sfumato.distributed.ranks import Ranks
from sfumato.memory import BatchSize

_AT_ONCE = 512
_ALONE = Ranks()


@torch.no_grad()
def evaluate(
    model: nn.Module,
    store: ImageStore,
    *,
    test_views: str = "none",
    ranks: Ranks = _ALONE,
    label: str = "",
) -> tuple[float, float]:
    """Accuracy and mean loss on all images of a store, of the model in evaluation mode.

    Args:
        model: From normalised images to logits.
        store: The images.
        test_views: The views that outputs are averaged over (`sfumato.data.prediction_views`).
        ranks: The ranks that share the images, and all have the result.
        label: What a bar calls the images; no bar if empty.
    """

    at_once = store.at_once(_AT_ONCE)
    share = ranks.share(len(store), at_once)

    def outputs(part: slice) -> tuple[Tensor, Tensor]:
        images, labels = store.gather(share[part])
        x = store.normalise(images).contiguous(memory_format=torch.channels_last)
        return averaged(model, x, test_views), labels

    parts = BatchSize(at_once).parts(len(share), outputs)
    if not label or not ranks.leader:
        return _scored(model, parts, ranks)
    with progress(label, len(share)) as advance:
        return _scored(model, _counted(parts, advance), ranks)


def _counted(
    parts: Iterable[tuple[Tensor, Tensor]], advance: Callable[[int], None]
) -> Iterator[tuple[Tensor, Tensor]]:
    for logits, labels in parts:
        advance(len(labels))
        yield logits, labels


@torch.no_grad()
def evaluate_rows(end: nn.Module, rows: Tensor, labels: Tensor) -> tuple[float, float]:
    """Accuracy and mean loss of a network's trained end on its inputs."""
    parts = BatchSize(_AT_ONCE).parts(len(rows), lambda part: (end(rows[part]), labels[part]))
    return _scored(end, parts)


def _scored(
    model: nn.Module, outputs: Iterable[tuple[Tensor, Tensor]], ranks: Ranks = _ALONE
) -> tuple[float, float]:
    """Accuracy and mean loss of outputs, which are computed in evaluation mode."""
    right: list[Tensor] = []
    losses: list[Tensor] = []
    count = 0
    model.eval()
    for logits, labels in outputs:
        sound = ~logits.isnan().any(1)  # The argmax of NaN would count as an answer.
        right.append(((logits.argmax(1) == labels) & sound).sum())
        losses.append(F.cross_entropy(logits.float(), labels, reduction="sum"))
        count += len(labels)
    model.train()
    loss = float(sum(part.cpu().double() for part in losses))  # Not every device has float64.
    found = ranks.exchange([sum(int(part) for part in right), loss, count])
    correct, loss, count = (sum(numbers) for numbers in zip(*found, strict=True))
    return correct / max(1, count), loss / max(1, count)
