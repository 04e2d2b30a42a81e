"""Decoding of many images to one array, on all cores: in the user's cache, or in memory."""

from __future__ import annotations

import hashlib
import sys
from collections.abc import Callable, Container, Generator
from contextlib import ExitStack, closing, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import PIL

from sfumato.data import limits, locate, worker
from sfumato.data.cache import HEADER_BYTES, Unfinished, being_written, moved_together, open_entry
from sfumato.data.decode import depth_note
from sfumato.data.decode_block import Form, Observations, decode_block, look_at_block
from sfumato.data.image_files import BLOCK, Block, ImageFiles
from sfumato.data.imageset import Array
from sfumato.data.progress_bar import progress
from sfumato.data.workers import cores, processes, spread
from sfumato.errors import UserError

Answer = TypeVar("Answer")

LARGEST_KEPT_SIDE = 64
"""Images that all have one size keep it if no side is longer than this."""

MIXED_SIZE = 64
"""Images of several sizes, or larger ones, become squares of this side unless a size is given."""

_FORMAT = 3
_MOST_NAMED = 10
_WORTH_PROCESSES = 4096
"""Images from which on processes pay, which take a third of a second to start."""

_WORTH_WORDS = 1 << 28
"""Bytes from which on the size of the cached copy is said before it is written."""


@dataclass(frozen=True, eq=False)
class Decoded:
    """The images that could be read.

    Attributes:
        images: ``(N, C, H, W)`` uint8 in the order that was asked for.
        kept: one flag per place of that order, true if its image is among the images.
        notes: decisions, in sentences for the user.
    """

    images: Array
    kept: Array
    notes: tuple[str, ...]


@dataclass(frozen=True, eq=False)
class _Work:
    """Images to decode, in an order, and what was asked for."""

    files: ImageFiles
    order: Array
    size: tuple[int, int] | None
    channels: int | None
    bits: int
    window: tuple[float, float] | None
    skip_unreadable: bool
    split: str

    def form(self, seen: Observations) -> Form:
        """The form of the images: as asked for, else as their headers suggest."""
        size = self.size or _choose_size(seen.headers)
        return Form(size, self.channels or (1 if seen.grey else 3), self.bits, self.window)

    def kind(self, form: Form) -> str:
        """A digest of data and options that does not depend on the state of the files."""
        root = str(self.files.root().resolve())
        asked = (form.size, form.channels, self.bits, self.window, self.skip_unreadable)
        text = repr((root, *asked, *filter(None, (self.split,))))
        return hashlib.sha256(text.encode("utf-8", "surrogateescape")).hexdigest()[:40]

    def key(self) -> str:
        """A digest of everything that the decoded array depends on."""
        root = str(self.files.root().resolve())
        asked = (self.size, self.channels, self.bits, self.window, self.skip_unreadable)
        digest = hashlib.sha256()
        options = repr((_FORMAT, PIL.__version__, root, *asked))
        digest.update(options.encode("utf-8", "surrogateescape"))
        for state in self.files.state(self.order):
            digest.update(state)
        return digest.hexdigest()[:40]


def decode_images(
    files: ImageFiles,
    order: Array,
    *,
    size: tuple[int, int] | None,
    channels: int | None,
    bits: int,
    window: tuple[float, float] | None = None,
    skip_unreadable: bool,
    cache: bool = True,
    split: str = "",
) -> Decoded:
    """Decode images; size and channels are chosen from their headers if not given.

    Size: the common size of all images if they have one and no side is over 64, otherwise 64×64.
    Channels: 1 if every image is grey, otherwise 3. Both choices look at all the images; where even
    that should not depend on private data, give them.

    Args:
        files: where the images are.
        order: positions of all of them in the order of the result.
        size: height and width to bring them to.
        channels: 1 or 3.
        bits: bits that count in 16-bit images.
        window: centre and width of values of DICOM files; the range of their bits if None.
        skip_unreadable: leave out what cannot be read.
        cache: keep the result in the user's cache, and take it from there.
        split: name of the split that the order follows. Of one name the cache keeps one copy, and
            those of other names beside it.
    """
    work = _Work(files, order, size, channels, bits, window, skip_unreadable, split)
    if not cache:
        return _in_memory(work)
    folder, key = locate.cache_folder(), work.key()
    if (entry := open_entry(folder, key)) is not None:
        return _decoded(entry[0], len(order), entry[1])
    try:
        with being_written(folder, key) as unfinished:
            if (entry := open_entry(folder, key)) is not None:  # Another process was faster.
                return _decoded(entry[0], len(order), entry[1])
            return _in_cache(work, unfinished)
    except OSError as error:
        return _despite(work, folder, error)


