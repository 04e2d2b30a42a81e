"""A process that decodes blocks of images, or lists shards, for another: one JSON line per job.

It is started as ``python -m sfumato.data.worker`` and reads jobs from its input until that ends, so
it never outlives the process that started it. Unlike workers of `multiprocessing` it does not
import the user's program again, and nothing is unpickled.
"""

from __future__ import annotations

import json
import signal
import sys
from typing import Any

import numpy as np

from sfumato.data.decode_block import Form, decode_block
from sfumato.data.image_files import Block
from sfumato.data.imageset import Array
from sfumato.data.shard_index import index_shard
from sfumato.errors import UserError


def work(job: dict[str, Any]) -> dict[str, Any]:
    """Do one job, in this process or for another.

    Args:
        job: ``{"shard": path}`` to list a shard; else the fields of a block as ``block``, of a form
            as ``form``, the file to write to as ``target`` and the byte at which its first row
            begins as ``offset``.

    Raises:
        OSError: a file cannot be read or written.
        UserError: a shard cannot be used.
    """
    if "shard" in job:
        return index_shard(job["shard"]).to_json()
    form = Form.from_json(job["form"])
    length = int(np.prod(form.shape))
    with open(job["target"], "r+b", buffering=0) as target:

        def write(row: int, pixels: Array) -> None:
            target.seek(job["offset"] + row * length)
            rest = np.ascontiguousarray(pixels, dtype=np.uint8).data.cast("B")
            while rest:
                rest = rest[target.write(rest) :]

        return decode_block(Block(*job["block"]), form, write).to_json()


def main() -> None:
    """Do the jobs on the input, and write one line about each to the output."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the process that gives the jobs.
    for line in sys.stdin.buffer:
        answer: dict[str, Any]
        try:
            answer = {"done": work(json.loads(line))}
        except UserError as error:
            answer = {"refused": str(error)}
        except OSError as error:
            answer = {"failed": [error.errno, error.strerror or str(error)]}
        except MemoryError:
            answer = {"refused": "There is not enough memory to decode an image."}
        sys.stdout.write(json.dumps(answer) + "\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main()
