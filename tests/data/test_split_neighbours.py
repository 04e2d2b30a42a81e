"""Taking one image away changes one training image, wherever images are set aside."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from sfumato.data import Dataset, load
from sfumato.data.split import Rule, stratified


def contents(dataset: Dataset) -> Counter[bytes]:
    """The training images with their labels, as a multiset."""
    train = dataset.train
    rows = zip(train.images, train.labels, strict=True)
    return Counter(image.tobytes() + bytes([label]) for image, label in rows)


def changed(a: Dataset, b: Dataset) -> int:
    """How many training images one of two data sets has and the other has not."""
    left, right = contents(a), contents(b)
    return (left - right).total() + (right - left).total()


def arrays(count: int = 2000) -> tuple[np.ndarray, np.ndarray]:
    random = np.random.default_rng(0)
    images = random.integers(0, 256, (count, 6, 6), dtype=np.uint8)
    images[7] = images[3]
    return images, random.integers(0, 10, count)


@pytest.mark.parametrize("dtype", [np.uint8, np.uint16, np.float32])
@pytest.mark.parametrize("names", [("images", "labels"), ("x_train", "y_train")])
@pytest.mark.parametrize("validation", [0.0, 0.1])
def test_array_without_one_image(
    tmp_path: Path, dtype: type, names: tuple[str, str], validation: float
) -> None:
    images, labels = arrays()
    images = (
        images.astype(float) * {np.uint8: 1, np.uint16: 257, np.float32: 1 / 255}[dtype]
    ).astype(dtype)
    np.savez(tmp_path / "all.npz", **{names[0]: images, names[1]: labels})
    whole = load(tmp_path / "all.npz", validation=validation)
    for gone in (0, 3, 999, 1999):
        content = {names[0]: np.delete(images, gone, 0), names[1]: np.delete(labels, gone)}
        np.savez(tmp_path / "fewer.npz", **content)
        assert changed(whole, load(tmp_path / "fewer.npz", validation=validation)) <= 1


def test_array_with_a_test_part_without_one_image(tmp_path: Path) -> None:
    images, labels = arrays(1000)
    test = {"x_test": images[:100], "y_test": labels[:100]}
    np.savez(tmp_path / "all.npz", x_train=images, y_train=labels, **test)
    np.savez(tmp_path / "fewer.npz", x_train=images[1:], y_train=labels[1:], **test)
    a, b = (load(tmp_path / f"{name}.npz", validation=0.2) for name in ("all", "fewer"))
    assert changed(a, b) <= 1


def test_array_in_another_order_has_the_same_split(tmp_path: Path) -> None:
    images, labels = arrays(500)
    order = np.random.default_rng(1).permutation(500)
    np.savez(tmp_path / "a.npz", images=images, labels=labels)
    np.savez(tmp_path / "b.npz", images=images[order], labels=labels[order])
    a, b = (load(tmp_path / f"{name}.npz", validation=0.2) for name in "ab")
    assert changed(a, b) == 0


def test_scaling_does_not_move_images(tmp_path: Path) -> None:
    images, labels = arrays(500)
    np.savez(tmp_path / "a.npz", images=images, labels=labels)
    plain = load(tmp_path / "a.npz", validation=0.2)
    scaled = load(tmp_path / "a.npz", validation=0.2, size=8, channels=3)
    assert np.array_equal(plain.train.labels, scaled.train.labels)
    assert np.array_equal(plain.validation.labels, scaled.validation.labels)


def test_folder_without_one_image(tmp_path: Path) -> None:
    """A class's number of images must not decide about its other images."""
    random = np.random.default_rng(0)
    root = tmp_path / "scans"
    for label, count in (("a", 30), ("b", 28)):
        (root / label).mkdir(parents=True)
        for k in range(count):
            pixels = random.integers(0, 256, (4, 4), dtype=np.uint8)
            Image.fromarray(pixels).save(root / label / f"{k:03d}.png")
    whole = load(root, validation=0.2, cache=False)
    for path in sorted(root.rglob("*.png")):
        kept = path.read_bytes()
        path.unlink()
        assert changed(whole, load(root, validation=0.2, cache=False)) <= 1
        path.write_bytes(kept)


@pytest.mark.parametrize("rule", ["independent", "stratified"])
def test_named_data_sets_keep_the_splits_of_recorded_results(rule: Rule) -> None:
    whole, cut = load("digits"), load("digits", validation=0.05, split_rule=rule)
    rest, part = stratified(whole.train.labels, 0.05, seed=0, purpose="validation")
    assert cut.validation is not None
    assert np.array_equal(cut.validation.images, whole.train.images[part])
    assert np.array_equal(cut.train.images, whole.train.images[rest])
