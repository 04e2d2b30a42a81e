"""The layouts of two small relatives of ImageNet: Imagenette and Tiny ImageNet."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from sfumato.data.folder import Item, Listing, list_folder
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
    if not listing.test:
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
        sorted_parts = _labelled_parts(root)
        return replace(sorted_parts, classes=_tiny_names(root, sorted_parts.classes), notes=())
    train = list_folder_part(root, "train")
    labels = {name: label for label, name in enumerate(train.classes)}
    test = []
    for number, line in enumerate(annotations.read_text("utf-8", "replace").splitlines(), start=1):
        fields = line.split("\t")
        if len(fields) < 2 or fields[1] not in labels:
            raise UserError(
                f"Line {number} of {annotations} does not name an image and one of the classes in "
                f"{root / 'train'}: unpack the archive again."
            )
        test.append(Item(f"val/images/{fields[0]}", labels[fields[1]]))
    if not test:
        raise UserError(f"{annotations} is empty: unpack the archive again.")
    return Listing(root, _tiny_names(root, train.classes), train.train, tuple(sorted(test)))


def list_folder_part(root: Path, part: str) -> Listing:
    """The classes and images of one subfolder, with paths below ``root``."""
    listing = list_folder(root / part)
    items = tuple(Item(f"{part}/{item.path}", item.label) for item in listing.train)
    return replace(listing, root=root, train=items)


def _labelled_parts(root: Path) -> Listing:
    train, val = list_folder_part(root, "train"), list_folder_part(root, "val")
    if train.classes != val.classes:
        raise UserError(f"{root / 'train'} and {root / 'val'} do not hold the same classes.")
    return replace(train, test=val.train)


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
