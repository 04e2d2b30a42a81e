"""The layouts of two small relatives of ImageNet: Imagenette and Tiny ImageNet."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np

from sfumato.data.folder import list_folder
from sfumato.data.image_files import FolderFiles
from sfumato.data.listing import Listing
from sfumato.data.packed_names import PackedNames
from sfumato.errors import UserError

_IMAGENETTE_CLASSES = {
    "n01440764": "tench",
    "n02102040": "English springer",
    "n02979186": "cassette player",
    "n03000684": "chain saw",
    "n03028079": "church",
    "n03394916": "French horn",
    "n03417042": "garbage truck",
    "n03425413": "gas pump",
    "n03445777": "golf ball",
    "n03888257": "parachute",
}


def list_imagenette(root: Path) -> Listing:
    """``train`` and ``val`` with one folder per WordNet id; val is the test set."""
    listing = list_folder(root)
    if not len(listing.test):
        raise UserError(f"The data set in {root} is incomplete: the folder val is missing.")
    classes = tuple(_IMAGENETTE_CLASSES.get(name, name) for name in listing.classes)
    return replace(listing, classes=classes, notes=())


def list_tiny_imagenet(root: Path) -> Listing:
    """``train/ID/images/*``, and ``val/images/*`` with ``val/val_annotations.txt``.

    The published val part is the test set, since the published test part has no labels. A val
    folder that was sorted into one folder per class is read as well.
    """
    annotations = root / "val" / "val_annotations.txt"
    if not annotations.is_file():
        if not (root / "val").is_dir() or (root / "val" / "images").is_dir():
            raise UserError(f"The data set in {root} is incomplete: {annotations} is missing.")
        return _labelled_parts(root)
    train = list_folder(root / "train")
    labels = {name: label for label, name in enumerate(train.classes)}
    test = []
    for number, line in enumerate(annotations.read_text("utf-8", "replace").splitlines(), start=1):
        fields = line.split("\t")
        if len(fields) < 2 or fields[1] not in labels:
            raise UserError(
                f"Line {number} of {annotations} does not name an image and one of the classes in "
                f"{root / 'train'}: unpack the archive again."
            )
        test.append((f"val/images/{fields[0]}", labels[fields[1]]))
    if not test:
        raise UserError(f"{annotations} is empty: unpack the archive again.")
    return _together(root, train, sorted(test))


def _labelled_parts(root: Path) -> Listing:
    train, val = list_folder(root / "train"), list_folder(root / "val")
    if train.classes != val.classes:
        raise UserError(f"{root / 'train'} and {root / 'val'} do not hold the same classes.")
    names = (f"val/{name}" for name in val.files.names(val.train))
    return _together(root, train, list(zip(names, val.labels[val.train].tolist(), strict=True)))


def _together(root: Path, train: Listing, test: list[tuple[str, int]]) -> Listing:
    """The training images of the folder `train` with test images, as paths below ``root``."""
    paths = PackedNames(f"train/{name}" for name in train.files.names(train.train))
    paths.extend(name for name, _ in test)
    held = np.array([label for _, label in test], dtype=np.int64)
    positions = np.arange(len(paths), dtype=np.int64)
    return replace(
        train,
        root=root,
        classes=_tiny_names(root, train.classes),
        files=FolderFiles(root, paths),
        labels=np.concatenate([train.labels[train.train], held]),
        train=positions[: -len(test)],
        test=positions[-len(test) :],
        notes=(),
        depth=None,
    )


def _tiny_names(root: Path, ids: tuple[str, ...]) -> tuple[str, ...]:
    """The first word for each WordNet id, with the id where two classes share it."""
    words: dict[str, str] = {}
    if (root / "words.txt").is_file():
        for line in (root / "words.txt").read_text("utf-8", "replace").splitlines():
            identity, _, text = line.partition("\t")
            words[identity] = text.split(",")[0].strip()
    named = [words.get(identity, identity) for identity in ids]
    return tuple(
        word if named.count(word) == 1 else f"{word} ({identity})"
        for word, identity in zip(named, ids, strict=True)
    )
