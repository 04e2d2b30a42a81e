"""A data set in tar shards: a folder of them, one file, or a pattern like train-{000..146}.tar."""

from __future__ import annotations

import os
import re
from collections import Counter
from contextlib import ExitStack
from dataclasses import dataclass
from itertools import chain
from pathlib import Path

import numpy as np

from sfumato.data import worker
from sfumato.data.folder import kinds, subfolders
from sfumato.data.image_files import ShardMembers
from sfumato.data.imageset import Array
from sfumato.data.listing import PARTS, Listing, some
from sfumato.data.packed_names import PackedNames
from sfumato.data.progress_bar import progress
from sfumato.data.shard_index import ShardIndex
from sfumato.data.shard_index_cache import Entry
from sfumato.data.workers import cores, processes, spread
from sfumato.errors import UserError

CLASS_FILES = ("classes.txt", "classnames.txt")
"""Files beside the shards that may name the classes, one a line, class 0 first."""

_ENDING = ".tar"
_WORTH_PROCESSES = 1 << 26
"""Bytes of shards from which on processes pay."""

_MOST_SHARDS = 1_000_000
_RANGE = re.compile(r"(\d+)\.\.(\d+)")
_BRACES = re.compile(r"\{([^{}]*)\}")


def is_pattern(text: str) -> bool:
    """Tell whether a path is a pattern of shards, or several of them joined by ``::``."""
    return "::" in text or (text.endswith(_ENDING) and bool(_BRACES.search(text)))


def holds_shards(folder: Path) -> bool:
    """Tell whether a folder holds tar files where an image folder has classes or parts."""
    names = subfolders(folder)
    if not names:
        return bool(_shards_in(folder))
    parts = all(name.lower() in PARTS for name in names)
    return parts and any(_shards_in(folder / name) for name in names)


def shard_files(given: Path) -> list[Path]:
    """The tar files that a folder of shards, a file or a pattern names, whatever their part.

    Raises:
        UserError: one does not exist, or the folder cannot be read.
    """
    if not given.is_dir():
        return _expanded(str(given))
    folders = [given, *(given / name for name in subfolders(given))]
    return [path for folder in folders for path in _shards_in(folder)]


def is_shard(path: Path) -> bool:
    """Tell whether a file is a tar file by its name."""
    return path.suffix.lower() == _ENDING


def list_shards(given: Path, *, cache: Path | None = None) -> Listing:
    """Find the classes and images of tar shards, and their own split into parts if they have one.

    Shards belong to a part by the folder they are in, or by a word of their names, such as
    ``train-000000.tar`` and ``imagenet-val-000001.tar``; with train and val alone, val is the test
    set. Shards of which none names a part are one whole. Every image is found by the headers of
    the shards, without reading it.

    Args:
        given: a folder, one tar file or a pattern.
        cache: the user's cache, where the contents of shards are kept; None to keep nothing.

    Raises:
        UserError: there are no such shards, or one of them cannot be used.
    """
    parts = _parts(given)
    shards = tuple(chain.from_iterable(parts.values()))
    found = _indexed(shards, cache)
    classes, labels = _classes(given, shards, found)
    counts = [len(shard.keys) for shard in found]
    spans = np.concatenate([shard.spans for shard in found])
    files = ShardMembers(
        given,
        shards,
        PackedNames.joined(shard.keys for shard in found),
        np.repeat(np.arange(len(shards), dtype=np.int32), counts),
        spans[:, 0].copy(),
        spans[:, 1].copy(),
    )
    positions: dict[str, Array] = {}
    start, before = 0, 0
    for part, members in parts.items():
        end = start + sum(counts[before : before + len(members)])
        positions[part] = np.arange(start, end, dtype=np.int64)
        _check_part(files, part, positions[part])
        start, before = end, before + len(members)
    _check_classes(classes, labels, positions)
    notes = []
    if "validation" in positions and "test" not in positions:
        positions["test"] = positions.pop("validation")
        notes.append("There are no test shards: those for validation are the test set.")
    ignored = sum((Counter(shard.ignored) for shard in found), Counter[str]())
    if ignored:
        notes.append(f"Ignored: {kinds(ignored)} (neither images nor labels).")
    none = np.empty(0, dtype=np.int64)
    return Listing(
        _home(given),
        classes,
        files,
        labels,
        positions["train"],
        positions.get("test", none),
        positions.get("validation", none),
        tuple(notes),
    )


