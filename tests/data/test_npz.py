from __future__ import annotations

import numpy as np
import pytest

from sfumato.data import load
from sfumato.errors import UserError

N = 40


def arrays(shape=(6, 5), dtype=np.uint8, seed=0, n=N):
    random = np.random.default_rng(seed)
    images = random.integers(0, 256, (n, *shape))
    images = images / 255 if np.dtype(dtype).kind == "f" else images
    return images.astype(dtype), np.arange(n) % 4


def save(path, **content):
    np.savez(path / "scans.npz", **content)
    return path / "scans.npz"


def parts(**options):
    (x, y), (u, v) = arrays(**options), arrays(seed=1, n=12, **options)
    return {"x_train": x, "y_train": y, "x_test": u, "y_test": v}


@pytest.mark.parametrize(
    ("shape", "channels", "size"),
    [
        ((6, 5), 1, (6, 5)),
        ((6, 5, 1), 1, (6, 5)),
        ((6, 5, 3), 3, (6, 5)),
        ((3, 6, 5), 3, (6, 5)),
        ((1, 28, 28), 1, (28, 28)),
        ((4, 4, 1), 1, (4, 4)),
        ((2, 3, 3), 2, (3, 3)),
        ((12, 16, 16), 12, (16, 16)),
        ((16, 16, 7), 7, (16, 16)),
    ],
)
def test_shapes(tmp_path, shape, channels, size):
    content = parts(shape=shape)
    found = load(save(tmp_path, **content))
    assert (found.channels, found.size, found.name) == (channels, size, "scans")
    assert found.train.images.flags.c_contiguous and found.mean == (0.5,) * channels
    last = len(shape) == 3 and shape[2] == channels and shape[0] == size[0]
    planes = np.moveaxis(content["x_test"], 3, 1) if last else content["x_test"]
    assert np.array_equal(found.test.images.reshape(planes.shape), planes)


def test_the_bits_that_count(tmp_path):
    x, y = arrays(dtype=np.uint16)
    x[0, 0] = [0, 1, 2, 8, 1023]
    path = save(tmp_path, images=x, labels=y)
    assert any("over 1023" in note and "data.bits=10" in note for note in load(path).notes)
    found = load(path, bits=10)
    assert not any("data.bits" in note for note in found.notes)
    images = np.concatenate([found.train.images, found.test.images])
    assert [0, 0, 0, 2, 255] in images[:, 0, 0].tolist()
    with pytest.raises(
        UserError, match=r"images cannot be read: it holds 1023, but data\.bits = 8"
    ):
        load(path, bits=8)


def test_names_of_medmnist(tmp_path):
    x, y = arrays()
    content = {}
    for part, n in (("train", 20), ("val", 12), ("test", 8)):
        content |= {f"{part}_images": x[:n], f"{part}_labels": y[:n, None].astype(np.uint8)}
    found = load(save(tmp_path, **content), validation=0.5)
    assert [len(part) for part in found.parts().values()] == [20, 12, 8]
    assert found.train.labels.dtype == np.int64 and found.classes == ("0", "1", "2", "3")


@pytest.mark.parametrize(
    "names", [("images", "labels"), ("x", "y"), ("X", "y"), ("x_train", "y_train")]
)
def test_a_whole_without_test_is_split(tmp_path, names):
    x, y = arrays()
    path = save(tmp_path, **dict(zip(names, (x, y), strict=True)))
    found = load(path, test_fraction=0.3)
    assert len(found.train) + len(found.test) == len(x) and 0 < len(found.test) < 24
    assert f"{len(found.test)} of 40 images are set aside" in found.notes[0]
    before = load(path, test_fraction=0.3, split_rule="stratified")
    assert np.bincount(before.test.labels).tolist() == [3, 3, 3, 3]
    assert found.fingerprint() == load(path, test_fraction=0.3).fingerprint()
    assert found.fingerprint() != load(path, test_fraction=0.3, split_seed=1).fingerprint()


def test_number_types(tmp_path):
    plain = load(save(tmp_path, **parts()))
    for dtype, factor in ((np.int64, 1), (np.uint16, 257)):
        content = parts(dtype=dtype)
        content = {k: v * factor if k[0] == "x" else v for k, v in content.items()}
        assert load(save(tmp_path, **content)).fingerprint() == plain.fingerprint()
    for dtype in (np.float16, np.float32, np.float64):
        found = load(save(tmp_path, **parts(dtype=dtype)))
        assert found.train.images.dtype == np.float32
        assert np.abs(found.train.images * 255 - plain.train.images).max() < 0.3
    flags = parts()
    flags |= {"x_train": flags["x_train"] > 99, "x_test": flags["x_test"] > 99}
    found = load(save(tmp_path, **flags))
    assert set(np.unique(found.train.images)) == {0, 255}


def test_nan_is_kept(tmp_path):
    content = parts(dtype=np.float32)
    content["x_train"][3, 1, 1] = np.nan
    content["x_train"][5] = np.nan
    found = load(save(tmp_path, **content))
    assert np.isnan(found.train.images).any((1, 2, 3)).nonzero()[0].tolist() == [3, 5]
    assert any(note.startswith("2 of ") and "hold NaN" in note for note in found.notes)
    assert found.fingerprint() == load(save(tmp_path, **content)).fingerprint()
    content["x_train"][:, 0, 0] = np.nan
    with pytest.raises(UserError, match="every training image holds NaN"):
        load(save(tmp_path, **content))


