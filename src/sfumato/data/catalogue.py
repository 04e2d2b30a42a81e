"""The data sets that have a name: their contents, their folders, and their sources.

The normalisation constants are the published ones for each set, 0.5 where none are in use. They are
constants of this file and are never computed from a user's images: statistics of private data would
be a release that the privacy accounting does not see.

Checksums and addresses are those that torchvision and fast.ai publish; a file from any address is
accepted only if its checksum agrees.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import PurePosixPath

from sfumato.errors import UserError, nearest

HALF = 0.5
"""Mean and standard deviation for images that have no published constants."""

DRAWN = ("dead-leaves", "drawn-mixture")
"""The names in recipes of images that `sfumato.data.drawn` draws at random."""

LUMA = (0.299, 0.587, 0.114)
"""The weight of red, green and blue in grey (ITU-R 601)."""


def check_channels(channels: int | None) -> None:
    """Refuse a number of channels other than 1 and 3."""
    if channels not in (None, 1, 3):
        raise UserError(f"channels = {channels} is impossible: give 1 (grey) or 3 (colour).")


@dataclass(frozen=True, kw_only=True)
class Download:
    """One file to fetch, and its place below the data folder."""

    path: str
    urls: tuple[str, ...]
    md5: str


@dataclass(frozen=True, kw_only=True)
class Entry:
    """One named data set.

    Attributes:
        name: the name that a user types.
        train: number of training images.
        test: number of test images.
        classes: number of classes.
        channels: 1 for grey, 3 for colour.
        size: height and width, or the default where the files hold images of several sizes.
        mean: published channel means on the [0, 1] scale.
        std: published channel deviations on the [0, 1] scale.
        folders: folders below a data folder that may hold the files, in order of preference.
        markers: files one of which such a folder holds if the set is there.
        archives: archives that can be read in place, below a data folder.
        downloads: files that ``sfumato data get`` fetches.
        class_names: the names of the classes, where the files do not hold them.
    """

    name: str
    train: int
    test: int
    classes: int
    channels: int
    size: tuple[int, int]
    mean: tuple[float, ...]
    std: tuple[float, ...]
    folders: tuple[str, ...] = ()
    markers: tuple[str, ...] = ()
    archives: tuple[str, ...] = ()
    downloads: tuple[Download, ...] = ()
    class_names: tuple[str, ...] = ()

    @property
    def expected(self) -> str:
        """The file or folder that a search looks for, for messages."""
        first = f"{self.folders[0]}/{self.markers[0]}"
        return " or ".join((first, *(PurePosixPath(path).name for path in self.archives[:1])))


_DIGITS = tuple(str(digit) for digit in range(10))
_IDX_FILES = ("train-images-idx3-ubyte", "train-images-idx3-ubyte.gz")
_IMAGENET_MEAN, _IMAGENET_STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)


def _idx_downloads(
    folder: str, bases: tuple[str, ...], md5: dict[str, str]
) -> tuple[Download, ...]:
    return tuple(
        Download(path=f"{folder}/{name}", urls=tuple(base + name for base in bases), md5=digest)
        for name, digest in md5.items()
    )


def _cifar_download(archive: str, md5: str) -> tuple[Download, ...]:
    bases = ("https://www.cs.toronto.edu/~kriz/", "https://cave.cs.toronto.edu/kriz/")
    return (Download(path=archive, urls=tuple(base + archive for base in bases), md5=md5),)


CATALOGUE: dict[str, Entry] = {
    entry.name: entry
    for entry in (
        Entry(
            name="digits",
            train=1438,
            test=359,
            classes=10,
            channels=1,
            size=(8, 8),
            mean=(HALF,),
            std=(HALF,),
            class_names=_DIGITS,
        ),
        Entry(
            name="mnist",
            train=60_000,
            test=10_000,
            classes=10,
            channels=1,
            size=(28, 28),
            mean=(0.1307,),
            std=(0.3081,),
            folders=("MNIST/raw", "MNIST", "mnist/raw", "mnist"),
            markers=_IDX_FILES,
            class_names=_DIGITS,
            downloads=_idx_downloads(
                "MNIST/raw",
                (
                    "https://ossci-datasets.s3.amazonaws.com/mnist/",
                    "https://storage.googleapis.com/cvdf-datasets/mnist/",
                ),
                {
                    "train-images-idx3-ubyte.gz": "f68b3c2dcbeaaa9fbdd348bbdeb94873",
                    "train-labels-idx1-ubyte.gz": "d53e105ee54ea40749a09fcbcd1e9432",
                    "t10k-images-idx3-ubyte.gz": "9fb629c4189551a2d022fa330f9573f3",
                    "t10k-labels-idx1-ubyte.gz": "ec29112dd5afa0611ce80d1b7f02629c",
                },
            ),
        ),
        Entry(
            name="fashion-mnist",
            train=60_000,
            test=10_000,
            classes=10,
            channels=1,
            size=(28, 28),
            mean=(0.2860,),
            std=(0.3530,),
            folders=(
                "FashionMNIST/raw",
                "FashionMNIST",
                "fashion-mnist/raw",
                "fashion-mnist",
                "fashion_mnist",
            ),
            markers=_IDX_FILES,
            class_names=(
                "T-shirt/top",
                "Trouser",
                "Pullover",
                "Dress",
                "Coat",
                "Sandal",
                "Shirt",
                "Sneaker",
                "Bag",
                "Ankle boot",
            ),
            downloads=_idx_downloads(
                "FashionMNIST/raw",
                (
                    "https://raw.githubusercontent.com/zalandoresearch/fashion-mnist/master/data/fashion/",
                    "http://fashion-mnist.s3-website.eu-central-1.amazonaws.com/",
                ),
                {
                    "train-images-idx3-ubyte.gz": "8d4fb7e6c68d591d4c3dfef9ec88bf0d",
                    "train-labels-idx1-ubyte.gz": "25c81989df183df01b3e8a0aad5dffbe",
                    "t10k-images-idx3-ubyte.gz": "bef4ecab320f06d8554ea6380940ec79",
                    "t10k-labels-idx1-ubyte.gz": "bb300cfdad3c16e7a12a480ee83cd310",
                },
            ),
        ),
        Entry(
            name="cifar10",
            train=50_000,
            test=10_000,
            classes=10,
            channels=3,
            size=(32, 32),
            mean=(0.4914, 0.4822, 0.4465),
            std=(0.2470, 0.2435, 0.2616),
            folders=("cifar-10-batches-py", "cifar10/cifar-10-batches-py", "cifar10"),
            markers=("data_batch_1",),
            archives=("cifar-10-python.tar.gz", "cifar10/cifar-10-python.tar.gz"),
            downloads=_cifar_download("cifar-10-python.tar.gz", "c58f30108f718f92721af3b95e74349a"),
        ),
        Entry(
            name="cifar100",
            train=50_000,
            test=10_000,
            classes=100,
            channels=3,
            size=(32, 32),
            mean=(0.5071, 0.4865, 0.4409),
            std=(0.2673, 0.2564, 0.2762),
            folders=("cifar-100-python", "cifar100/cifar-100-python", "cifar100"),
            markers=("train",),
            archives=("cifar-100-python.tar.gz", "cifar100/cifar-100-python.tar.gz"),
            downloads=_cifar_download(
                "cifar-100-python.tar.gz", "eb9058c3a382ffc7106e4002c42a8d85"
            ),
        ),
        Entry(
            name="imagenette",
            train=9_469,
            test=3_925,
            classes=10,
            channels=3,
            size=(160, 160),
            mean=_IMAGENET_MEAN,
            std=_IMAGENET_STD,
            folders=(
                "imagenette2-160",
                "imagenette2-320",
                "imagenette2",
                "imagenette",
                "imagenette/imagenette2-160",
                "imagenette/imagenette2-320",
                "imagenette/imagenette2",
            ),
            markers=("train",),
            downloads=(
                Download(
                    path="imagenette2-160.tgz",
                    urls=("https://s3.amazonaws.com/fast-ai-imageclas/imagenette2-160.tgz",),
                    md5="e793b78cc4c9e9a4ccc0c1155377a412",
                ),
            ),
        ),
        Entry(
            name="tiny-imagenet",
            train=100_000,
            test=10_000,
            classes=200,
            channels=3,
            size=(64, 64),
            mean=_IMAGENET_MEAN,
            std=_IMAGENET_STD,
            folders=("tiny-imagenet-200", "tiny-imagenet/tiny-imagenet-200", "tiny-imagenet"),
            markers=("train",),
            downloads=(
                Download(
                    path="tiny-imagenet-200.zip",
                    urls=("http://cs231n.stanford.edu/tiny-imagenet-200.zip",),
                    md5="90528d7ca1a48142e341f4ef8d21d0de",
                ),
            ),
        ),
    )
}


def constants(
    mean: tuple[float, ...], std: tuple[float, ...], channels: int
) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Normalisation constants for another number of channels: repeated, or the luma of three."""
    if len(mean) == channels:
        return mean, std
    if len(mean) == 3 and channels == 1:
        grey = sum(weight * value for weight, value in zip(LUMA, mean, strict=True))
        return (grey,), (sum(std) / 3,)
    return (mean[0],) * channels, (std[0],) * channels


def names() -> tuple[str, ...]:
    """The names of the data sets that can be loaded by name."""
    return tuple(CATALOGUE)


def canonical(name: str) -> str | None:
    """The catalogue name for another spelling of it (``CIFAR-10``, ``fashion_mnist``), or None."""
    spelling = re.sub(r"[-_ ]", "", name.lower())
    for known in CATALOGUE:
        if known.replace("-", "") == spelling:
            return known
    return "tiny-imagenet" if spelling == "tinyimagenet200" else None


def entry(name: str) -> Entry:
    """The entry of a name, or a UserError with the nearest one."""
    known = canonical(name)
    if known is None:
        raise UserError(
            f"There is no data set '{name}'.{nearest(name, CATALOGUE)} "
            f"Known are: {', '.join(CATALOGUE)}."
        )
    return CATALOGUE[known]
