"""Files that claim, or unpack to, far more than they hold."""

from __future__ import annotations

import gzip
import io
import resource
import struct
import subprocess
import sys
import zipfile
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from sfumato.data import load
from sfumato.data.decode import UnreadableError, decode
from sfumato.data.idx import read_idx
from sfumato.errors import UserError


def header(shape: tuple[int, ...], dtype: str = "|u1") -> bytes:
    """The beginning of an .npy file."""
    buffer = io.BytesIO()
    content = {"descr": dtype, "fortran_order": False, "shape": shape}
    np.lib.format.write_array_header_2_0(buffer, content)
    return buffer.getvalue()


def pack(path: Path, **members: tuple[bytes, int]) -> Path:
    """An .npz with members of these first bytes, and so many zeros after them."""
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED, compresslevel=9) as archive:
        for name, (first, zeros) in members.items():
            with archive.open(f"{name}.npy", "w", force_zip64=True) as file:
                file.write(first)
                block = bytes(1 << 24)
                for at in range(0, zeros, len(block)):
                    file.write(block[: zeros - at])
    return path


def labels(count: int) -> tuple[bytes, int]:
    return header((count,), "|u1") + bytes([0, 1]) * (count // 2), 0


@pytest.mark.parametrize("shape", [(2**20, 1024, 1024), (2**62, 4, 4), (10**30, 8, 8)])
def test_an_npz_that_claims_a_tebibyte(tmp_path: Path, shape: tuple[int, ...]) -> None:
    path = pack(tmp_path / "scans.npz", images=(header(shape), 64), labels=labels(4))
    with pytest.raises(UserError, match=r"holds fewer values than its header says|limit is 4 GiB"):
        load(str(path))


def test_a_small_npz_that_unpacks_to_gigabytes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With a limit of a sixteenth of a GiB, so that the test itself stays small."""
    monkeypatch.setenv("SFUMATO_MAX_GIB", "0.0625")
    count = 2**27 // (64 * 64)
    path = pack(
        tmp_path / "scans.npz", images=(header((count, 64, 64)), 2**27), labels=labels(count)
    )
    assert path.stat().st_size < 2**20
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with pytest.raises(UserError, match=r"to 128\.\d MiB of memory.*limit is 0\.0625 GiB"):
        load(str(path))
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 32 * 1024
    monkeypatch.setenv("SFUMATO_MAX_GIB", "1")
    found = load(str(path))
    assert len(found.train) + len(found.test) == count


def test_a_single_array_in_place_of_an_npz(tmp_path: Path) -> None:
    path = tmp_path / "scans.npz"
    path.write_bytes(header((2**40,)) + bytes(8))
    with pytest.raises(UserError, match="single array"):
        load(str(path))


def test_a_header_that_is_itself_a_bomb(tmp_path: Path) -> None:
    first = b"\x93NUMPY\x02\x00" + struct.pack("<I", 2**32 - 1)
    path = pack(tmp_path / "scans.npz", images=(first, 2**24), labels=labels(4))
    with pytest.raises(UserError, match=r"not an \.npz file of arrays"):
        load(str(path))


def test_a_limit_that_is_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SFUMATO_MAX_GIB", "much")
    path = pack(tmp_path / "scans.npz", images=(header((4, 8, 8)), 256), labels=labels(4))
    with pytest.raises(UserError, match="SFUMATO_MAX_GIB is a number of GiB"):
        load(str(path))


@pytest.mark.parametrize("packed", [False, True])
def test_an_idx_file_that_claims_a_tebibyte(tmp_path: Path, packed: bool) -> None:
    raw = bytes((0, 0, 8, 3)) + struct.pack(">3I", 2**20, 1024, 1024) + bytes(100)
    path = tmp_path / ("images.gz" if packed else "images")
    path.write_bytes(gzip.compress(raw) if packed else raw)
    with pytest.raises(UserError, match=r"limit is 4 GiB|is damaged"):
        read_idx(path, dimensions=3)


def test_a_packed_idx_file_that_goes_on(tmp_path: Path) -> None:
    path = tmp_path / "images.gz"
    path.write_bytes(gzip.compress(bytes((0, 0, 8, 1)) + struct.pack(">I", 10) + bytes(2**28), 9))
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with pytest.raises(UserError, match="is damaged"):
        read_idx(path, dimensions=1)
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 64 * 1024


def test_an_image_of_too_many_pixels(tmp_path: Path) -> None:
    path = tmp_path / "bomb.png"
    Image.new("1", (20_000, 20_000)).save(path)
    with pytest.raises(UnreadableError, match="scale it down"):
        decode(path, size=(8, 8), channels=1, bits=8)


def test_a_long_narrow_image_is_not_scaled_up(tmp_path: Path) -> None:
    path = tmp_path / "line.png"
    Image.new("L", (1_000_000, 1)).save(path)
    with pytest.raises(UnreadableError, match="long and narrow"):
        decode(path, size=(64, 64), channels=1, bits=8)


@pytest.mark.slow
def test_memory_that_is_not_there_is_a_sentence(tmp_path: Path) -> None:
    code = (
        f"import sys; sys.path[:] = {sys.path}\n"
        "from sfumato import cli; from sfumato.io import new_file\n"
        "def fail(*_, **__): bytearray(1 << 62)\n"
        "new_file.check = fail; sys.argv = ['sfumato', 'report', '.']; cli.main()"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, cwd=tmp_path
    )
    assert done.returncode == 2 and "Traceback" not in done.stderr, done.stderr
    assert "memory" in done.stderr
