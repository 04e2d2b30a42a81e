"""The contents of a tar shard: its images, where they begin, and their labels.

Shards are those of WebDataset: an image ``KEY.jpg`` (or another image format) and its label in
``KEY.cls`` (a whole number) or in a field of ``KEY.json``, in one shard. A key is a member's path
up to the first dot of its file name. Or they are image folders put into tar files:
``CLASS/NAME.jpg``. Nothing is unpacked: the headers of a shard are read, and its labels.
"""

from __future__ import annotations

import os
import posixpath
import re
from collections import Counter
from dataclasses import dataclass, field
from io import BufferedReader
from pathlib import Path
from typing import Any, NamedTuple

from sfumato.data.decode import EXTENSIONS
from sfumato.data.limits import bytes_in_words
from sfumato.data.tar_members import Member, members, shard_open
from sfumato.errors import UserError
from sfumato.io import json_lines

LABEL_FIELDS = ("label", "cls", "class", "class_id", "target")
"""Fields of ``KEY.json`` that may hold the label; the first that is there counts."""

LARGEST_CLASS = 99_999
"""Class numbers beyond this are taken for something else than a class."""

_LARGEST_IMAGE = 1 << 29
_LARGEST_LABEL = 1 << 20


@dataclass
class ShardIndex:
    """The images of one shard, in their order.

    Attributes:
        source: where labels come from: ``numbers``, ``names`` or, for lack of both, ``folders``.
        keys: one key per image.
        spans: first byte and length of each image.
        labels: class number of each image, or its position among the names.
        names: class names, unless labels are numbers.
        ignored: counts of members that are neither images nor labels, by ending.
    """

    source: str = "numbers"
    keys: list[str] = field(default_factory=list)
    spans: list[tuple[int, int]] = field(default_factory=list)
    labels: list[int] = field(default_factory=list)
    names: list[str] = field(default_factory=list)
    ignored: dict[str, int] = field(default_factory=dict)

    def to_json(self) -> dict[str, Any]:
        """The index as JSON values, which are the arguments to make it again."""
        return dict(vars(self))


def index_shard(path: str | os.PathLike[str]) -> ShardIndex:
    """Find the images of a shard and their labels.

    Raises:
        UserError: the shard cannot be read, or it holds an image without a label, a label without
            an image, or a key twice.
    """
    shard = Path(path)
    with shard_open(shard) as file:
        pictures, written, ignored = _sorted_members(shard, file)
        # Beside a .cls file, .json is about something else.
        labels = {
            key: _label(shard, file, member, ending)
            for ending in ("json", "cls")
            for key, member in written[ending].items()
            if ending == "cls" or key not in written["cls"]
        }
    if labels:
        return _labelled(shard, pictures, labels, ignored)
    return _in_folders(shard, [picture.member for picture in pictures], ignored)


def images_in_shard(path: str | os.PathLike[str]) -> list[Member]:
    """The images of a shard, with or without labels; other pictures of a labelled key are left out.

    Raises:
        UserError: the shard cannot be read.
    """
    shard = Path(path)
    with shard_open(shard) as file:
        pictures, written, _ = _sorted_members(shard, file)
    labelled = any(written.values())
    return [picture.member for picture in pictures if picture.counts or not labelled]


class _Picture(NamedTuple):
    """A picture in a shard, with its key and all endings of its name."""

    key: str
    ending: str
    member: Member

    @property
    def counts(self) -> bool:
        """Tell whether it is the image of its key, not another picture such as KEY.mask.png."""
        return f".{self.ending}" in EXTENSIONS


def _sorted_members(
    shard: Path, file: BufferedReader
) -> tuple[list[_Picture], dict[str, dict[str, Member]], Counter[str]]:
    """The pictures of a shard, its label files by ending and key, and counts of the rest."""
    pictures: list[_Picture] = []
    written: dict[str, dict[str, Member]] = {"cls": {}, "json": {}}
    ignored: Counter[str] = Counter()
    for member in members(shard, file):
        folder, base = posixpath.split(member.path.removeprefix("./"))
        if base.startswith(".") or folder.startswith("__MACOSX"):
            continue
        stem, _, ending = base.partition(".")
        key, ending = posixpath.join(folder, stem), ending.lower()
        if posixpath.splitext(base)[1].lower() in EXTENSIONS:
            _check_length(shard, member, _LARGEST_IMAGE)
            pictures.append(_Picture(key, ending, member))
        elif ending in written:
            if key in written[ending]:
                raise _twice(shard, key, member.path)
            written[ending][key] = member
        else:
            ignored[f".{ending}" if ending else "no extension"] += 1
    return pictures, written, ignored


