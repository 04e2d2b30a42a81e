"""Memory and speed with many images: prepared and trained on by the real command.

    python benchmarks/large_folder.py [--images 1000000] [--layout folder] [--layout shards]

Generated JPEG files of 64×64 pixels in 1000 classes, as one folder per class or as tar shards, are
shown by `sfumato data show`, which decodes them, and trained on by `sfumato train` for 50 steps of
1024 images on the CPU. Twice a second the memory of all processes is added up, without pages of
files, which the system can drop at any time. Everything is written below --place, and removed.
"""

from __future__ import annotations

import argparse
import io
import os
import shutil
import subprocess
import sys
import tarfile
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import numpy as np
from PIL import Image

SIDE = 64
DISTINCT = 2000
IMAGES_IN_SHARD = 5000
BATCH = 1024
TRAIN = (
    *("--model", "tanh-cnn", "--epsilon", "8", "--delta", "1e-8", "--device", "cpu", "--seed", "0"),
    *("--set", "model.options.filters=2", "--set", f"training.batch={BATCH}"),
    *("--set", "training.views=1", "--set", "data.test_fraction=0.01"),
)


class Measured(NamedTuple):
    """What one command took."""

    seconds: float
    peak: int
    output: str


def encoded() -> list[bytes]:
    """Different images as JPEG files: smooth colours, drawn from a fixed seed."""
    random = np.random.default_rng(0)
    files = []
    for _ in range(DISTINCT):
        coarse = Image.fromarray(random.integers(0, 256, (8, 8, 3), dtype=np.uint8))
        file = io.BytesIO()
        coarse.resize((SIDE, SIDE), Image.Resampling.BICUBIC).save(file, "JPEG", quality=80)
        files.append(file.getvalue())
    return files


def write_folder(root: Path, images: int, classes: int) -> None:
    """One folder per class, as a user has them."""
    files = encoded()
    for label in range(classes):
        folder = root / f"class-{label:04d}"
        folder.mkdir(parents=True)
        for number in range(label, images, classes):
            with open(f"{folder}/{number:08d}.jpg", "wb", buffering=0) as file:
                file.write(files[number % DISTINCT])


def write_shards(root: Path, images: int, classes: int) -> None:
    """Tar files with KEY.jpg and KEY.cls, as WebDataset writes them."""
    root.mkdir(parents=True)
    files = encoded()
    for start in range(0, images, IMAGES_IN_SHARD):
        with tarfile.open(root / f"shard-{start // IMAGES_IN_SHARD:06d}.tar", "w") as shard:
            for number in range(start, min(start + IMAGES_IN_SHARD, images)):
                label = str(number % classes).encode()
                for ending, content in (("jpg", files[number % DISTINCT]), ("cls", label)):
                    member = tarfile.TarInfo(f"{number:08d}.{ending}")
                    member.size = len(content)
                    shard.addfile(member, io.BytesIO(content))


def tree(process: int) -> Iterator[int]:
    """A process and all that it started."""
    yield process
    for thread in Path(f"/proc/{process}/task").glob("*/children"):
        try:
            children = thread.read_text().split()
        except OSError:  # It has ended meanwhile.
            continue
        for child in children:
            yield from tree(int(child))


def private_bytes(process: int) -> int:
    """Memory of a process that is not backed by a file."""
    try:
        lines = Path(f"/proc/{process}/status").read_text().splitlines()
    except OSError:
        return 0
    found = [line.split()[1] for line in lines if line.startswith(("RssAnon:", "RssShmem:"))]
    return sum(1024 * int(kibibytes) for kibibytes in found)


def measured(arguments: list[str], cache: Path) -> Measured:
    """Run the command and measure it; its progress is shown."""
    began, peak = time.monotonic(), 0
    with tempfile.TemporaryFile("w+") as output:
        process = subprocess.Popen(
            [sys.executable, "-m", "sfumato", *arguments],
            stdout=output,
            env={**os.environ, "SFUMATO_CACHE": str(cache)},
        )
        while process.poll() is None:
            peak = max(peak, sum(private_bytes(each) for each in tree(process.pid)))
            time.sleep(0.5)
        output.seek(0)
        text = output.read()
    if process.returncode:
        raise SystemExit(f"sfumato {' '.join(arguments)} ended with {process.returncode}:\n{text}")
    return Measured(time.monotonic() - began, peak, text)


def run(layout: str, images: int, classes: int, steps: int, place: Path) -> None:
    """Generate the images, prepare them, start again, train, and print one row for each."""
    data, cache = place / layout, place / "cache"
    write = {"folder": write_folder, "shards": write_shards}[layout]
    began = time.monotonic()
    write(data, images, classes)
    print(f"{layout}: {images:,} images generated in {time.monotonic() - began:.0f} s", flush=True)
    show = ["data", "show", str(data), "--test-fraction", "0.01"]
    length = ["--set", f"training.steps={steps}", "--out", str(place / "run")]
    for name, arguments in (
        ("prepare", show),
        ("start again", show),
        (f"train {steps} steps", ["train", str(data), *TRAIN, *length]),
    ):
        took = measured(arguments, cache)
        speed = f"{images / took.seconds:,.0f}" if name == "prepare" else "–"
        cells = (layout, name, f"{took.seconds:.0f}", speed, f"{took.peak / 2**20:,.0f}")
        print(f"| {' | '.join(cells)} |", flush=True)
    size = sum(path.stat().st_size for path in (cache / "decoded").glob("*.npy"))
    print(f"{layout}: decoded file {size / 2**30:.2f} GiB", flush=True)


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    arguments.add_argument("--images", type=int, default=1_000_000)
    arguments.add_argument("--classes", type=int, default=1000)
    arguments.add_argument("--steps", type=int, default=50)
    arguments.add_argument("--layout", action="append", choices=["folder", "shards"])
    arguments.add_argument("--place", type=Path, help="a folder with room; a temporary one if none")
    a = arguments.parse_args()
    print(f"{os.cpu_count()} cores, {a.images:,} images\n")
    print("| layout | step | seconds | images/s | peak MiB without file pages |")
    print("|---|---|---|---|---|", flush=True)
    for layout in a.layout or ["folder", "shards"]:
        place = Path(tempfile.mkdtemp(prefix="large-", dir=a.place))
        try:
            run(layout, a.images, a.classes, a.steps, place)
        finally:
            shutil.rmtree(place)


if __name__ == "__main__":
    main()