def _in_cache(work: _Work, entry: Unfinished) -> Decoded:
    """Decode into a new entry of the cache, or go on with one that was interrupted."""
    before = entry.earlier().get("form")
    form = Form.from_json(before) if before else work.form(_first_headers(work))
    while True:
        seen = _into_entry(work, form, entry)
        if refused := _refusal(work, seen):
            entry.discard()
            raise refused
        if (right := work.form(seen)) == form:
            break
        form = right  # The headers of all images decide, and now they are known.
    description = _description(work, form, seen)
    try:
        images = entry.finish(_kept(len(work.order), description), form.shape, description)
    except OSError:
        entry.discard()
        raise
    return _decoded(images, len(work.order), description)


def _into_entry(work: _Work, form: Form, entry: Unfinished) -> Observations:
    about = {"of": work.kind(form), "form": form.to_json(), "block": BLOCK}
    done = entry.begin(len(work.order), form.shape, about)
    _announce(work, form, entry.path.parent)
    seen = Observations()
    for record in done.values():
        seen.add(Observations.from_json(record))
    before = seen.images
    target = {"form": form.to_json(), "target": str(entry.path), "offset": HEADER_BYTES}
    with ExitStack() as stack:
        several = cores() > 1 and len(work.order) >= _WORTH_PROCESSES
        call = stack.enter_context(processes()) if several else worker.work
        finished = _finished(work, lambda block: call({**target, "block": block}), done, before)
        stack.enter_context(closing(finished))  # Before the processes end.
        try:
            for number, record in finished:
                entry.record(number, record)
                seen.add(Observations.from_json(record))
            entry.keep()
        except OSError:  # Of the cache: what cannot be read of the images is no such error.
            entry.discard()
            raise
        except BaseException:
            with suppress(OSError):
                entry.keep()
            raise
    return seen


def _in_memory(work: _Work, notes: tuple[str, ...] = ()) -> Decoded:
    """Decode into memory, for a cache that is not wanted or cannot be written."""
    form = work.form(_first_headers(work))
    while True:
        rows = np.empty((len(work.order), *form.shape), dtype=np.uint8)
        seen = Observations()
        for _, found in _finished(work, partial(decode_block, form=form, write=rows.__setitem__)):
            seen.add(found)
        if refused := _refusal(work, seen):
            raise refused
        if (right := work.form(seen)) == form:
            break
        form = right
    description = _description(work, form, seen)
    kept = _kept(len(work.order), description)
    if not kept.all():
        moved_together(rows, kept)
    description["notes"] += notes
    return _decoded(rows[: kept.sum()], len(work.order), description)


def _despite(work: _Work, folder: Path, error: OSError) -> Decoded:
    """Decode into memory what the cache cannot hold, if it is not too much for that.

    Raises:
        UserError: it is.
    """
    reason = error.strerror or str(error)
    form = work.form(_first_headers(work))
    size = len(work.order) * int(np.prod(form.shape))
    if size > limits.gibibytes() * 2**30:
        raise UserError(
            f"The decoded images take {limits.bytes_in_words(size)}, which cannot be written to "
            f"{folder} ({reason}). Make room there (`sfumato data forget` removes decoded images), "
            f"choose another folder with {locate.CACHE_VARIABLE}=FOLDER, or smaller images with "
            f"--size. Only up to {limits.gibibytes():g} GiB ({limits.VARIABLE}) are held in memory "
            "instead."
        ) from error
    note = (
        f"The decoded images could not be kept in the cache {folder} ({reason}); they are decoded "
        f"again at every start. {locate.CACHE_VARIABLE}=FOLDER chooses another folder."
    )
    return _in_memory(work, (note,))


