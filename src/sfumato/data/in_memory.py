"""Images with labels given in Python: arrays, tensors, and data sets that are indexed.

Accepted are a pair `(images, labels)`, or `(images, labels, units)` with the unit of privacy of
each image, such as a patient's number; a map-style `torch.utils.data.Dataset` whose items are
`(image, label)`, or rows with `image` and `label` as those of Hugging Face; and several parts of
them, as a pair `(train, test)` or a mapping with `train` and, if there are any, `validation` and
`test`. Images are arrays, tensors or those of Pillow.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from PIL import Image

from sfumato.data.arrays import Part, assembled
from sfumato.data.decode import planes_of
from sfumato.data.imageset import Array, Dataset
from sfumato.data.split import Rule
from sfumato.errors import UserError

_WHERE = "The data given"
_PARTS = {"train": "train", "validation": "validation", "valid": "validation", "val": "validation",
          "test": "test"}  # fmt: skip
_IMAGE = ("image", "img", "images", "pixel_values")
_LABEL = ("label", "labels", "fine_label", "target")
_READ_TWICE = 4
"""Examples that are read twice, to find out whether they are the same each time."""


def read_object(
    data: object,
    *,
    size: tuple[int, int] | None,
    channels: int | None,
    bits: int,
    test_fraction: float,
    split_seed: int,
    split_rule: Rule,
) -> Dataset:
    """A data set of objects in memory; without a test part, a seeded one is set aside.

    Args:
        data: See the module.
        size: Height and width to which images of Pillow are scaled; their own if None.
        channels: Their channels, 1 or 3; their own if None.
        bits: Bits that count in 16-bit images.
        test_fraction: As for `assembled`.
        split_seed: As for `assembled`.
        split_rule: As for `assembled`.

    Raises:
        UserError: If it is no such data.
    """
    if isinstance(data, Dataset):
        return data
    found = _parts(data)
    read = {
        key: _read(part, "" if len(found) == 1 else f"{key} ", (size, channels, bits))
        for key, part in found.items()
    }
    return assembled(
        read, where=_WHERE, name=object_name(data), classes=_class_names(found["train"]), bits=bits,
        test_fraction=test_fraction, split_seed=split_seed, split_rule=split_rule,
    )  # fmt: skip


def object_name(data: object) -> str:
    """A name for data in memory: its class, or `arrays`."""
    if isinstance(data, Dataset):
        return data.name
    part = _parts(data)["train"]
    return type(part).__name__ if _is_indexed(part) else "arrays"


def _parts(data: object) -> dict[str, object]:
    """Each part of the data, by name."""
    if isinstance(data, Mapping):
        unknown = [str(key) for key in data if key not in _PARTS]
        if unknown or "train" not in data:
            raise UserError(
                f"{_WHERE}: a mapping must have 'train' and may have 'validation' and 'test', but "
                f"this one has {', '.join(str(key) for key in data) or 'nothing'}."
            )
        return {_PARTS[key]: part for key, part in data.items()}
    if isinstance(data, tuple | list) and len(data) == 2:
        train, test = data
        if all(_is_pair(part) or _is_indexed(part) for part in data):
            return {"train": train, "test": test}
    return {"train": data}


def _is_pair(part: object) -> bool:
    """Tell whether something is an array of images, one of labels and perhaps one of units."""
    if not isinstance(part, tuple | list) or len(part) not in (2, 3):
        return False
    images, labels, *_ = (getattr(side, "ndim", None) for side in part)
    return images is not None and images >= 3 and (labels or 0) <= 2


def _is_indexed(part: object) -> bool:
    """Tell whether something is an indexed data set, and neither arrays nor a list."""
    return not isinstance(part, tuple | list) and not hasattr(part, "ndim")


_Form = tuple[tuple[int, int] | None, int | None, int]
"""Size, channels and bits that images of Pillow are brought to."""


def _read(part: Any, prefix: str, form: _Form) -> Part:
    """Images and labels of a part as arrays."""
    units = None
    if _is_indexed(part):
        _check_indexed(part)
        items = [_item(part, k) for k in range(len(part))]
        images: Any = [_pixels(image, form) for image, _ in items]
        labels: Any = [_plain(label) for _, label in items]
        _check_repeatable(part, images, form)
    elif isinstance(part, tuple | list) and len(part) in (2, 3):
        images, labels, *more = part
        units = _label_array(f"{prefix}units", more[0]) if more else None
        if isinstance(images, tuple | list):
            images = [_pixels(image, form) for image in images]
    else:
        raise UserError(
            f"{_WHERE} has no labels: give a pair (images, labels), not {_kind(part)} alone."
        )
    named = f"{prefix}images", f"{prefix}labels"
    return Part(_stacked(named[0], images), _label_array(named[1], labels), *named, units)


def _check_indexed(part: Any) -> None:
    """Refuse data whose examples cannot be drawn by their index."""
    torch_data = sys.modules.get("torch.utils.data")
    iterable = torch_data is not None and isinstance(part, torch_data.IterableDataset)
    if torch_data is not None and isinstance(part, torch_data.DataLoader):
        raise UserError(
            f"{_WHERE} is a DataLoader, which says how to draw: give its data set, loader.dataset."
        )
    if iterable or not (hasattr(part, "__len__") and hasattr(part, "__getitem__")):
        raise UserError(
            f"{_WHERE} is {_kind(part)}, whose examples have no index, and each must be drawn by "
            "itself: give a folder, a pair (images, labels), or a data set with __getitem__ and "
            "__len__."
        )


def _item(part: Any, index: int) -> tuple[Any, Any]:
    """The image and the label of an example."""
    item = part[index]
    if isinstance(item, Mapping):
        image = next((key for key in _IMAGE if key in item), None)
        label = next((key for key in _LABEL if key in item), None)
        if image is not None and label is not None:
            return item[image], item[label]
        found = f"a row with {', '.join(str(key) for key in item)}"
    elif isinstance(item, tuple | list) and len(item) == 2:
        return item[0], item[1]
    else:
        found = f"{len(item)} values" if isinstance(item, tuple | list) else _kind(item)
    raise UserError(
        f"{_WHERE} has no labels that can be told: example {index} is {found}, but must be "
        "(image, label), or a row with 'image' and 'label'."
    )


def _plain(value: Any) -> Any:
    """A tensor as an array, wherever it is; anything else as it is."""
    if not hasattr(value, "detach"):
        return value
    tensor = value.detach().cpu()
    return (tensor.float() if "bfloat16" in str(tensor.dtype) else tensor).numpy()


def _pixels(image: Any, form: _Form) -> Array:
    """One image as an array with its channels, whichever axis they are on."""
    if isinstance(image, Image.Image):
        size, channels, bits = form
        try:
            return planes_of(image, size=size, channels=channels, bits=bits)[0]
        except ValueError as error:
            raise UserError(f"{_WHERE}: an image cannot be used: {error}.") from None
    return np.asarray(_plain(image))


def _check_repeatable(part: Any, images: Sequence[Array], form: _Form) -> None:
    """Refuse examples that change from one reading to the next."""
    for index, image in enumerate(images[:_READ_TWICE]):
        again = _pixels(_item(part, index)[0], form)
        if again.shape != image.shape or not np.array_equal(
            again, image, equal_nan=image.dtype.kind == "f"
        ):
            raise UserError(
                f"{_WHERE}: example {index} is another image each time it is read: leave random "
                "transforms out; [augment] and training.views give views of each image."
            )


def _stacked(name: str, images: Any) -> Array:
    """Images as one array."""
    if not isinstance(images, list):
        return np.asarray(_plain(images))
    if {image.shape[0] for image in images if image.ndim == 3} == {1, 3}:
        images = [np.repeat(i, 3, 0) if i.shape[0] == 1 else i for i in images]
    shapes = list(dict.fromkeys(image.shape for image in images))
    if len(shapes) > 1:
        raise UserError(
            f"{_WHERE}: {name} have different sizes, such as {shapes[0]} and {shapes[1]}: scale "
            "them to one (images of Pillow: with data.size, such as **{'data.size': 64})."
        )
    return np.stack(images) if images else np.zeros((0, 1, 1, 1), np.uint8)


def _label_array(name: str, labels: Any) -> Array:
    try:
        array = np.asarray(_plain(labels))
    except (ValueError, TypeError):
        array = np.empty(0, dtype=object)
    if array.dtype == object:
        raise UserError(f"{_WHERE}: {name} are not one whole number, or one name, for each image.")
    return array


def _class_names(part: Any) -> tuple[str, ...] | None:
    """The names of the classes, where a data set knows them."""
    while hasattr(part, "dataset"):
        part = part.dataset
    features = getattr(part, "features", None)
    known = [getattr(part, "classes", None)]
    if isinstance(features, Mapping):
        known += [getattr(features.get(key), "names", None) for key in _LABEL]
    for names in known:
        if isinstance(names, list | tuple) and len(set(names)) == len(names) > 1:
            return tuple(str(name) for name in names)
    return None


def _kind(value: object) -> str:
    name = type(value).__name__
    return f"{'an' if name[0].lower() in 'aeiou' else 'a'} {name}"
