"""Decoding of many images: processes, work that is interrupted, full disks, little memory."""

from __future__ import annotations

import errno
import json
import os
import signal
import stat
import subprocess
import sys
import tracemalloc
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from data_layouts import write_folder, write_image, write_shards

import sfumato
from sfumato.data import cache as caches
from sfumato.data import decoding, load, locate, worker, workers
from sfumato.data.folder import images_below, list_folder
from sfumato.data.listing import _divide
from sfumato.data.packed_names import PackedNames
from sfumato.errors import UserError
from sfumato.io import json_lines


@pytest.fixture
def small_blocks(monkeypatch):
    monkeypatch.setattr("sfumato.data.image_files.BLOCK", 4)
    monkeypatch.setattr(workers, "cores", lambda: 2)
    monkeypatch.setattr(decoding, "cores", lambda: 2)


def contents(dataset):
    return [(p.images.tobytes(), p.labels.tobytes()) for p in dataset.parts().values()]


@pytest.mark.parametrize("layout", ["folder", "shards"])
def test_processes_decode_the_same(tmp_path, monkeypatch, small_blocks, layout):
    if layout == "folder":
        write_folder(tmp_path, {"cat": 15, "dog": 15})
    else:
        write_shards(tmp_path, 30)
    expected = load(tmp_path, cache=False, validation=0.2)
    monkeypatch.setattr(decoding, "_WORTH_PROCESSES", 0)
    monkeypatch.setattr("sfumato.data.shards._WORTH_PROCESSES", 0)
    monkeypatch.setattr(worker, "work", None)  # Not in this process.
    assert contents(load(tmp_path, validation=0.2)) == contents(expected)


def test_processes_pass_errors_on(tmp_path, small_blocks, monkeypatch):
    monkeypatch.setattr(decoding, "_WORTH_PROCESSES", 0)
    root = write_folder(tmp_path / "data", {"cat": 9, "dog": 9})
    (root / "cat" / "003.png").write_text("no image")
    with pytest.raises(UserError, match=r"cat/003\.png cannot be read \(not an image"):
        load(root)
    with workers.processes() as call:
        with pytest.raises(UserError, match=r"x\.tar cannot be read \(No such file"):
            call({"shard": str(tmp_path / "x.tar")})
        job = {"block": ["", [], [], []], "form": [[2, 2], 3, 16, None], "offset": 0}
        with pytest.raises(FileNotFoundError):
            call({**job, "target": str(tmp_path / "missing")})


def test_a_process_that_is_killed_is_a_sentence(monkeypatch):
    real = workers._start

    def start():
        process = real()
        process.kill()
        process.wait()
        return process

    monkeypatch.setattr(workers, "_start", start)
    with workers.processes() as call, pytest.raises(UserError, match=r"status -9\).*are kept"):
        call({"shard": "x.tar"})


def test_workers_do_not_import_from_the_present_folder(tmp_path, monkeypatch):
    (tmp_path / "numpy.py").write_text("raise SystemExit('imported')")
    monkeypatch.chdir(tmp_path)
    write_shards(tmp_path / "data", 6)
    with workers.processes() as call:
        assert len(call({"shard": str(tmp_path / "data" / "shard-000000.tar")})["keys"]) == 6


def test_answers_come_for_all_jobs_and_errors_are_raised():
    assert sorted(workers.spread(range(50), lambda k: k * k, 3)) == [(k, k * k) for k in range(50)]

    def failing(k):
        if k == 7:
            raise OSError(errno.EIO, "broken")
        return k

    with pytest.raises(OSError, match="broken"):
        list(workers.spread(range(50), failing, 3))


class Stopped(Exception):
    """The moment at which work is interrupted."""


@pytest.mark.parametrize("skip", [False, True])
def test_interrupted_work_goes_on(tmp_path, monkeypatch, cache, small_blocks, skip):
    root = write_folder(tmp_path, {"cat": 20, "dog": 20})
    if skip:
        (root / "dog" / "001.png").write_text("no image")
    expected = load(root, cache=False, skip_unreadable=skip)
    monkeypatch.setattr(decoding, "cores", lambda: 1)
    done = []
    real = worker.work

    def work(job):
        if len(done) == 6:
            raise Stopped
        done.append(tuple(job["block"].rows))
        return real(job)

    monkeypatch.setattr(worker, "work", work)
    with pytest.raises(Stopped):
        load(root, skip_unreadable=skip)
    files = list((cache / "decoded").iterdir())
    assert sorted(path.suffix for path in files) == [".journal", ".partial"]
    assert all(stat.S_IMODE(path.stat().st_mode) == 0o600 for path in files)
    assert len(json_lines.read(next((cache / "decoded").glob("*.journal")))) >= 1 + 5

    def go_on(job):
        done.append(tuple(job["block"].rows))
        return real(job)

    monkeypatch.setattr(worker, "work", go_on)
    found = load(root, skip_unreadable=skip)
    assert contents(found) == contents(expected) and found.notes == expected.notes
    assert found.skipped == expected.skipped
    assert len(set(done)) == 10 and len(done) <= 11, "but for one that was on its way"
    assert sorted(path.suffix for path in (cache / "decoded").iterdir()) == [".json", ".npy"]


