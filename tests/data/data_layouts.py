"""Tiny data sets in the layouts that people have on disk."""

from __future__ import annotations

import gzip
import io
import os
import pickle
import struct
import tarfile
from pathlib import Path

import numpy as np
from PIL import Image

REAL_DATA = os.environ.get("SFUMATO_DATA", "")
"""Read before the tests take the variable away."""

IDX_PARTS = (("train", 30), ("t10k", 10))


def write_idx(folder: Path, *, zipped: bool = False, seed: int = 0) -> dict[str, np.ndarray]:
    folder.mkdir(parents=True)
    random = np.random.default_rng(seed)
    written = {}
    for prefix, n in IDX_PARTS:
        images = random.integers(0, 256, (n, 28, 28), dtype=np.uint8)
        labels = (np.arange(n) % 10).astype(np.uint8)
        for kind, magic, array in (("images-idx3", 2051, images), ("labels-idx1", 2049, labels)):
            raw = struct.pack(f">I{array.ndim}I", magic, *array.shape) + array.tobytes()
            name = f"{prefix}-{kind}-ubyte"
            path = folder / (name + ".gz" if zipped else name)
            path.write_bytes(gzip.compress(raw) if zipped else raw)
            written[name] = array
    return written


def write_cifar(
    folder: Path, name: str, *, protocol: int = 4, keys: type = bytes, seed: int = 0
) -> np.ndarray:
    """Returns the training images."""
    folder.mkdir(parents=True)
    random = np.random.default_rng(seed)
    labels_key, names_key, classes, files = {
        "cifar10": ("labels", "label_names", 10, [f"data_batch_{k}" for k in range(1, 6)]),
        "cifar100": ("fine_labels", "fine_label_names", 100, ["train"]),
    }[name]
    test, meta = ("test_batch", "batches.meta") if name == "cifar10" else ("test", "meta")

    def key(text: str) -> object:
        return text.encode() if keys is bytes else text

    def dump(file: str, content: dict) -> None:
        (folder / file).write_bytes(pickle.dumps(content, protocol=protocol))

    train = []
    for file in [*files, test]:
        data = random.integers(0, 256, (20, 3072), dtype=np.uint8)
        labels = [k % classes for k in range(20)]
        dump(file, {key("data"): data, key(labels_key): labels, key("batch_label"): key(file)})
        train += [data] if file != test else []
    dump(meta, {key(names_key): [key(f"class-{k}") for k in range(classes)]})
    return np.concatenate(train).reshape(-1, 3, 32, 32)


def write_image(
    path: Path, *, mode: str = "RGB", size: tuple[int, int] = (12, 10), seed: int = 0, **save
) -> np.ndarray:
    """A random image of (height, width); returns its pixels."""
    path.parent.mkdir(parents=True, exist_ok=True)
    random = np.random.default_rng(seed)
    shape = size if mode == "L" else (*size, len(mode))
    pixels = random.integers(0, 256, shape, dtype=np.uint8)
    Image.fromarray(pixels, mode=None).save(path, **save)
    return pixels


def write_folder(
    root: Path, classes: dict[str, int], *, mode: str = "RGB", size: tuple[int, int] = (12, 10)
) -> Path:
    seed = 0
    for name, count in classes.items():
        for k in range(count):
            write_image(root / name / f"{k:03d}.png", mode=mode, size=size, seed=seed)
            seed += 1
    return root


def write_tiny_imagenet(root: Path) -> None:
    for wnid in ("n2", "n1"):
        for k in range(3):
            write_image(
                root / "train" / wnid / "images" / f"{wnid}_{k}.JPEG", size=(64, 64), seed=k
            )
    lines = []
    for k in range(4):
        write_image(root / "val" / "images" / f"val_{k}.JPEG", size=(64, 64), seed=k)
        lines.append(f"val_{k}.JPEG\t{('n1', 'n2')[k % 2]}\t0\t0\t9\t9\n")
    (root / "val" / "val_annotations.txt").write_text("".join(lines))
    (root / "wnids.txt").write_text("n2\nn1\n")
    (root / "words.txt").write_text("n1\tcat, house cat\nn2\tdog\nn3\tcow\n")
    write_image(root / "test" / "images" / "test_0.JPEG", size=(64, 64))


def image_bytes(seed: int, *, mode: str = "RGB", size: tuple[int, int] = (12, 10)) -> bytes:
    """A random PNG file of (height, width)."""
    random = np.random.default_rng(seed)
    shape = size if mode == "L" else (*size, len(mode))
    file = io.BytesIO()
    Image.fromarray(random.integers(0, 256, shape, dtype=np.uint8)).save(file, "PNG")
    return file.getvalue()


def write_tar(path: Path, members: dict[str, bytes], **options) -> Path:
    """A tar file with these members, in their order."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with tarfile.open(path, "w", **options) as shard:
        for name, content in members.items():
            member = tarfile.TarInfo(name)
            member.size = len(content)
            shard.addfile(member, io.BytesIO(content))
    return path


def write_shards(
    root: Path, count: int, *, prefix: str = "shard", per_shard: int = 7, classes: int = 3, **image
) -> Path:
    """Shards as WebDataset writes them: ``KEY.png`` and ``KEY.cls``, image k of class k mod n."""
    for start in range(0, count, per_shard):
        members = {}
        for k in range(start, min(start + per_shard, count)):
            members[f"{k:05d}.png"] = image_bytes(k, **image)
            members[f"{k:05d}.cls"] = f"{k % classes}\n".encode()
        write_tar(root / f"{prefix}-{start // per_shard:06d}.tar", members)
    return root
