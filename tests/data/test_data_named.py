"""Data sets with a name: the layouts they are found in and what is said when they are not."""

from __future__ import annotations

import gzip
import os
import pickle
import subprocess
import tarfile

import numpy as np
import pytest
import sklearn.datasets
from data_layouts import (
    REAL_DATA,
    write_cifar,
    write_folder,
    write_idx,
    write_image,
    write_tiny_imagenet,
)

from sfumato.data import catalogue, load, locate
from sfumato.data.cifar import unpickle_plain
from sfumato.data.split import stratified
from sfumato.errors import UserError


def test_digits_have_one_fixed_split():
    digits = load("digits")
    assert (len(digits.train), len(digits.test), digits.validation) == (1438, 359, None)
    assert digits.size == (8, 8) and digits.channels == 1 and len(digits.classes) == 10
    assert digits.train.images.dtype == np.uint8
    assert digits.train.images.max() == 255 and digits.train.images.min() == 0
    other = load("digits", split_seed=5, test_fraction=0.5)
    assert digits.fingerprint() == other.fingerprint()
    assert digits.fingerprint() == (load("Digits").fingerprint()), (
        "another spelling is the same data set"
    )
    assert min(np.bincount(digits.test.labels)) >= 34
    entry = catalogue.entry("digits")
    assert (entry.train, entry.test) == (len(digits.train), len(digits.test))


def test_digits_are_those_of_scikit_learn():
    raw = sklearn.datasets.load_digits()
    images = np.rint(raw.images * (255 / 16)).astype(np.uint8)[:, None]
    digits = load("digits")
    parts = stratified(raw.target, 0.2, seed=0, purpose="digits")
    for index, part in zip(parts, (digits.train, digits.test), strict=True):
        assert np.array_equal(images[index], part.images)
        assert np.array_equal(raw.target[index], part.labels)


@pytest.mark.parametrize("zipped", [False, True])
@pytest.mark.parametrize(
    ("name", "folder"),
    [
        ("mnist", "MNIST/raw"),
        ("mnist", "mnist"),
        ("fashion-mnist", "FashionMNIST/raw"),
        ("fashion-mnist", "fashion-mnist"),
    ],
)
def test_idx(tmp_path, name, folder, zipped):
    written = write_idx(tmp_path / folder, zipped=zipped)
    found = load(name, root=tmp_path)
    assert np.array_equal(found.train.images[:, 0], written["train-images-idx3-ubyte"])
    assert np.array_equal(found.test.labels, written["t10k-labels-idx1-ubyte"])
    assert found.train.labels.dtype == np.int64 and found.train.images.flags.c_contiguous
    assert found.source == str(tmp_path / folder)
    for inside in (tmp_path / folder, (tmp_path / folder).parent):
        assert load(name, root=inside).fingerprint() == found.fingerprint()


@pytest.mark.parametrize(
    ("name", "inner"),
    [
        ("cifar10", "cifar-10-batches-py"),
        ("cifar100", "cifar-100-python"),
        ("mnist", "MNIST/raw"),
        ("fashion-mnist", "FashionMNIST/raw"),
    ],
)
def test_the_root_of_torchvision_and_the_folder_in_it(tmp_path, monkeypatch, name, inner):
    """Either may be given as a path: images, classes and constants are those of the name."""
    folder = tmp_path / inner
    write_cifar(folder, name) if name.startswith("cifar") else write_idx(folder)
    by_name = load(name, root=tmp_path)
    monkeypatch.chdir(folder)
    for path in (tmp_path, folder, folder.parent, "."):
        found = load(path)
        assert found.fingerprint() == by_name.fingerprint()
        assert found.name == name and found.classes == by_name.classes
        assert (found.mean, found.std) == (by_name.mean, by_name.std)
    held = load(tmp_path, validation=0.3)
    smaller = set(map(bytes, held.train.images))
    assert smaller < set(map(bytes, found.train.images)), "images are held out independently"


def test_a_root_of_several_sets_asks_for_a_name(tmp_path):
    write_cifar(tmp_path / "cifar-10-batches-py", "cifar10")
    write_idx(tmp_path / "MNIST" / "raw")
    with pytest.raises(UserError, match=f"mnist and cifar10: .* --data-root {tmp_path}"):
        load(tmp_path)


