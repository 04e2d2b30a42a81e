"""Accuracy and loss of a network on an image set."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from sfumato.data import ImageStore
from sfumato.data.prediction_views import averaged

_AT_ONCE = 512


@torch.no_grad()
def evaluate(
    model: nn.Module, store: ImageStore, *, test_views: str = "none"
) -> tuple[float, float]:
    """Accuracy and mean loss on all images of a store, of the model in evaluation mode.

    Args:
        model: From normalised images to logits.
        store: The images.
        test_views: What outputs are averaged over (`sfumato.data.prediction_views`).
    """

    def outputs() -> Iterator[tuple[Tensor, Tensor]]:
        for indices in torch.split(torch.arange(len(store)), _AT_ONCE):
            images, labels = store.gather(indices)
            x = store.normalise(images).contiguous(memory_format=torch.channels_last)
            yield averaged(model, x, test_views), labels

    return _scored(model, outputs())


@torch.no_grad()
def evaluate_rows(end: nn.Module, rows: Tensor, labels: Tensor) -> tuple[float, float]:
    """As `evaluate`, of a network's end on what enters it."""
    parts = zip(torch.split(rows, _AT_ONCE), torch.split(labels, _AT_ONCE), strict=True)
    return _scored(end, ((end(x), y) for x, y in parts))


def _scored(model: nn.Module, outputs: Iterable[tuple[Tensor, Tensor]]) -> tuple[float, float]:
    """Accuracy and mean loss of outputs, which are computed in evaluation mode."""
    right: list[Tensor] = []
    losses: list[Tensor] = []
    count = 0
    model.eval()
    for logits, labels in outputs:
        sound = ~logits.isnan().any(1)  # NaN would count as an answer.
        right.append(((logits.argmax(1) == labels) & sound).sum())
        losses.append(F.cross_entropy(logits.float(), labels, reduction="sum"))
        count += len(labels)
    model.train()
    loss = sum(part.cpu().double() for part in losses)  # Not every device has float64.
    return sum(int(part) for part in right) / max(1, count), float(loss) / max(1, count)
