"""Download of a named data set, with checksum and progress."""

from __future__ import annotations

import contextlib
import os
import shlex
import shutil
import tarfile
import tempfile
import zipfile
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from sfumato.data import locate
from sfumato.data.catalogue import Download, Entry, entry
from sfumato.data.progress_bar import progress
from sfumato.errors import UserError

_ARCHIVE_SUFFIXES = (".tar.gz", ".tgz", ".zip")
_TIMEOUT = 30


def get(
    name: str,
    *,
    to: str | os.PathLike[str] | None = None,
    say: Callable[[str], None] = lambda line: None,
) -> Path:
    """Download a named data set and unpack it in the layout that torchvision uses.

    Files that exist already with the right checksum are used, so a file fetched elsewhere and put
    in its place is unpacked by the same call. Nothing is overwritten.

    Args:
        name: a catalogue name.
        to: the data folder; by default the user's cache, where `sfumato.data.load` looks.
        say: called with a line about each action.

    Returns:
        The folder that holds the data set.

    Raises:
        UserError: names the file that could not be fetched, its addresses, and where to put it.
    """
    wanted = entry(name)
    if not wanted.downloads:
        raise UserError(f"'{wanted.name}' comes with sfumato: there is nothing to download.")
    home = Path(to).expanduser() if to is not None else locate.cache_folder()
    folder = home / wanted.folders[0]
    if _complete(wanted, home):
        say(f"{wanted.name} is there already: {folder}")
        return folder
    for index, download in enumerate(wanted.downloads):
        target = home / download.path
        if target.exists():
            _check(target, download)
            say(f"{target} is there already.")
        else:
            say(f"Fetching {download.urls[0]}")
            _fetch(wanted, home, wanted.downloads[index:])
        if target.name.endswith(_ARCHIVE_SUFFIXES):
            say(f"Unpacking {target}")
            _unpack(target, folder)
    return folder


def _complete(wanted: Entry, home: Path) -> bool:
    folder = home / wanted.folders[0]
    archives = [item for item in wanted.downloads if item.path.endswith(_ARCHIVE_SUFFIXES)]
    if archives:
        return any((folder / marker).exists() for marker in wanted.markers)
    return all(
        (home / item.path).is_file() or (home / item.path).with_suffix("").is_file()
        for item in wanted.downloads
    )


def _check(target: Path, download: Download) -> None:
    import pooch

    if pooch.file_hash(str(target), alg="md5") != download.md5:
        raise UserError(
            f"{target} is there but its md5 is not {download.md5}, so it is damaged or another "
            "file: move it away and try again."
        )


def _fetch(wanted: Entry, home: Path, missing: tuple[Download, ...]) -> None:
    """Fetch the first of the missing files from the first of its addresses that answers."""
    import pooch

    download = missing[0]
    target = home / download.path
    pooch.get_logger().setLevel("WARNING")
    reasons = []
    for url in download.urls:
        try:
            target.parent.mkdir(parents=True, exist_ok=True)
            with _Bar(target.name) as bar:
                pooch.retrieve(
                    url,
                    known_hash=f"md5:{download.md5}",
                    fname=target.name,
                    path=str(target.parent),
                    downloader=pooch.HTTPDownloader(progressbar=bar, timeout=_TIMEOUT),
                )
            return
        except (OSError, ValueError) as error:
            reasons.append(f"{urlsplit(url).hostname}: {_short(error)}")
    files = "; ".join(f"{item.urls[0]} (md5 {item.md5}) to {home / item.path}" for item in missing)
    raise UserError(
        f"{target.name} could not be downloaded ({'; '.join(reasons)}). On a machine with access "
        f"fetch these files and put each in its place here: {files}. Then run "
        f"`sfumato data get {wanted.name} --to {shlex.quote(str(home))}` again."
    )


def _short(error: Exception) -> str:
    from requests import exceptions

    if isinstance(error, exceptions.Timeout):
        return "no answer in time"
    if isinstance(error, exceptions.ConnectionError):
        return "no connection"
    text = str(error).splitlines()[0] if str(error) else type(error).__name__
    return text if len(text) <= 200 else text[:199] + "…"


class _Bar:
    """The project's progress display in the form that pooch expects."""

    def __init__(self, label: str) -> None:
        self._label = label
        self._total = 0
        self._advance: Callable[[int], None] = lambda count: None
        self._stack = contextlib.ExitStack()

    def __enter__(self) -> _Bar:
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    @property
    def total(self) -> int:
        return self._total

    @total.setter
    def total(self, size: int) -> None:
        self._total = size
        shown = progress(self._label, max(1, size >> 20), unit="MiB")
        self._advance = self._stack.enter_context(shown)
        self._pending = 0

    def update(self, count: int) -> None:
        self._pending += count
        self._advance(self._pending >> 20)
        self._pending &= (1 << 20) - 1

    def reset(self) -> None:
        self._advance = lambda count: None

    def close(self) -> None:
        self._stack.close()


def _unpack(archive: Path, folder: Path) -> None:
    """Unpack an archive whose only top folder is the wanted one, all or nothing."""
    work = Path(tempfile.mkdtemp(prefix=".unpacking-", dir=folder.parent))
    try:
        _extract(archive, work)
        if not (work / folder.name).is_dir():
            raise UserError(f"{archive} does not hold a folder {folder.name}: fetch it again.")
        os.rename(work / folder.name, folder)
    except (OSError, EOFError, tarfile.TarError, zipfile.BadZipFile, zlib.error) as error:
        raise UserError(f"{archive} cannot be unpacked in {folder.parent} ({error}).") from error
    finally:
        shutil.rmtree(work, ignore_errors=True)


def _extract(archive: Path, work: Path) -> None:
    if archive.suffix == ".zip":
        with zipfile.ZipFile(archive) as packed:
            members: list[Any] = packed.infolist()
            with progress("unpacking", len(members)) as advance:
                for member in members:
                    packed.extract(member, work)
                    advance(1)
        return
    with tarfile.open(archive) as tar:
        tar.extractall(work, filter="data")