def test_mnist_and_fashion_are_not_confused(tmp_path):
    write_idx(tmp_path / "FashionMNIST" / "raw")
    with pytest.raises(UserError, match="'mnist' was not found"):
        load("mnist", root=tmp_path)
    with pytest.raises(UserError, match="'mnist' was not found"):
        load("mnist", root=tmp_path / "FashionMNIST" / "raw")


@pytest.mark.parametrize("protocol", [0, 2, 4, 5])
@pytest.mark.parametrize("keys", [bytes, str])
@pytest.mark.parametrize(
    ("name", "folder"), [("cifar10", "cifar-10-batches-py"), ("cifar100", "cifar-100-python")]
)
def test_cifar(tmp_path, name, folder, protocol, keys):
    images = write_cifar(tmp_path / folder, name, protocol=protocol, keys=keys)
    found = load(name, root=tmp_path)
    assert np.array_equal(found.train.images, images)
    assert len(found.test) == 20 and found.classes[3] == "class-3"
    assert found.train.labels[:3].tolist() == [0, 1, 2]


def test_cifar_archive_is_read_in_place(tmp_path):
    images = write_cifar(tmp_path / "work" / "cifar-10-batches-py", "cifar10")
    with tarfile.open(tmp_path / "cifar-10-python.tar.gz", "w:gz") as tar:
        tar.add(tmp_path / "work" / "cifar-10-batches-py", "cifar-10-batches-py")
    found = load("cifar10", root=tmp_path)
    assert np.array_equal(found.train.images, images)
    broken = (tmp_path / "cifar-10-python.tar.gz").read_bytes()[:2000]
    (tmp_path / "cifar-10-python.tar.gz").write_bytes(broken)
    with pytest.raises(UserError, match=r"cifar-10-python\.tar\.gz"):
        load("cifar10", root=tmp_path)


PYTHON_2 = (
    # {'data': array([[1, 2, 3]], dtype=uint8), 'labels': [7]} as Python 2 and NumPy 1 pickled it.
    b"\x80\x02}q\x00(U\x04dataq\x01cnumpy.core.multiarray\n_reconstruct\nq\x02cnumpy\nndarray\nq\x03"
    b"K\x00\x85q\x04U\x01bq\x05\x87q\x06Rq\x07(K\x01K\x01K\x03\x86q\x08cnumpy\ndtype\nq\tU\x02u1q\n"
    b"K\x00K\x01\x87q\x0bRq\x0c(K\x03U\x01|q\rNNNJ\xff\xff\xff\xffJ\xff\xff\xff\xffK\x00tq\x0eb"
    b"\x89U\x03\x01\x02\x03q\x0ftq\x10bU\x06labelsq\x11]q\x12K\x07au."
)


def test_pickles_of_python_2(tmp_path):
    content = unpickle_plain(PYTHON_2, tmp_path)
    assert np.array_equal(content["data"], np.array([[1, 2, 3]], dtype=np.uint8))
    assert content["labels"] == [7]
    renamed = PYTHON_2.replace(b"numpy.core.multiarray", b"numpy._core.multiarray")
    assert np.array_equal(unpickle_plain(renamed, tmp_path)["data"], content["data"])


class Harmful:
    def __init__(self, function, *arguments):
        self.call = (function, arguments)

    def __reduce__(self):
        return self.call


@pytest.mark.parametrize(
    "value",
    [
        Harmful(os.system, "touch HARM"),
        Harmful(eval, "open('HARM', 'w')"),
        Harmful(subprocess.run, ["touch", "HARM"]),
        Harmful(np.load, "HARM"),
        Harmful(getattr, "text", "upper"),
        np.float64(1.0),
    ],
)
def test_pickles_that_are_not_plain_are_refused(tmp_path, monkeypatch, value):
    monkeypatch.chdir(tmp_path)
    write_cifar(tmp_path / "cifar-10-batches-py", "cifar10")
    for content in ({b"data": value, b"labels": []}, value):
        raw = pickle.dumps(content)
        (tmp_path / "cifar-10-batches-py" / "data_batch_3").write_bytes(raw)
        with pytest.raises(UserError, match=r"data_batch_3 refers to .* was not read"):
            load("cifar10", root=tmp_path)
    assert not (tmp_path / "HARM").exists()


