from __future__ import annotations

import numpy as np
import pytest
import torch

from sfumato.data import Augment, ImageSet, ImageStore, Views

MEAN, STD = (0.1, 0.2, 0.3), (0.5, 1.0, 2.0)
CHOSEN = torch.tensor([4, 0, 4])


@pytest.mark.parametrize("memory_format", [torch.channels_last, torch.contiguous_format])
@pytest.mark.parametrize("dtype", [np.uint8, np.float32])
def test_a_batch_is_the_normalised_views_of_stored_images(dtype, memory_format) -> None:
    pixels = np.random.default_rng(0).integers(1, 256, (6, 3, 5, 4))
    images = pixels.astype(np.uint8) if dtype is np.uint8 else (pixels / 255).astype(np.float32)
    store = ImageStore(ImageSet(images, np.arange(6)), mean=MEAN, std=STD)
    views = Views(augment=Augment(crop=3, padding_mode="zeros"), count=3, clean=True)
    parameters = views.draw(3, torch.Generator().manual_seed(0))
    x, labels = views.fetch(store, CHOSEN, parameters, memory_format=memory_format)
    assert labels.tolist() == [4, 0, 4]
    assert x.dtype == torch.float32 and x.is_contiguous(memory_format=memory_format)
    mean, std = (np.array(values).reshape(3, 1, 1) for values in (MEAN, STD))
    seen = x.numpy().reshape(3, 3, 3, 5, 4)
    assert np.allclose(seen[:, 0], (pixels[CHOSEN] / 255 - mean) / std, atol=1e-6)
    back = seen[:, 1:] * std + mean
    blank = np.isclose(back, 0, atol=1e-6).all(2)
    assert blank.any(), "padding is black before the images are normalised"
    assert not np.allclose(back[0], back[2])
    alone, _ = views.fetch(store, CHOSEN[1:2], parameters.take(torch.tensor([1])))
    assert torch.equal(alone, x[3:6])


def test_a_batch_lies_in_channels_last_unless_asked_otherwise() -> None:
    store = ImageStore(ImageSet(np.zeros((2, 3, 5, 4), np.uint8), np.arange(2)), mean=MEAN, std=STD)
    views = Views(augment=Augment())
    x, _ = views.fetch(store, torch.arange(2), views.draw(2))
    assert x.is_contiguous(memory_format=torch.channels_last) and not x.is_contiguous()
    none, labels = views.fetch(store, torch.arange(0), views.draw(0))
    assert none.shape == (0, 3, 5, 4) and not len(labels)