def _labelled(
    shard: Path,
    pictures: list[_Picture],
    labels: dict[str, int | str],
    ignored: Counter[str],
) -> ShardIndex:
    kinds = {type(label) for label in labels.values()}
    if len(kinds) > 1:
        raise UserError(f"The shard {shard} holds class numbers and class names: keep one of them.")
    index = ShardIndex("numbers" if kinds == {int} else "names")
    found: dict[str, int] = {}
    seen: set[str] = set()
    for picture in pictures:
        key, ending, member = picture
        if not picture.counts:
            ignored[f".{ending}"] += 1
            continue
        if key in seen:
            raise _twice(shard, key, member.path)
        seen.add(key)
        if key not in labels:
            raise UserError(
                f"The image '{member.path}' in {shard} has no label: add '{key}.cls' with its "
                f"class number, or '{key}.json' with a field 'label', to the same shard."
            )
        label = labels.pop(key)
        if isinstance(label, str):
            label = found.setdefault(label, len(found))
        index.keys.append(key)
        index.spans.append((member.first, member.length))
        index.labels.append(label)
    if labels:
        key = next(iter(labels))
        raise UserError(
            f"The label of '{key}' in {shard} has no image in that shard: add the image, such as "
            f"'{key}.jpg', or remove the label."
        )
    index.names, index.ignored = list(found), dict(ignored)
    return index


def _in_folders(shard: Path, pictures: list[Member], ignored: Counter[str]) -> ShardIndex:
    """The images of a shard without labels: their classes are the folders that they are in."""
    index = ShardIndex("folders", ignored=dict(ignored))
    found: dict[str, int] = {}
    seen: set[str] = set()
    for member in pictures:
        key = member.path.removeprefix("./")
        name = posixpath.basename(posixpath.dirname(key))
        if not name:
            raise UserError(
                f"The image '{key}' in {shard} has no label: add '{key.partition('.')[0]}.cls' "
                "with its class number to the same shard, or give each class a folder."
            )
        if key in seen:
            raise _twice(shard, key, key)
        seen.add(key)
        index.keys.append(key)
        index.spans.append((member.first, member.length))
        index.labels.append(found.setdefault(name, len(found)))
    index.names = list(found)
    return index


def _label(shard: Path, file: BufferedReader, member: Member, ending: str) -> int | str:
    """The class number or the class name in a member."""
    _check_length(shard, member, _LARGEST_LABEL)
    file.seek(member.first)
    content = file.read(member.length)
    value: Any = content.decode("utf-8", "replace").strip()
    if ending == "json":
        value = _field(shard, member, content)
        if isinstance(value, str) and value and not value.isdecimal():
            return value
    number = value
    if isinstance(value, str) and re.fullmatch("[0-9]{1,9}", value):
        number = int(value)
    if isinstance(number, bool) or not isinstance(number, int) or not 0 <= number <= LARGEST_CLASS:
        raise UserError(
            f"The label '{member.path}' in {shard} is {str(value)[:40]!r}: it must be the number "
            f"of a class, from 0 to {LARGEST_CLASS}."
        )
    return number


def _field(shard: Path, member: Member, content: bytes) -> Any:
    try:
        record = json_lines.parse(content)
    except ValueError:
        record = None
    if isinstance(record, dict):
        for name in LABEL_FIELDS:
            if name in record:
                return record[name]
    raise UserError(
        f"'{member.path}' in {shard} holds no label: it must be a JSON object with a field "
        f"'{LABEL_FIELDS[0]}' ({', '.join(LABEL_FIELDS[1:])} will do), or '.cls' files must hold "
        "the labels."
    )


def _check_length(shard: Path, member: Member, most: int) -> None:
    if member.length > most:
        raise UserError(
            f"'{member.path}' in {shard} has {bytes_in_words(member.length)}, and "
            f"{bytes_in_words(most)} is the most for such a member: write the shard again."
        )


def _twice(shard: Path, key: str, path: str) -> UserError:
    return UserError(
        f"The key '{key}' is twice in {shard} (the second time as '{path}'): give every image a "
        "key of its own."
    )