@pytest.mark.parametrize(
    "raw",
    [
        b"",
        b"not a pickle",
        PYTHON_2[:80],
        pickle.dumps([1, 2]),
        pickle.dumps({b"data": np.array([object()])}),
        pickle.dumps({b"data": np.ones((2, 3072)), b"labels": [0, 1]}),
        pickle.dumps({b"data": np.ones((2, 3000), np.uint8), b"labels": [0, 1]}),
        pickle.dumps({b"data": np.ones((2, 3072), np.uint8), b"labels": [0]}),
        pickle.dumps({b"data": np.ones((2, 3072), np.uint8), b"labels": [0, 10]}),
        pickle.dumps({b"data": np.ones((2, 3072), np.uint8), b"labels": [0, -1]}),
        pickle.dumps({b"data": np.ones((2, 3072), np.uint8), b"labels": ["a", "b"]}),
        pickle.dumps({b"data": np.ones((2, 3072), np.uint8)}),
    ],
)
def test_damaged_cifar_batches_are_refused(tmp_path, raw):
    write_cifar(tmp_path / "cifar-10-batches-py", "cifar10")
    (tmp_path / "cifar-10-batches-py" / "data_batch_2").write_bytes(raw)
    with pytest.raises(UserError, match="data_batch_2"):
        load("cifar10", root=tmp_path)


def test_incomplete_sets_name_the_missing_file(tmp_path):
    write_cifar(tmp_path / "cifar-10-batches-py", "cifar10")
    (tmp_path / "cifar-10-batches-py" / "data_batch_4").unlink()
    with pytest.raises(UserError, match="incomplete: data_batch_4 missing"):
        load("cifar10", root=tmp_path)
    write_idx(tmp_path / "MNIST" / "raw")
    (tmp_path / "MNIST" / "raw" / "t10k-labels-idx1-ubyte").unlink()
    with pytest.raises(UserError, match="t10k-labels-idx1-ubyte"):
        load("mnist", root=tmp_path)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda raw: raw[:-5], "damaged"),
        (lambda raw: raw + b"x", "damaged"),
        (lambda raw: b"\x00\x00\x0d" + raw[3:], "not an IDX file"),
        (lambda raw: raw[:7], "not an IDX file"),
        (lambda raw: raw[:-1] + b"\x0b", "label 11"),
        (lambda raw: b"\0\0\x08\x01\0\0\0\x02\1\2", "holds 30 images but .* holds 2 labels"),
    ],
)
@pytest.mark.parametrize("zipped", [False, True])
def test_damaged_idx_files_are_refused(tmp_path, change, words, zipped):
    write_idx(tmp_path / "MNIST" / "raw", zipped=zipped)
    path = tmp_path / "MNIST/raw" / ("train-labels-idx1-ubyte" + (".gz" if zipped else ""))
    raw = gzip.decompress(path.read_bytes()) if zipped else path.read_bytes()
    path.write_bytes(gzip.compress(change(raw)) if zipped else change(raw))
    with pytest.raises(UserError, match=words):
        load("mnist", root=tmp_path)


def test_a_truncated_gzip_file_is_refused(tmp_path):
    write_idx(tmp_path / "MNIST" / "raw", zipped=True)
    path = tmp_path / "MNIST" / "raw" / "train-images-idx3-ubyte.gz"
    path.write_bytes(path.read_bytes()[:500])
    with pytest.raises(UserError, match=r"train-images-idx3-ubyte\.gz cannot be read"):
        load("mnist", root=tmp_path)


def test_imagenette(tmp_path):
    for part, count in (("train", 3), ("val", 2)):
        for wnid in ("n01440764", "n03888257"):
            for k in range(count):
                path = tmp_path / "imagenette2-320" / part / wnid / f"{k}.JPEG"
                write_image(path, size=(170, 200), seed=k)
    found = load("imagenette", root=tmp_path)
    assert found.classes == ("tench", "parachute")
    assert (len(found.train), len(found.test), found.size) == (6, 4, (160, 160))
    assert found.mean == (0.485, 0.456, 0.406)
    small = load("imagenette", root=tmp_path, size=32, channels=1, validation=0.34)
    assert small.train.images.shape == (4, 1, 32, 32) and len(small.validation) == 2
    assert small.mean == pytest.approx((0.459,), abs=1e-3)


