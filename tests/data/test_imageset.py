from __future__ import annotations

import io
import re
from dataclasses import replace

import numpy as np
import pytest

from sfumato.data import Dataset, ImageSet, imageset
from sfumato.data.progress_bar import progress
from sfumato.errors import UserError


def images(n: int = 10, seed: int = 0) -> ImageSet:
    random = np.random.default_rng(seed)
    return ImageSet(
        random.integers(0, 256, (n, 3, 4, 5), dtype=np.uint8), np.arange(n, dtype=np.int64) % 2
    )


def dataset(**changes) -> Dataset:
    content = {
        "name": "a",
        "classes": ("x", "y"),
        "train": images(),
        "test": images(4, seed=1),
        "validation": None,
        "mean": (0.5,) * 3,
        "std": (0.5,) * 3,
    }
    return Dataset(**content | changes)


def test_fingerprint_is_that_of_the_training_set(tmp_path, monkeypatch):
    whole = dataset()
    print_ = whole.fingerprint()
    assert len(print_) == 64
    same = replace(whole, name="b", classes=("u", "v"), test=images(6, seed=9), notes=("n",))
    assert same.fingerprint() == print_
    np.save(tmp_path / "x.npy", whole.train.images)
    mapped = np.load(tmp_path / "x.npy", mmap_mode="r")
    assert dataset(train=ImageSet(mapped, whole.train.labels)).fingerprint() == print_
    monkeypatch.setattr(imageset, "_CHUNK_BYTES", 130)
    assert len(list(whole.train.chunks())) == 5 and whole.fingerprint() == print_


def test_fingerprint_sees_every_change():
    whole = dataset()
    seen = {whole.fingerprint()}
    for position in ((0, 0, 0, 0), (9, 2, 3, 4)):
        pixels = whole.train.images.copy()
        pixels[position] ^= 1
        seen.add(dataset(train=ImageSet(pixels, whole.train.labels)).fingerprint())
    labels = whole.train.labels.copy()
    labels[0] = 1
    seen.add(dataset(train=ImageSet(whole.train.images, labels)).fingerprint())
    turned = whole.train.images.reshape(10, 3, 5, 4)
    seen.add(
        dataset(
            train=ImageSet(turned, whole.train.labels),
            test=ImageSet(turned[:4], whole.train.labels[:4]),
        ).fingerprint()
    )
    assert len(seen) == 5


def test_split_validation():
    whole = dataset(train=images(20))
    cut = whole.split_validation(0.3, seed=4, rule="stratified")
    assert np.bincount(cut.train.labels).tolist() == [7, 7]
    assert np.bincount(cut.validation.labels).tolist() == [3, 3]
    assert cut.train.images.flags.c_contiguous
    alone = whole.split_validation(0.3, seed=4)
    assert len(alone.train) + len(alone.validation) == 20 and 0 < len(alone.validation) < 20
    assert whole.split_validation(0.0) is whole
    assert cut.split_validation(0.5) is cut, "a validation set of its own is kept"
    for fraction in (1.0, -0.1):
        with pytest.raises(UserError, match="validation"):
            whole.split_validation(fraction)


def test_parts_must_fit_together():
    for changes, words in (
        ({"mean": (0.5,)}, "3 channels"),
        ({"classes": ("x",)}, "train has labels outside"),
        ({"test": ImageSet(images().images[:, :, :3].copy(), images().labels)}, "image shape"),
        ({"test": ImageSet(images().images.astype(np.float32), images().labels)}, "dtype"),
    ):
        with pytest.raises(ValueError, match=words):
            dataset(**changes)
    for wrong in (
        (images().images[0], images().labels),
        (images().images.astype(np.float64), images().labels),
        (images().images, images().labels[:3]),
        (images().images, images().labels.astype(np.int32)),
        (images().images[:, :, :, ::-1], images().labels),
    ):
        with pytest.raises(ValueError):
            ImageSet(*wrong)


def test_progress_is_plain_outside_a_terminal(monkeypatch, capsys):
    monkeypatch.setattr("sfumato.data.progress_bar._FIRST_LINE", -1.0)
    with progress("reading", 10, unit="MiB") as advance:
        advance(3)
        advance(4)
    line = capsys.readouterr().err
    assert re.fullmatch(r"reading: 3 of 10 MiB, [\d,.]+/s, 0 s left\n", line), line


@pytest.mark.parametrize("unit", ["", "MiB"])
def test_progress_is_a_bar_in_a_terminal(monkeypatch, unit):
    screen = io.StringIO()
    screen.isatty = lambda: True
    monkeypatch.setattr("sys.stderr", screen)
    monkeypatch.setenv("TERM", "xterm")
    with progress("reading", 10, unit=unit) as advance:
        advance(10)
    assert "reading" in screen.getvalue() and "10" in screen.getvalue()


def test_large_copies_of_a_memory_map_are_memory_maps(tmp_path, monkeypatch, cache):
    held = images(50)
    np.save(tmp_path / "images.npy", held.images)
    mapped = ImageSet(np.load(tmp_path / "images.npy", mmap_mode="r"), held.labels)
    index = np.arange(50)[::-2]
    for limit, kind in ((1 << 28, False), (0, True)):
        monkeypatch.setattr("sfumato.data.scratch._LARGE_BYTES", limit)
        monkeypatch.setattr("sfumato.data.imageset._CHUNK_BYTES", 3 * held.images[0].nbytes)
        some = mapped.take(index)
        grey = mapped.mapped(lambda images: images[:, :1])
        assert isinstance(some.images, np.memmap) == isinstance(grey.images, np.memmap) == kind
        assert np.array_equal(some.images, held.images[index])
        assert np.array_equal(some.labels, held.labels[index])
        assert np.array_equal(grey.images, held.images[:, :1])
        assert not isinstance(held.take(index).images, np.memmap)
    assert not list(cache.iterdir()), "the files have no names"
    assert np.array_equal(mapped.images, held.images), "nothing is written to the source"