@pytest.mark.parametrize("change", ["image", "journal", "shorter"])
def test_work_of_before_is_not_used_if_anything_changed(
    tmp_path, monkeypatch, cache, small_blocks, change
):
    root = write_folder(tmp_path, {"cat": 20, "dog": 20})
    real = caches.Unfinished.finish

    def stop(*_):
        raise Stopped

    monkeypatch.setattr(caches.Unfinished, "finish", stop)
    with pytest.raises(Stopped):
        load(root)
    monkeypatch.setattr(caches.Unfinished, "finish", real)
    (journal,) = (cache / "decoded").glob("*.journal")
    partial = journal.with_suffix(".partial")
    if change == "image":
        write_image(root / "cat" / "000.png", seed=999)
        os.utime(root / "cat" / "000.png", (1, 1))
    elif change == "journal":
        lines = journal.read_text().splitlines()
        journal.write_text("\n".join([*lines[:3], '{"block": 3, "se']))
        named = {json.loads(line)["block"] for line in lines[1:3]}
        with open(partial, "r+b") as file:
            for number in set(range(10)) - named:  # These rows may be anything.
                file.seek(caches.HEADER_BYTES + number * 4 * 360)
                file.write(b"\x07" * 4 * 360)
    else:
        os.truncate(partial, partial.stat().st_size - 1)
    assert contents(load(root)) == contents(load(root, cache=False))
    assert len(list((cache / "decoded").iterdir())) == 2, "nothing of before is left"


def test_rows_that_were_moved_are_not_taken_for_work_of_before(tmp_path, monkeypatch, cache):
    root = write_folder(tmp_path, {"cat": 9, "dog": 9})
    (root / "cat" / "001.png").write_text("no image")
    expected = load(root, cache=False, skip_unreadable=True)

    def killed(rows, kept):
        rows[:] = 0
        raise Stopped

    with monkeypatch.context() as patch:
        patch.setattr(caches, "moved_together", killed)
        with pytest.raises(Stopped):
            load(root, skip_unreadable=True)
    assert contents(load(root, skip_unreadable=True)) == contents(expected)


@pytest.mark.parametrize("later", ["size", "colour"])
def test_a_wrong_guess_from_the_first_images_is_corrected(tmp_path, small_blocks, cache, later):
    root = write_folder(tmp_path, {"cat": 9, "dog": 9}, mode="L")
    if later == "size":
        write_image(root / "dog" / "zzz.png", mode="L", size=(30, 9))
    else:
        write_image(root / "dog" / "zzz.png", mode="RGB")
    found = load(root, split_seed=1)
    assert found.train.images.shape[1:] == ((1, 64, 64) if later == "size" else (3, 12, 10))
    assert contents(found) == contents(load(root, split_seed=1, cache=False))
    assert sorted(path.suffix for path in (cache / "decoded").iterdir()) == [".json", ".npy"]


def test_a_cache_without_room_is_a_sentence(tmp_path, monkeypatch, cache):
    root = write_folder(tmp_path, {"cat": 9, "dog": 9})
    monkeypatch.setattr("shutil.disk_usage", lambda path: SimpleNamespace(free=1000))
    notes = load(root).notes
    assert any("No space left" in note and "SFUMATO_CACHE" in note for note in notes)
    monkeypatch.setenv("SFUMATO_MAX_GIB", "0.000001")
    with pytest.raises(UserError) as refused:
        load(root)
    for words in ("6.3 KiB", str(cache), "data forget", "SFUMATO_CACHE=FOLDER", "SFUMATO_MAX_GIB"):
        assert words in str(refused.value)
    assert not list((cache / "decoded").iterdir())


def test_a_disk_that_fills_up_meanwhile(tmp_path, monkeypatch, cache):
    root = write_folder(tmp_path, {"cat": 9, "dog": 9})
    expected = load(root, cache=False)

    def full(job):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(worker, "work", full)
    assert contents(load(root)) == contents(expected)
    assert not list((cache / "decoded").iterdir())


def test_the_size_is_said_before_it_is_written(tmp_path, monkeypatch, capsys):
    root = write_folder(tmp_path, {"cat": 9, "dog": 9})
    monkeypatch.setattr(decoding, "_WORTH_WORDS", 0)
    load(root)
    assert "Decoding 18 images to 6.3 KiB in " in capsys.readouterr().err