def test_splits_of_a_named_set_are_decoded_once_each(tmp_path, cache):
    """Runs that take turns with two splits would decode the set every time."""
    for part in ("train", "val"):
        for wnid in ("n01440764", "n03888257"):
            for k in range(3):
                write_image(tmp_path / "imagenette2-160" / part / wnid / f"{k}.JPEG", seed=k)
    entries = []
    for validation in (0.0, 0.34, 0.0, 0.34):
        load("imagenette", root=tmp_path, size=16, validation=validation)
        entries.append({p: p.stat().st_mtime_ns for p in (cache / "decoded").glob("*.npy")})
    assert [len(found) for found in entries] == [1, 2, 2, 2]
    assert entries[1] == entries[2] == entries[3]
    write_image(tmp_path / "imagenette2-160" / "train" / "n01440764" / "0.JPEG", seed=9)
    load("imagenette", root=tmp_path, size=16)
    assert len(set((cache / "decoded").glob("*.npy")) - set(entries[1])) == 1
    assert len(list((cache / "decoded").glob("*.npy"))) == 2, "of each split, the last state"


def test_tiny_imagenet(tmp_path):
    write_tiny_imagenet(tmp_path / "tiny-imagenet-200")
    found = load("tiny-imagenet", root=tmp_path)
    assert found.classes == ("cat", "dog") and found.size == (64, 64)
    assert found.train.labels.tolist() == [0, 0, 0, 1, 1, 1]
    assert sorted(found.test.labels.tolist()) == [0, 0, 1, 1]
    assert load("tiny_imagenet", root=tmp_path / "tiny-imagenet-200").classes == found.classes


def test_tiny_imagenet_with_bad_annotations(tmp_path):
    root = tmp_path / "tiny-imagenet-200"
    write_tiny_imagenet(root)
    (root / "val" / "val_annotations.txt").write_text("val_0.JPEG\tn9\t0\n")
    with pytest.raises(UserError, match=r"Line 1 of .*val_annotations\.txt"):
        load("tiny-imagenet", root=tmp_path)
    (root / "val" / "val_annotations.txt").unlink()
    with pytest.raises(UserError, match=r"val_annotations\.txt is missing"):
        load("tiny-imagenet", root=tmp_path)


def test_tiny_imagenet_sorted_into_classes(tmp_path):
    write_folder(tmp_path / "tiny-imagenet-200" / "train", {"n1": 2, "n2": 2}, size=(64, 64))
    write_folder(tmp_path / "tiny-imagenet-200" / "val", {"n1": 1, "n2": 1}, size=(64, 64))
    found = load("tiny-imagenet", root=tmp_path)
    assert (len(found.train), len(found.test), found.classes) == (4, 2, ("n1", "n2"))


def test_places_are_searched_in_order(tmp_path, monkeypatch, cache):
    one, two = tmp_path / "one", tmp_path / "two"
    for seed, place in enumerate((cache / "system", cache, two, one)):
        write_idx(place / "MNIST" / "raw", seed=seed)
        monkeypatch.setenv("SFUMATO_DATA", os.pathsep.join(["", str(tmp_path / "no"), str(two)]))
        root = one if place == one else None
        assert load("mnist", root=root).source == str(place / "MNIST" / "raw")