def _parts(given: Path) -> dict[str, list[Path]]:
    """The shards of each part, training shards first; all are training shards if none says more."""
    if given.is_dir() and (names := subfolders(given)):
        by_name = [(name, path) for name in names for path in _shards_in(given / name)]
        loose = _shards_in(given)
        if loose:
            raise UserError(
                f"{given} holds shards beside the folders {', '.join(names)}: move "
                f"{some([path.name for path in loose])} into one of them."
            )
    else:
        shards = _shards_in(given) if given.is_dir() else _expanded(str(given))
        by_name = [(_part_word(path), path) for path in shards]
    parts: dict[str, list[Path]] = {}
    for name, path in by_name:
        parts.setdefault(PARTS.get(name.lower(), ""), []).append(path)
    if set(parts) == {""}:
        return {"train": parts[""]}
    if "" in parts:
        raise UserError(
            f"Some shards of {given} name a part (train, val, test) and others, such as "
            f"{parts[''][0].name}, do not: name the part in all of them or in none."
        )
    if "train" not in parts:
        raise UserError(f"{given} holds shards for {' and '.join(parts)} but none for training.")
    return {part: parts[part] for part in ("train", "validation", "test") if part in parts}


def _part_word(path: Path) -> str:
    """The first word of a file name that names a part, or the empty string."""
    words = re.findall("[a-z]+", path.stem.lower())
    return next((word for word in words if word in PARTS), "")


def _shards_in(folder: Path) -> list[Path]:
    try:
        names = sorted(os.listdir(folder))
    except OSError as error:
        raise UserError(f"The folder {folder} cannot be read ({error.strerror}).") from error
    return [
        folder / name
        for name in names
        if name.lower().endswith(_ENDING) and not name.startswith(".")
    ]


def _expanded(pattern: str) -> list[Path]:
    """The files that a pattern names, which must all be there."""
    texts = [text for text in pattern.split("::") if text]
    while any(_BRACES.search(text) for text in texts):
        texts = [new for text in texts for new in _first_expanded(text)]
        if len(texts) > _MOST_SHARDS:
            raise UserError(f"{pattern} names over {_MOST_SHARDS:,} shards: give fewer.")
    paths = [Path(text).expanduser() for text in texts]
    missing = [str(path) for path in paths if not path.is_file()]
    if missing:
        raise UserError(
            f"{len(missing)} of the {len(paths)} shards that {pattern} names do not exist: "
            f"{some(missing)}."
        )
    twice = [str(path) for path, count in Counter(paths).items() if count > 1]
    if twice:
        raise UserError(f"{pattern} names {some(twice)} more than once.")
    return paths


def _first_expanded(text: str) -> list[str]:
    """The texts that the first braces of a text stand for: ``{a,b}`` or ``{000..146}``."""
    match = _BRACES.search(text)
    if match is None:
        return [text]
    choices = match[1].split(",")
    if bounds := _RANGE.fullmatch(match[1]):
        low, high = int(bounds[1]), int(bounds[2])
        if high < low or high - low >= _MOST_SHARDS:
            raise UserError(f"{match[0]} in {text} is no range of shards, such as {{000..146}}.")
        choices = [f"{number:0{len(bounds[1])}d}" for number in range(low, high + 1)]
    return [f"{text[: match.start()]}{choice}{text[match.end() :]}" for choice in choices]


@dataclass(frozen=True, eq=False)
class _Shard:
    """The index of a shard in little memory."""

    source: str
    keys: PackedNames
    spans: Array
    labels: Array
    names: list[str]
    ignored: dict[str, int]

    @classmethod
    def of(cls, index: ShardIndex) -> _Shard:
        """The same in arrays."""
        return cls(
            index.source,
            PackedNames(index.keys),
            np.array(index.spans, dtype=np.int64).reshape(-1, 2),
            np.array(index.labels, dtype=np.int64),
            index.names,
            index.ignored,
        )


