from __future__ import annotations

import numpy as np
import pytest
import torch

from sfumato.data import ImageSet, ImageStore

CUDA = torch.cuda.is_available()


def some_images(n: int = 12, dtype: type = np.uint8) -> ImageSet:
    random = np.random.default_rng(0)
    images = random.integers(0, 256, (n, 3, 5, 4))
    images = images.astype(np.uint8) if dtype is np.uint8 else (images / 255).astype(np.float32)
    return ImageSet(images, random.integers(0, 3, n))


def store(images: ImageSet, **options) -> ImageStore:
    return ImageStore(images, mean=(0.1, 0.2, 0.3), std=(0.5, 1.0, 2.0), **options)


@pytest.mark.parametrize("dtype", [np.uint8, np.float32])
@pytest.mark.parametrize(
    "device", ["cpu", pytest.param("cuda", marks=pytest.mark.skipif(not CUDA, reason="no GPU"))]
)
@pytest.mark.parametrize("budget", [None, 0])
def test_gather_repeats_and_may_be_empty(dtype, device, budget):
    images = some_images(dtype=dtype)
    held = store(images, device=device, budget=budget)
    assert len(held) == 12 and held.resident == (device == "cpu" or budget is None)
    for indices in ([], [3], [5, 0, 5, 11, 5]):
        index = torch.tensor(indices, dtype=torch.long)
        found, labels = held.gather(index)
        assert found.shape == (len(indices), 3, 5, 4)
        assert found.device.type == labels.device.type == device
        assert np.array_equal(found.cpu().numpy(), images.images[indices])
        assert np.array_equal(labels.cpu().numpy(), images.labels[np.array(indices, dtype=int)])
        assert labels.dtype == torch.int64


def test_memory_maps_are_streamed_and_never_written(tmp_path):
    images = some_images()
    np.save(tmp_path / "images.npy", images.images)
    mapped = np.load(tmp_path / "images.npy", mmap_mode="r")
    held = store(ImageSet(mapped, images.labels))
    assert not held.resident
    found, _ = held.gather(torch.tensor([4, 4, 1]))
    found += 1
    assert np.array_equal(np.load(tmp_path / "images.npy"), images.images)
    again, _ = held.gather(torch.tensor([4]))
    assert np.array_equal(again.numpy(), images.images[[4]])


def test_normalise_uses_the_constants_on_the_unit_scale():
    images = some_images()
    unit = images.images / 255.0
    expected = (unit - np.reshape([0.1, 0.2, 0.3], (1, 3, 1, 1))) / np.reshape(
        [0.5, 1.0, 2.0], (1, 3, 1, 1)
    )
    held = store(images)
    raw, _ = held.gather(torch.arange(12))
    assert held.normalise(raw).dtype == torch.float32
    assert np.allclose(held.normalise(raw).numpy(), expected, atol=1e-6)
    assert torch.equal(held.normalise(held.unit(raw)), held.normalise(raw))
    assert held.normalise(raw[:0]).shape == (0, 3, 5, 4)


def test_nan_survives_the_store():
    images = some_images(dtype=np.float32)
    images.images[2, 0, 0, 0] = np.nan
    held = store(images)
    found, _ = held.gather(torch.tensor([2, 3]))
    assert held.normalise(found).isnan().flatten(1).any(1).tolist() == [True, False]


def test_constants_must_fit():
    with pytest.raises(ValueError, match="3 values"):
        ImageStore(some_images(), mean=(0.5,), std=(0.5,))
    with pytest.raises(ValueError, match="above zero"):
        ImageStore(some_images(), mean=(0.5,) * 3, std=(0.5, 0.0, 0.5))
