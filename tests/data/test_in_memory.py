"""Data given as objects in Python."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from torch.utils.data import DataLoader, IterableDataset, Subset, TensorDataset
from torch.utils.data import Dataset as TorchDataset

from sfumato.data import Dataset, load
from sfumato.errors import UserError

NUMBERS = np.random.default_rng(0)
IMAGES = NUMBERS.integers(0, 256, (40, 3, 8, 8), dtype=np.uint8)
LABELS = np.arange(40) % 4


class Items(TorchDataset[Any]):
    """A map-style data set of whatever a function makes of each image and label."""

    def __init__(self, item: Callable[[np.ndarray, int], Any], count: int = 40) -> None:
        self.item, self.count = item, count

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, k: int) -> Any:
        if k >= self.count:
            raise IndexError(k)
        return self.item(IMAGES[k], int(LABELS[k]))


class Stream(IterableDataset[Any]):
    def __iter__(self) -> Iterator[Any]:
        return iter(zip(IMAGES, LABELS, strict=True))


def picture(image: np.ndarray) -> Image.Image:
    return Image.fromarray(image.transpose(1, 2, 0))


def same(a: Dataset, b: Dataset) -> bool:
    return a.fingerprint() == b.fingerprint() and np.array_equal(a.test.images, b.test.images)


@pytest.mark.parametrize(
    "data",
    [
        (torch.from_numpy(IMAGES), torch.from_numpy(LABELS)),
        (IMAGES.transpose(0, 2, 3, 1), LABELS.astype(np.float64)),
        [list(IMAGES), LABELS.tolist()],
        TensorDataset(torch.from_numpy(IMAGES), torch.from_numpy(LABELS)),
        Items(lambda x, y: (picture(x), y)),
        Items(lambda x, y: {"img": picture(x), "label": y}),
        Items(lambda x, y: (torch.from_numpy(x), torch.tensor(y))),
        Subset(Items(lambda x, y: (x, y)), range(40)),
        {"train": (IMAGES, LABELS)},
    ],
)
def test_every_form_of_the_same_images_is_the_same_data(data: object, tmp_path: Path) -> None:
    np.savez(tmp_path / "x.npz", images=IMAGES, labels=LABELS)
    assert same(load(data), load(tmp_path / "x.npz"))


def test_floats_stay_floats() -> None:
    x = torch.from_numpy(IMAGES).float() / 255
    assert load((x.bfloat16(), LABELS)).train.images.dtype == np.float32
    assert np.allclose(load(((x, LABELS), (x, LABELS))).test.images * 255, IMAGES)


@pytest.mark.parametrize("mapping", [True, False])
def test_own_parts_are_kept(mapping: bool) -> None:
    train, test = (IMAGES[:30], LABELS[:30]), Items(lambda x, y: (x, y), 10)
    found = load({"train": train, "val": train, "test": test} if mapping else (train, test))
    assert (len(found.train), len(found.test)) == (30, 10)
    assert (found.validation is not None) == mapping


def test_names_of_classes_are_taken_over() -> None:
    items = Items(lambda x, y: (x, y))
    items.classes = ["a", "b", "c", "d", "never seen"]
    assert load(Subset(items, range(40))).classes[-1] == "never seen"
    rows = Items(lambda x, y: {"image": x, "label": y})
    rows.features = {"label": SimpleNamespace(names=list("wxyz"))}
    assert load(rows).classes == tuple("wxyz")


def test_grey_and_colour_pictures_become_one_size_and_kind() -> None:
    def item(x: np.ndarray, y: int) -> Any:
        return (picture(x).convert("L") if y else picture(x).resize((20, 12))), y

    found = load(Items(item), size=6)
    assert found.train.images.shape[1:] == (3, 6, 6)
    assert load(Items(item), size=6, channels=1).channels == 1


REFUSED = {
    "has no labels: give a pair": IMAGES,
    "example 0 is a Tensor, but must be": Items(lambda x, y: torch.from_numpy(x)),
    "example 0 is 1 values": TensorDataset(torch.from_numpy(IMAGES)),
    "a row with image, text": Items(lambda x, y: {"image": x, "text": ""}),
    "examples have no index": Stream(),
    "give its data set, loader.dataset": DataLoader(Items(lambda x, y: (x, y))),
    "is a generator": (pair for pair in zip(IMAGES, LABELS, strict=True)),
    "holds 40 images but labels holds 39 labels": (IMAGES, LABELS[1:]),
    "the train labels hold -1": (IMAGES, LABELS - 1),
    "no training image has the label 3": (IMAGES, LABELS * (1 + (LABELS == 3))),
    "not whole numbers": (IMAGES, LABELS / 2),
    "are not one whole number": (IMAGES, [None] * 40),
    "one-hot": (IMAGES, np.eye(4)[LABELS]),
    "different sizes, such as (3, 8, 8) and (3, 8, 7)": Items(lambda x, y: (x[..., : 8 - y], y)),
    "leaves open which axis": (np.zeros((40, 3, 8, 3), np.uint8), LABELS),
    "divide by 255": (IMAGES.astype(np.float32), LABELS),
    "normalises images itself": (IMAGES / 255 - 0.5, LABELS),
    "is another image each time": Items(lambda x, y: (NUMBERS.permutation(x), y)),
    "this one has images, labels": {"images": IMAGES, "labels": LABELS},
    "train images is empty": ((IMAGES[:0], LABELS[:0]), (IMAGES, LABELS)),
}


@pytest.mark.parametrize("words", REFUSED)
def test_what_cannot_be_used_is_refused_with_a_sentence(words: str) -> None:
    with pytest.raises(UserError) as caught:
        load(REFUSED[words])
    assert words in str(caught.value)