def _indexed(shards: tuple[Path, ...], cache: Path | None) -> list[_Shard]:
    """The contents of each shard: from the cache, or read on all cores and kept there."""
    # Named by the state of the shards before they are read.
    entries = None if cache is None else [Entry.of(cache, path) for path in shards]
    found: dict[int, _Shard] = {}
    for number, entry in enumerate(entries or ()):
        if (index := entry.read()) is not None:
            found[number] = _Shard.of(index)
    missing = [(number, path) for number, path in enumerate(shards) if number not in found]
    size = sum(path.stat().st_size for _, path in missing)
    with ExitStack() as stack:
        several = cores() > 1 and len(missing) > 1 and size >= _WORTH_PROCESSES
        call = stack.enter_context(processes()) if several else worker.work
        advance = stack.enter_context(progress("reading shards", len(shards), done=len(found)))
        for (number, _), answer in spread(
            missing, lambda job: call({"shard": str(job[1])}), cores()
        ):
            index = ShardIndex(**answer)
            found[number] = _Shard.of(index)
            if entries is not None:
                entries[number].write(index)
            advance(1)
    return [found[number] for number in range(len(shards))]


def _classes(
    given: Path, shards: tuple[Path, ...], found: list[_Shard]
) -> tuple[tuple[str, ...], Array]:
    """Class names, and the label of every image."""
    sources = sorted({shard.source for shard in found if len(shard.keys)})
    if not sources:
        raise UserError(f"The shards of {given} hold no images.")
    if len(sources) > 1:
        raise UserError(
            f"The shards of {given} have labels of several kinds ({', '.join(sources)}): write all "
            "alike, with .cls or .json files, or with a folder for each class."
        )
    known, file = _class_names(given, shards)
    if sources == ["numbers"]:
        labels = np.concatenate([shard.labels for shard in found])
        most = int(labels.max())
        if file is not None and most >= len(known):
            raise UserError(
                f"The shards of {given} hold class {most}, but {file} names {len(known)} classes, "
                f"from 0 to {len(known) - 1}: complete it."
            )
        return known or tuple(str(number) for number in range(most + 1)), labels
    names = sorted({name for shard in found for name in shard.names})
    strange = sorted(set(names) - set(known)) if file is not None else []
    if strange:
        raise UserError(f"The classes {some(strange)} in shards of {given} are not in {file}.")
    number = {name: label for label, name in enumerate(known or names)}
    own = [np.array([number[name] for name in shard.names], dtype=np.int64) for shard in found]
    labels = np.concatenate([n[s.labels] for n, s in zip(own, found, strict=True) if len(s.keys)])
    return known or tuple(names), labels


def _class_names(given: Path, shards: tuple[Path, ...]) -> tuple[tuple[str, ...], Path | None]:
    """Class names from a file beside the shards or above their folder, if there is one."""
    for folder in dict.fromkeys((_home(given), shards[0].parent, shards[0].parent.parent)):
        for path in (folder / name for name in CLASS_FILES):
            if path.is_file():
                lines = path.read_text("utf-8", "replace").splitlines()
                names = tuple(line.strip() for line in lines if line.strip())
                twice = [name for name, count in Counter(names).items() if count > 1]
                if twice:
                    raise UserError(f"{path} names {some(twice)} more than once.")
                return names, path
    return (), None


def _home(given: Path) -> Path:
    """The folder that shards are in, for a pattern the first that it names."""
    if given.is_dir():
        return given
    return _expanded(str(given))[0].parent if is_pattern(str(given)) else given.parent


def _check_classes(classes: tuple[str, ...], labels: Array, positions: dict[str, Array]) -> None:
    """Refuse data of one class, and classes that training shards lack."""
    trained = np.unique(labels[positions["train"]])
    if len(trained) < 2:
        raise UserError(
            f"The training shards hold only one class, '{classes[trained[0]]}', but a classifier "
            "needs at least two."
        )
    for part, members in positions.items():
        strangers = np.setdiff1d(labels[members], trained)
        if len(strangers):
            raise UserError(
                f"The {part} shards hold classes that those for training lack: "
                f"{some([classes[label] for label in strangers])}."
            )


def _check_part(files: ShardMembers, part: str, positions: Array) -> None:
    """Refuse a part without images, and a key that two of its shards hold."""
    if not len(positions):
        raise UserError(f"The {part} shards of {files.given} hold no images.")
    if (twice := files.keys.repeated(positions)) is not None:
        one, other = twice
        raise UserError(
            f"The key '{files.keys[one]}' is in {files.shards[files.shard[one]]} and in "
            f"{files.shards[files.shard[other]]}: give every image a key of its own, or remove "
            "the copy. One image that counts twice would spend twice its privacy."
        )
