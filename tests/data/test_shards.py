"""Data sets in tar shards: labels, parts, patterns, and what is wrong with them."""

from __future__ import annotations

import io
import json
import os
import tarfile
from pathlib import Path

import numpy as np
import pytest
from data_layouts import image_bytes, write_shards, write_tar
from PIL import Image

from sfumato.data import decode_block, load, shards, worker
from sfumato.data.cache import forget
from sfumato.errors import UserError
from sfumato.recipes.choice import choose


def pixels(seed: int, **options) -> np.ndarray:
    image = np.asarray(Image.open(io.BytesIO(image_bytes(seed, **options))))
    return image.transpose(2, 0, 1)


def check(dataset, count: int, classes: int = 3) -> None:
    """Every image is there once, with its pixels and its label."""
    known = {pixels(k).tobytes(): k for k in range(count)}
    seen = []
    for part in dataset.parts().values():
        for image, label in zip(part.images, part.labels, strict=True):
            seen.append(known[image.tobytes()])
            assert label == seen[-1] % classes
    assert sorted(seen) == list(range(count))


@pytest.mark.parametrize("cache", [True, False])
def test_images_and_labels(tmp_path, cache):
    root = write_shards(tmp_path / "data", 40)
    found = load(root, cache=cache, validation=0.2)
    assert (found.name, found.classes, found.size) == ("data", ("0", "1", "2"), (12, 10))
    assert len(found.test) and len(found.validation)
    check(found, 40)
    assert isinstance(found.train.images, np.memmap) == cache


def test_the_second_start_decodes_nothing(tmp_path, monkeypatch):
    root = write_shards(tmp_path / "data", 20)
    first = load(root)
    monkeypatch.setattr(decode_block, "read", None)
    assert load(root).fingerprint() == first.fingerprint()


def test_parts_by_folder_and_by_name(tmp_path):
    for part, count in (("train", 20), ("val", 5), ("test", 6)):
        write_shards(tmp_path / "folders" / part, count)
        write_shards(tmp_path / "names", count, prefix=f"pets-{part}")
    for name in ("folders", "names"):
        found = load(tmp_path / name)
        lengths = (len(found.train), len(found.validation), len(found.test))
        assert lengths == (20, 5, 6)
    pattern = f"{tmp_path}/names/pets-train-{{000000..000002}}.tar::{tmp_path}/folders/val"
    with pytest.raises(UserError, match=r"1 of the 4 shards .* do not exist"):
        load(pattern)
    found = load(pattern + "/../../names/pets-val-000000.tar")
    assert (len(found.train), len(found.test)) == (20, 5)
    assert any("those for validation are the test set" in note for note in found.notes)


def test_one_file_and_patterns(tmp_path):
    write_shards(tmp_path, 20)
    assert len(load(tmp_path / "shard-000001.tar", split_rule="stratified").train) == 4
    check(load(f"{tmp_path}/shard-{{000000..000002}}.tar"), 20)
    check(load(f"{tmp_path}/{{shard}}-00000{{0,1,2}}.tar"), 20)
    with pytest.raises(UserError, match=r"more than once"):
        load(f"{tmp_path}/shard-00000{{0,0}}.tar")
    with pytest.raises(UserError, match=r"\{000002\.\.000000\} .* is no range"):
        load(f"{tmp_path}/shard-{{000002..000000}}.tar")
    with pytest.raises(UserError, match=r"2 of the 5 shards .*shard-000003\.tar'"):
        load(f"{tmp_path}/shard-{{000000..000004}}.tar")


def test_the_command_takes_shards_for_data(tmp_path):
    pattern = f"{tmp_path}/train-{{000..001}}.tar"
    assert choose(pattern, None, {}).data.name == pattern


def test_labels_in_json_and_names(tmp_path):
    members = {}
    for k in range(12):
        members[f"{k}.png"] = image_bytes(k)
        members[f"{k}.json"] = json.dumps({"url": "x", "label": ("cat", "dog")[k % 2]}).encode()
        members[f"{k}.txt"] = b"a caption"
    write_tar(tmp_path / "a.tar", members)
    found = load(tmp_path)
    assert found.classes == ("cat", "dog")
    check(found, 12, classes=2)
    assert any("Ignored: 12 × .txt" in note for note in found.notes)
    (tmp_path / "classes.txt").write_text("dog\ncat\n")
    turned = load(tmp_path)
    assert turned.classes == ("dog", "cat")
    assert np.array_equal(turned.train.labels, 1 - found.train.labels)
    (tmp_path / "classes.txt").write_text("dog\nemu\n")
    with pytest.raises(UserError, match=r"'cat' .* not in .*classes\.txt"):
        load(tmp_path)