def _finished(
    work: _Work, call: Callable[[Block], Answer], done: Container[int] = (), before: int = 0
) -> Generator[tuple[int, Answer], None, None]:
    """Numbers and answers of the blocks that are not done yet, with a bar of their progress.

    Args:
        work: the images.
        call: decodes a block.
        done: numbers of the blocks that are done.
        before: number of images of these.
    """
    numbered = enumerate(work.files.blocks(work.order))
    left = (job for job in numbered if job[0] not in done)
    with (
        closing(spread(left, lambda job: call(job[1]), cores())) as finished,
        progress("decoding images", len(work.order), done=before) as advance,
    ):
        for (number, block), found in finished:
            advance(len(block.rows))
            yield number, found


def _first_headers(work: _Work) -> Observations:
    """The headers of the first block, from which the form of all is guessed."""
    if work.size is not None and work.channels is not None:
        return Observations()
    return look_at_block(next(iter(work.files.blocks(work.order)), Block("", [], [], [])))


def _announce(work: _Work, form: Form, folder: Path) -> None:
    """Say how large the copy in the cache will be, if it is large."""
    size = len(work.order) * int(np.prod(form.shape))
    if size >= _WORTH_WORDS:
        print(
            f"Decoding {len(work.order):,} images to {limits.bytes_in_words(size)} in {folder}, "
            "readable by you alone; `sfumato data forget` removes them.",
            file=sys.stderr,
        )


def _description(work: _Work, form: Form, seen: Observations) -> dict[str, Any]:
    """The description stored with the decoded images."""
    own = work.size is None
    notes = (_size_note(seen.sizes, form.size, own=own), depth_note(seen.highest, work.bits))
    return {
        "of": work.kind(form),
        "notes": [note for note in notes if note],
        "skipped": sorted(seen.unreadable),
    }


def _kept(count: int, description: dict[str, Any]) -> Array:
    kept = np.ones(count, dtype=bool)
    kept[description["skipped"]] = False
    return kept


def _decoded(images: Array, count: int, description: dict[str, Any]) -> Decoded:
    return Decoded(images, _kept(count, description), tuple(description["notes"]))


def _refusal(work: _Work, seen: Observations) -> UserError | None:
    """An error that names the unreadable images, or says that none can be read."""
    count, files = len(work.order), work.files
    if work.skip_unreadable:
        if len(seen.unreadable) < count:
            return None
        return UserError(f"None of the {count} images in {files.root()} can be read.")
    if not seen.unreadable:
        return None
    named = sorted(
        f"{files.place(int(work.order[row]))} ({reason})" for row, reason in seen.unreadable.items()
    )
    advice = "or give --skip-unreadable to go on without such images."
    if len(named) == 1:
        ((row, reason),) = seen.unreadable.items()
        return UserError(
            f"The image {files.place(int(work.order[row]))} cannot be read ({reason}): repair or "
            f"remove it, {advice}"
        )
    more = f" and {len(named) - _MOST_NAMED} more" if len(named) > _MOST_NAMED else ""
    return UserError(
        f"{len(named)} of {count} images cannot be read: {', '.join(named[:_MOST_NAMED])}{more}. "
        f"Repair or remove them, {advice}"
    )


def _choose_size(sizes: set[tuple[int, int]]) -> tuple[int, int]:
    if len(sizes) == 1:
        (common,) = sizes
        if max(common) <= LARGEST_KEPT_SIDE:
            return common
    return MIXED_SIZE, MIXED_SIZE


def _size_note(sizes: set[tuple[int, int]], size: tuple[int, int], *, own: bool) -> str:
    """A sentence about the old and new sizes of the images; ``own`` if no size was given."""
    height, width = next(iter(sizes))
    if sizes == {size}:
        return f"All images are {height}×{width} and keep that size."
    if len(sizes) == 1:
        found = f"All images are {height}×{width}"
    else:
        low, high = min(map(min, sizes)), max(map(max, sizes))
        found = f"The images have {len(sizes)} sizes, with sides from {low} to {high}"
    other = " Give --size (or --set data.size=) for another." if own else ""
    return f"{found}; they are scaled to {size[0]}×{size[1]}.{other}"
