"""The contents of tar shards in the user's cache, so that a second start reads no headers.

There is one file for each shard, beside the decoded images. It counts as long as the shard has the
path, size and modification time that it had before it was read. Its owner alone can read it: keys
and labels may be private.
"""

from __future__ import annotations

import hashlib
import json
import os
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sfumato.data import cache
from sfumato.data.shard_index import ShardIndex
from sfumato.io import json_lines
from sfumato.io.atomic import write_whole

_SOURCES = ("numbers", "names", "folders")
_VERSION = 1
"""Part of every name: an index of another form is not found."""


@dataclass(frozen=True)
class Entry:
    """The place of a shard's index in the cache, named by the shard's path and state.

    Attributes:
        path: The file.
    """

    path: Path

    @classmethod
    def of(cls, folder: Path, shard: Path) -> Entry:
        """The entry of a shard as it is now, in a cache folder.

        Raises:
            OSError: The shard is not there.
        """
        status = os.stat(shard)
        where = _digest(os.path.abspath(shard), _VERSION)
        state = _digest(status.st_size, status.st_mtime_ns)
        return cls(folder / cache.SUBFOLDER / f"{where}-{state}{cache.INDEX}")

    def read(self) -> ShardIndex | None:
        """The index, or None if there is none or it is damaged."""
        try:
            content = json_lines.parse(self.path.read_bytes())
        except (OSError, ValueError):
            return None
        return ShardIndex(**content) if _is_index(content) else None

    def write(self, index: ShardIndex) -> None:
        """Write an index in the place of earlier ones of the shard; nothing if that fails."""
        with suppress(OSError):
            self.path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            write_whole(self.path, json.dumps(index.to_json()).encode(), mode=0o600)
            where = self.path.name.partition("-")[0]
            for old in self.path.parent.glob(f"{where}-*{cache.INDEX}"):
                if old != self.path:
                    old.unlink(missing_ok=True)


def _digest(*parts: object) -> str:
    text = repr(parts).encode("utf-8", "surrogateescape")
    return hashlib.sha256(text).hexdigest()[:32]


def _is_index(content: Any) -> bool:
    """Tell whether a value of JSON is an index."""
    if not isinstance(content, dict) or content.keys() != ShardIndex().to_json().keys():
        return False
    keys, spans, labels, names = (content[k] for k in ("keys", "spans", "labels", "names"))
    return (
        content["source"] in _SOURCES
        and isinstance(content["ignored"], dict)
        and all(isinstance(part, list) for part in (keys, spans, labels, names))
        and len(keys) == len(spans) == len(labels)
        and all(isinstance(name, str) for name in (*keys, *names))
        and all(type(label) is int and label >= 0 for label in labels)
        and all(isinstance(s, list) and [type(n) for n in s] == [int, int] for s in spans)
    )