def test_class_names(tmp_path):
    names = np.array(["a", "b", "c", "d", "none"])
    found = load(save(tmp_path, **parts(), classes=names))
    assert found.classes == ("a", "b", "c", "d", "none")
    content = parts()
    words = {f"y_{part}": names[content[f"y_{part}"]] for part in ("train", "test")}
    assert load(save(tmp_path, **content | words)).classes == ("a", "b", "c", "d")
    assert load(save(tmp_path, **content | words)).fingerprint() == found.fingerprint()


def test_float_images_can_be_resized(tmp_path):
    found = load(save(tmp_path, **parts(dtype=np.float32)), size=12, channels=3)
    assert found.train.images.shape == (N, 3, 12, 12) and found.train.images.dtype == np.float32
    assert found.train.images.min() >= 0 and found.train.images.max() <= 1


def changed(**content):
    return lambda: parts() | {k: (v(parts()[k]) if callable(v) else v) for k, v in content.items()}


def without(*names):
    return lambda: {k: v for k, v in parts().items() if k not in names}


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (changed(y_train=lambda y: y - 1), "train labels hold -1"),
        (changed(y_test=lambda y: y + 1), "test labels hold 4, .* labels go from 0 to 3"),
        (changed(y_train=lambda y: y + 1), "no training image has the label 0"),
        (changed(y_train=lambda y: y * 2), "no training image has the label 1"),
        (changed(y_train=lambda y: y * 10**9), "no training image has the label 1, though labels"),
        (changed(y_train=lambda y: y * 10**15), "labels reach 3000000000000000"),
        (
            changed(y_train=lambda y: np.where(y == 3, np.uint64(2**64 - 1), y.astype(np.uint64))),
            "no training image has the label 3, though labels reach 18446744073709551615",
        ),
        (changed(y_train=lambda y: y + 0.5), "not whole numbers"),
        (changed(y_train=lambda y: y * np.nan), "not whole numbers"),
        (changed(y_train=lambda y: y * 0, y_test=lambda y: y * 0), "only one class"),
        (changed(y_train=lambda y: y[:-1]), "40 images but y_train holds 39 labels"),
        (changed(y_train=lambda y: np.eye(4)[y]), r"shape \(40, 4\).*argmax"),
        (changed(y_train=lambda y: y.astype(str)), "numbers in one part and names in another"),
        (changed(classes=np.array(["a", "b"])), "hold 3, but with 2 classes"),
        (changed(classes=np.array(["a", "a", "b", "c"])), "a name twice"),
        (changed(classes=np.arange(4)), "array of strings"),
        (changed(x_train=lambda x: x / 1.0), "from 0 to 255, but floats .* divide by 255"),
        (changed(x_train=lambda x: x / 128.0 - 1), "from -1 to .* scale them, and"),
        (changed(x_train=lambda x: np.full(x.shape, np.inf)), "values from .* to inf"),
        (changed(x_train=lambda x: x.astype(int) * 2), "whole numbers from 0 to 510"),
        (changed(x_train=lambda x: x + 1j), "of type complex128"),
        (changed(x_train=lambda x: x[0]), r"shape \(6, 5\), but images are"),
        (changed(x_train=lambda x: np.zeros((N, 3, 3, 3))), "which axis holds the channels"),
        (changed(x_train=lambda x: np.zeros((N, 9, 8, 7))), "which axis holds the channels"),
        (changed(x_test=lambda x: x[:, 1:]), r"train images are \(1, 6, 5\).*test images are"),
        (changed(x_test=lambda x: x / 255), "train images are uint8 but test images are float32"),
        (changed(x_test=lambda x: x[:0], y_test=lambda y: y[:0]), "x_test is empty"),
        (changed(x_train=lambda x: x[:0], y_train=lambda y: y[:0]), "x_train is empty"),
        (changed(x_train=lambda x: np.array([None] * N)), "'x_train' holds Python objects"),
        (without("y_train"), "holds x_train but not y_train"),
        (without("x_test"), "holds y_test but not x_test"),
        (without("x_train", "y_train"), "holds x_test, y_test: it needs x_train"),
        (lambda: {}, "holds nothing"),
    ],
)
def test_what_is_refused(tmp_path, make, words):
    with pytest.raises(UserError, match=words):
        load(save(tmp_path, **make()))


def test_files_that_are_not_npz(tmp_path):
    path = save(tmp_path, **parts())
    path.write_bytes(path.read_bytes()[:600])
    with pytest.raises(UserError, match=r"scans\.npz"):
        load(path)
    path.write_text("hello")
    with pytest.raises(UserError, match=r"scans\.npz"):
        load(path)
    path.write_bytes(b"")
    with pytest.raises(UserError, match=r"scans\.npz"):
        load(path)
    with open(path, "wb") as file:
        np.save(file, np.zeros((3, 2, 2)))
    with pytest.raises(UserError, match="a single array"):
        load(path)
    np.save(tmp_path / "x.npy", np.zeros(3))
    with pytest.raises(UserError, match=r"x\.npy is not an \.npz"):
        load(tmp_path / "x.npy")