def test_a_label_file_wins_over_json(tmp_path):
    members = {}
    for k in range(6):
        members |= {f"{k}.json": b'{"width": 3}', f"{k}.png": image_bytes(k)}
        members |= {f"{k}.mask.png": image_bytes(99), f"{k}.cls": str(k % 2).encode()}
    write_tar(tmp_path / "a.tar", members)
    check(load(tmp_path), 6, classes=2)


def test_image_folders_in_tar_files(tmp_path):
    for part in range(2):
        names = {
            f"./pets/{('cat', 'dog')[k % 2]}/v1.{k}.png": image_bytes(k)
            for k in range(6 * part, 6 * part + 6)
        }
        write_tar(tmp_path / f"{part}.tar", names | {"./pets/cat/.DS_Store": b"x"})
    found = load(tmp_path)
    assert found.classes == ("cat", "dog")
    check(found, 12, classes=2)


def test_the_split_depends_on_keys_alone(tmp_path):
    """An image stays in its part when others go, and when images are put into other shards."""
    whole = load(write_shards(tmp_path / "a", 60))
    other = load(write_shards(tmp_path / "b", 60, per_shard=11))
    fewer = load(write_shards(tmp_path / "c", 48))
    held = {image.tobytes() for image in whole.test.images}
    assert held == {image.tobytes() for image in other.test.images}
    kept = {pixels(k).tobytes() for k in range(48)}
    assert held & kept == {image.tobytes() for image in fewer.test.images}


def test_class_names_beside_the_shards(tmp_path):
    write_shards(tmp_path / "train", 12)
    (tmp_path / "classnames.txt").write_text("ant\nbee\ncat\ndog\n")
    assert load(tmp_path).classes == ("ant", "bee", "cat", "dog")
    (tmp_path / "classnames.txt").write_text("ant\nbee\n")
    with pytest.raises(UserError, match=r"class 2, but .*classnames\.txt names 2 classes"):
        load(tmp_path)


def test_unreadable_images_are_named_and_may_be_left_out(tmp_path):
    members = {}
    for k in range(20):
        members |= {f"{k}.png": image_bytes(k), f"{k}.cls": str(k % 2).encode()}
    members["7.png"] = members["7.png"][:60]
    path = write_tar(tmp_path / "a.tar", members)
    with pytest.raises(UserError, match=rf"The image '7' in {path} cannot be read .*--skip"):
        load(tmp_path)
    for _ in range(2):  # the second time from the cache
        found = load(tmp_path, skip_unreadable=True)
        assert found.skipped == (f"'7' in {path}",)
        images = np.concatenate([found.train.images, found.test.images])
        expected = {pixels(k).tobytes() for k in range(20) if k != 7}
        assert {image.tobytes() for image in images} == expected


def good(k: int) -> dict[str, bytes]:
    return {f"{k}.png": image_bytes(k), f"{k}.cls": str(k % 2).encode()}


@pytest.mark.parametrize(
    ("members", "words"),
    [
        ({"5.png": b"x"}, r"image '5\.png' in .*a\.tar has no label: add '5\.cls'"),
        ({"5.cls": b"1"}, r"label of '5' in .*a\.tar has no image"),
        ({"5.png": b"x", "5.jpg": b"x", "5.cls": b"1"}, r"key '5' is twice in .*a\.tar"),
        ({"5.png": b"x", "5.cls": b"cat"}, r"'5\.cls' in .*a\.tar is 'cat': .* number of a class"),
        ({"5.png": b"x", "5.cls": b"-1"}, r"'5\.cls' in .* is '-1'"),
        ({"5.png": b"x", "5.cls": b"100000"}, r"from 0 to 99999"),
        ({"5.png": b"x", "5.json": b"{}"}, r"'5\.json' in .* holds no label"),
        ({"5.png": b"x", "5.json": b'{"label": true}'}, r"is 'True'"),
        ({"5.png": b"x", "5.json": b'{"label": "cat"}'}, r"class numbers and class names"),
        ({"5.png": b"x", "5.cls": bytes(1 << 21)}, r"'5\.cls' in .* has 2\.0 MiB"),
    ],
)
def test_shards_that_cannot_be_used(tmp_path, members, words):
    write_tar(tmp_path / "a.tar", {**good(0), **good(1), **members})
    with pytest.raises(UserError, match=words):
        load(tmp_path)


def test_data_sets_that_cannot_be_used(tmp_path):
    def refused(name, words, **shard):
        for file, members in shard.items():
            write_tar(tmp_path / name / f"{file.replace('_', '-')}.tar", members)
        with pytest.raises(UserError, match=words):
            load(tmp_path / name)

    both = {**good(0), **good(1)}
    refused(
        "a", r"key '1' is in .*0\.tar and in .*1\.tar: .*remove the copy", x_0=both, x_1=good(1)
    )
    refused("b", "only one class, '0'", x=good(0))
    refused("c", "hold no images", x={"readme.txt": b""})
    refused("d", r"several kinds \(folders, numbers\)", x=both, y={"cat/1.png": b"x"})
    refused("e", "name a part .* such as x-0.tar, do not", train_0=both, x_0=good(2))
    refused("f", "test but none for training", test_0=both)
    refused("g", "test shards hold classes that those for training lack: '2'", train_0=both,
            test_0={"9.png": image_bytes(9), "9.cls": b"2"})  # fmt: skip
    refused("h", "test shards .* hold no images", train_0=both, test_0={})
    refused("i", "no label: .*give each class a folder", x={"1.png": b"x"})
    write_tar(tmp_path / "f" / "train" / "x.tar", both)
    refused("f", "shards beside the folders train: move 'test-0.tar'")