def test_what_is_said_when_nothing_is_found(tmp_path, monkeypatch, cache):
    monkeypatch.setenv("SFUMATO_DATA", str(tmp_path / "elsewhere"))
    with pytest.raises(UserError) as caught:
        load("cifar10", root=tmp_path)
    message = str(caught.value)
    for place in (tmp_path, tmp_path / "elsewhere", cache, cache / "system"):
        assert str(place) in message
    assert "cifar-10-batches-py/data_batch_1 or cifar-10-python.tar.gz" in message
    assert "`sfumato data get cifar10`" in message
    with pytest.raises(UserError, match="does not exist"):
        load("cifar10", root=tmp_path / "missing")
    (tmp_path / "imagenette2-160.tgz").touch()
    with pytest.raises(UserError, match=r"imagenette2-160.tgz is there but not unpacked"):
        load("imagenette", root=tmp_path)


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("cifar11", "Did you mean 'cifar10'"),
        ("minst", "Did you mean 'mnist'"),
        ("xyzzy", "no data set and no file or folder called 'xyzzy'. Known are: digits, mnist"),
        ("./cifar10", "cifar10 does not exist"),
        ("~/no-such-folder", "no-such-folder does not exist"),
    ],
)
def test_unknown_names(tmp_path, monkeypatch, name, words):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UserError, match=words):
        load(name)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"size": 0}, "0×0"),
        ({"size": (8, 5000)}, "8×5000"),
        ({"channels": 2}, "channels = 2"),
        ({"validation": 1.0}, "validation = 1.0"),
        ({"validation": -0.1}, "validation = -0.1"),
        ({"validation": float("nan")}, "validation = nan"),
        ({"test_fraction": 0.0}, "test_fraction = 0.0"),
        ({"validation": 0.1, "split_seed": -1}, "split_seed = -1"),
    ],
)
def test_impossible_options(options, words):
    with pytest.raises(UserError, match=words):
        load("digits", **options)


def test_size_and_channels_of_arrays_can_be_changed():
    digits = load("digits", size=(12, 10), channels=3)
    assert digits.train.images.shape == (1438, 3, 12, 10)
    assert digits.mean == (0.5,) * 3 and digits.std == (0.5,) * 3
    assert np.array_equal(digits.train.images[:, 0], digits.train.images[:, 2])
    assert digits.notes == ("The images were scaled from 8×8.",)
    assert load("digits", size=8, channels=1).fingerprint() == load("digits").fingerprint()


def test_colour_becomes_grey_by_luma(tmp_path):
    images = write_cifar(tmp_path / "cifar-10-batches-py", "cifar10")
    grey = load("cifar10", root=tmp_path, channels=1)
    expected = np.einsum("nchw,c->nhw", images, [0.299, 0.587, 0.114])
    assert np.abs(grey.train.images[:, 0] - expected).max() <= 0.51
    assert len(grey.mean) == len(grey.std) == 1


def test_validation_is_taken_out_of_train():
    whole, cut = load("digits"), load("digits", validation=0.25, split_seed=3)
    assert len(cut.validation) + len(cut.train) == len(whole.train)
    assert len(cut.validation) == pytest.approx(0.25 * len(whole.train), abs=5)
    assert np.array_equal(cut.test.images, whole.test.images)
    assert cut.fingerprint() == load("digits", validation=0.25, split_seed=3).fingerprint()
    assert cut.fingerprint() != load("digits", validation=0.25, split_seed=4).fingerprint()
    rows = {image.tobytes() for image in whole.train.images}
    assert {image.tobytes() for image in cut.validation.images} <= rows


def test_constants_never_come_from_the_images(tmp_path):
    write_cifar(tmp_path / "cifar-10-batches-py", "cifar10")
    assert load("cifar10", root=tmp_path).mean == (0.4914, 0.4822, 0.4465)


def test_catalogue_entries_are_whole():
    for name in catalogue.names():
        entry = catalogue.entry(name)
        assert len(entry.mean) == len(entry.std) == entry.channels
        for download in entry.downloads:
            assert len(download.md5) == 32 and all(url.startswith("http") for url in download.urls)
    assert catalogue.entry("CIFAR-10").name == "cifar10"
    with pytest.raises(UserError, match="Did you mean 'imagenette'"):
        catalogue.entry("imagenet")


@pytest.mark.parametrize("name", ["mnist", "fashion-mnist", "cifar10", "cifar100"])
def test_real_data(monkeypatch, name):
    monkeypatch.setenv("SFUMATO_DATA", REAL_DATA)
    entry = catalogue.entry(name)
    if locate.find(entry) is None:
        pytest.skip(f"no {name} in $SFUMATO_DATA")
    found = load(name)
    assert len(found.test) == entry.test and len(found.classes) == entry.classes
    assert found.size == entry.size and found.channels == entry.channels
    assert set(found.train.labels.tolist()) == set(range(entry.classes))
    sample = found.test.images / 255
    assert sample.mean((0, 2, 3)) == pytest.approx(entry.mean, abs=0.02)
    assert sample.std((0, 2, 3)) == pytest.approx(entry.std, abs=0.02)