def test_two_processes_decode_once(tmp_path, monkeypatch, cache, capsys):
    """The second one waits for the first, and finds what it has decoded."""
    root = write_folder(tmp_path / "data", {"cat": 5, "dog": 5})
    expected = load(root, cache=False)
    program = (
        "import sys, time; from pathlib import Path; from sfumato.data import cache, load, locate\n"
        "locate.cache_folder = lambda: Path(sys.argv[2])\n"
        "real = cache.Unfinished.finish\n"
        "def finish(*a):\n    print('there', flush=True); time.sleep(1); return real(*a)\n"
        "cache.Unfinished.finish = finish\n"
        "load(sys.argv[1])\n"
    )
    path = str(Path(sfumato.__file__).parents[1])
    with subprocess.Popen(
        [sys.executable, "-c", program, str(root), str(cache)],
        stdout=subprocess.PIPE, env={**os.environ, "PYTHONPATH": path},
    ) as other:  # fmt: skip
        assert other.stdout.readline() == b"there\n"
        monkeypatch.setattr(worker, "work", None)
        assert contents(load(root)) == contents(expected)
        assert "Waiting for another process" in capsys.readouterr().err
    assert other.returncode == 0


def test_a_killed_preparation_is_no_data_and_goes_on(tmp_path, cache, small_blocks):
    root = write_folder(tmp_path / "data", {"cat": 12, "dog": 12})
    program = (
        "import sys, os, signal; from pathlib import Path\n"
        "from sfumato.data import cache, image_files, load, locate, worker\n"
        "locate.cache_folder = lambda: Path(sys.argv[2])\n"
        "image_files.BLOCK, cache._BETWEEN_SYNCS = 4, 0\n"
        "real = cache.Unfinished.record\n"
        "def record(self, block, seen):\n"
        "    real(self, block, seen)\n"
        "    if block == 3: os.kill(os.getpid(), signal.SIGKILL)\n"
        "cache.Unfinished.record = record\n"
        "load(sys.argv[1])\n"
    )
    path = str(Path(sfumato.__file__).parents[1])
    ended = subprocess.run(
        [sys.executable, "-c", program, str(root), str(cache)],
        env={**os.environ, "PYTHONPATH": path}, check=False,
    )  # fmt: skip
    assert ended.returncode == -signal.SIGKILL
    (journal,) = (cache / "decoded").glob("*.journal")
    assert len(journal.read_text().splitlines()) >= 3
    assert not list((cache / "decoded").glob("*.npy"))
    assert contents(load(root)) == contents(load(root, cache=False))


def test_another_folder_for_the_cache(tmp_path, monkeypatch):
    monkeypatch.undo()
    monkeypatch.setenv("SFUMATO_CACHE", str(tmp_path / "here"))
    assert locate.cache_folder() == tmp_path / "here"
    load(write_folder(tmp_path / "data", {"cat": 5, "dog": 5}))
    assert len(list((tmp_path / "here" / "decoded").iterdir())) == 2


def test_files_come_in_the_order_of_their_paths(tmp_path):
    """Runs of before are resumed, so the order of their images must not change."""
    for name in ("a/b.png", "a.png", "a-b.png", "a/B/c.png", "a/a.png", "ab/x.png", "A/z.png"):
        write_image(tmp_path / "cat" / name)
    found = images_below(tmp_path)
    assert found == sorted(tmp_path.rglob("*.png")) and len(found) == 7


def test_packed_names():
    names = ["", "a", "größe/\udcff.png", "x" * 300]
    packed = PackedNames(names)
    assert list(packed) == names and len(packed) == 4 and packed[2] == names[2]
    assert list(packed.at(np.array([3, 0, 3]))) == [names[3], "", names[3]]
    assert list(PackedNames.joined([packed, PackedNames(), packed])) == names * 2
    for wrong in (4, -1):
        with pytest.raises(IndexError):
            packed[wrong]


@pytest.mark.parametrize("rule", ["independent", "stratified"])
def test_a_listing_takes_few_bytes_for_each_image(tmp_path, rule):
    """Names of 17 bytes: they, eight bytes more, label, positions; not a string for each."""
    count, classes = 10_000, 20
    for label in range(classes):
        (tmp_path / f"class-{label:02d}").mkdir()
        for number in range(count // classes):
            os.mknod(tmp_path / f"class-{label:02d}" / f"{number:04d}.png")
    tracemalloc.start()
    try:
        listing = _divide(list_folder(tmp_path), 0.1, 0.2, 0, rule)
        held, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert len(listing.train) + len(listing.validation) + len(listing.test) == count
    assert held / count < 64 and peak / count < 160, (held / count, peak / count)