def test_the_same_keys_in_train_and_test_are_two_images(tmp_path):
    write_shards(tmp_path, 10, prefix="train")
    write_shards(tmp_path, 10, prefix="test")
    assert len(load(tmp_path).train) == len(load(tmp_path).test) == 10


def test_a_tar_file_beside_class_folders_is_no_shard(tmp_path):
    from data_layouts import write_folder

    write_folder(tmp_path, {"cat": 5, "dog": 5})
    write_tar(tmp_path / "backup.tar", {"a": b""})
    assert not shards.holds_shards(tmp_path)
    assert any("1 × .tar" in note for note in load(tmp_path).notes)


def indexed(monkeypatch) -> list[str]:
    """The names of the shards whose headers are read from now on."""
    seen: list[str] = []
    whole = worker.index_shard

    def counted(path):
        seen.append(Path(path).name)
        return whole(path)

    monkeypatch.setattr(worker, "index_shard", counted)
    return seen


def test_the_second_start_reads_no_headers(tmp_path, monkeypatch, cache):
    root = write_shards(tmp_path / "data", 20)
    names = sorted(path.name for path in root.glob("*.tar"))
    seen = indexed(monkeypatch)
    first = load(root)
    assert sorted(seen) == names
    kept = sorted((cache / "decoded").glob("*.index"))
    assert len(kept) == len(names) and all(path.stat().st_mode & 0o077 == 0 for path in kept)
    seen.clear()
    again = load(root)
    assert not seen
    assert again.fingerprint() == first.fingerprint() and again.classes == first.classes
    assert again.notes == first.notes
    load(root, cache=False)
    assert sorted(seen) == names, "nothing of the cache is used where none is wanted"


def test_a_changed_shard_is_seen(tmp_path, monkeypatch, cache):
    """Other labels, in a shard of the same name and size: it alone is read again."""
    root = write_shards(tmp_path / "data", 20)
    before = load(root)
    shard = sorted(root.glob("*.tar"))[1]
    content, status = shard.read_bytes(), shard.stat()
    with tarfile.open(shard) as file:
        label = next(m for m in file.getmembers() if m.name.endswith(".cls"))
    shard.write_bytes(
        content[: label.offset_data] + b"2" + content[label.offset_data + 1 :]
        if content[label.offset_data : label.offset_data + 1] != b"2"
        else content[: label.offset_data] + b"1" + content[label.offset_data + 1 :]
    )
    os.utime(shard, ns=(status.st_atime_ns, status.st_mtime_ns + 1))
    assert shard.stat().st_size == status.st_size
    seen = indexed(monkeypatch)
    after = load(root)
    assert seen == [shard.name]
    assert after.fingerprint() != before.fingerprint()
    assert len(list((cache / "decoded").glob("*.index"))) == len(list(root.glob("*.tar")))
    assert load(root).fingerprint() == after.fingerprint() and seen == [shard.name]


@pytest.mark.parametrize(
    "content", [b"", b"null", b"{}", b"[" * 10_000, b'{"source": "numbers", "keys": ["a"]}']
)
def test_a_damaged_index_is_made_again(tmp_path, monkeypatch, cache, content):
    root = write_shards(tmp_path / "data", 6)
    first = load(root)
    kept = sorted((cache / "decoded").glob("*.index"))
    whole = [path.read_bytes() for path in kept]
    kept[0].write_bytes(content)
    seen = indexed(monkeypatch)
    assert load(root).fingerprint() == first.fingerprint()
    assert len(seen) == 1 and [path.read_bytes() for path in kept] == whole


def test_labels_that_a_cut_index_lacks_are_not_taken(tmp_path, monkeypatch, cache):
    root = write_shards(tmp_path / "data", 6)
    first = load(root)
    kept = sorted((cache / "decoded").glob("*.index"))[0]
    index = json.loads(kept.read_text())
    kept.write_text(json.dumps(index | {"labels": index["labels"][:-1]}))
    assert load(root).fingerprint() == first.fingerprint()


def test_forgetting_removes_the_index(tmp_path, cache):
    load(write_shards(tmp_path / "data", 6))
    assert list((cache / "decoded").iterdir())
    assert forget(cache) > 0
    assert not list((cache / "decoded").glob("*.index"))
