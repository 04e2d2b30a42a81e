"""Accuracy and loss of a network on an image set."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import nn

from sfumato.data import ImageStore
from sfumato.data.test_time import averaged

_AT_ONCE = 512


@torch.no_grad()
def evaluate(
    model: nn.Module, store: ImageStore, *, test_views: str = "none"
) -> tuple[float, float]:
    """Accuracy and mean loss on all images of a store, of the model in evaluation mode.

    Args:
        model: From normalised images to logits.
        store: The images.
        test_views: What outputs are averaged over (`sfumato.data.test_time`).
    """
    right = torch.zeros((), dtype=torch.int64, device=store.device)
    loss = torch.zeros((), dtype=torch.float64, device="cpu")
    losses = []
    model.eval()
    for indices in torch.split(torch.arange(len(store)), _AT_ONCE):
        images, labels = store.gather(indices)
        x = store.normalise(images).contiguous(memory_format=torch.channels_last)
        outputs = averaged(model, x, test_views)
        right += (outputs.argmax(1) == labels).sum()
        losses.append(F.cross_entropy(outputs.float(), labels, reduction="sum"))
    model.train()
    for part in losses:
        loss += part.double().cpu()
    count = max(1, len(store))
    return int(right) / count, float(loss) / count
