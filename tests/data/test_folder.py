"""A folder of images: modes, sizes, rotation, damage, parts, the cache."""

from __future__ import annotations

import os
import stat

import numpy as np
import pytest
from data_layouts import write_folder, write_image
from PIL import Image

from sfumato.data import decode_block, load
from sfumato.data.cache import forget
from sfumato.errors import UserError
from sfumato.recipes import for_data
from sfumato.training.recipe_data import dataset_of


def two_classes(root, count: int = 5, **options):
    return write_folder(root, {"cat": count, "dog": count}, **options)


def by_name(root, *names):
    """One class per image: the first training image of each class."""
    found = load(root, split_rule="stratified")
    return [
        found.train.images[found.train.labels == found.classes.index(name)][0] for name in names
    ]


def test_seeded_split(tmp_path):
    root = write_folder(tmp_path / "pets", {"cat": 100, "dog": 200, "emu": 2}, size=(4, 4))
    found = load(root)
    assert len(found.train) + len(found.test) == 302
    assert abs(len(found.test) - 60) < 28, "a fifth, to four standard deviations"
    assert any(f"{len(found.test)} of 302 images are set aside" in note for note in found.notes)
    assert load(root).fingerprint() == found.fingerprint()
    assert load(root, split_seed=1).fingerprint() != found.fingerprint()


def test_seeded_split_by_class(tmp_path):
    root = write_folder(tmp_path / "pets", {"cat": 10, "dog": 20, "emu": 2})
    found = load(root, split_rule="stratified")
    assert (found.name, found.classes) == ("pets", ("cat", "dog", "emu"))
    assert np.bincount(found.train.labels).tolist() == [8, 16, 1]
    assert np.bincount(found.test.labels).tolist() == [2, 4, 1]
    assert found.size == (12, 10) and found.channels == 3 and found.validation is None
    assert found.mean == found.std == (0.5, 0.5, 0.5)
    assert any("set aside" in note for note in found.notes)
    assert any("12×10" in note for note in found.notes)
    more = load(str(root), test_fraction=0.5, validation=0.5, split_rule="stratified")
    assert np.bincount(more.test.labels).tolist() == [5, 10, 1]
    assert np.bincount(more.validation.labels).tolist() == [3, 5]


def test_pixels_are_exact(tmp_path):
    root = two_classes(tmp_path)
    pixels = write_image(root / "emu" / "only.png", seed=77)
    (image,) = by_name(root, "emu")
    assert np.array_equal(image, pixels.transpose(2, 0, 1))


def test_own_parts_are_respected(tmp_path):
    for part, count in (("Train", 4), ("valid", 2), ("test", 3)):
        two_classes(tmp_path / part, count)
    found = load(tmp_path, validation=0.5, test_fraction=0.5)
    assert (len(found.train), len(found.validation), len(found.test)) == (8, 4, 6)
    assert not any("set aside" in note for note in found.notes)


def test_val_without_test_is_the_test_set(tmp_path):
    two_classes(tmp_path / "train", 4)
    two_classes(tmp_path / "val", 2)
    found = load(tmp_path)
    assert (len(found.train), len(found.test), found.validation) == (8, 4, None)
    assert "val/ is the test set" in found.notes[0]


def test_train_alone_is_split(tmp_path):
    two_classes(tmp_path / "train", 5)
    found = load(tmp_path, split_rule="stratified")
    assert (found.classes, len(found.train), len(found.test)) == (("cat", "dog"), 8, 2)


def test_a_class_may_be_called_train(tmp_path):
    found = load(write_folder(tmp_path, {"train": 5, "bus": 5}))
    assert found.classes == ("bus", "train")


def test_unrelated_files_are_ignored(tmp_path):
    root = two_classes(tmp_path)
    expected = load(root).fingerprint()
    for name in (".DS_Store", "._000.png", "Thumbs.db", "notes.txt", "desktop.ini"):
        (root / "cat" / name).write_text("no image")
    (root / ".git").mkdir()
    (root / "README.md").write_text("text")
    assert load(root).fingerprint() == expected


def test_ignored_files_are_counted(tmp_path):
    root = two_classes(tmp_path)
    assert not any("Ignored" in note for note in load(root).notes)
    for name in ("cat/a.nii", "cat/b.NII", "dog/notes", "list.csv", "cat/.hidden"):
        (root / name).touch()
    write_image(root / "loose.png")
    notes = load(root).notes
    words = "Ignored: 2 × .nii, 1 × no extension, 1 × .csv (not images), 1 × .png outside"
    assert any(note.startswith(words) for note in notes), notes


def test_nested_folders_and_links_belong_to_their_class(tmp_path):
    root = two_classes(tmp_path / "data")
    write_image(root / "cat" / "deep" / "er" / "a.JPG", seed=9)
    (root / "dog" / "loop").symlink_to(root / "dog", target_is_directory=True)
    found = load(root)
    total = np.bincount(np.concatenate([found.train.labels, found.test.labels]))
    assert total.tolist() == [6, 5]


def test_kinds_of_image(tmp_path):
    """The same picture saved in many modes comes back the same."""
    random = np.random.default_rng(0)
    grey = np.kron(random.integers(0, 256, (3, 2), dtype=np.uint8), np.ones((4, 5), np.uint8))
    plain = Image.fromarray(grey)
    opaque = Image.merge("LA", (plain, Image.new("L", plain.size, 255)))
    saved = {
        "a-grey": plain,
        "b-rgb": plain.convert("RGB"),
        "c-rgba": plain.convert("RGBA"),
        "d-palette": plain.convert("P"),
        "e-la": opaque,
        "f-16": Image.fromarray(grey.astype(np.uint16) * 257),
        "g-cmyk": plain.convert("RGB").convert("CMYK"),
        "h-32": Image.fromarray(grey.astype(np.int32) * 257, mode=None),
    }
    for name, image in saved.items():
        (tmp_path / name).mkdir()
        for k in range(2):
            suffix = "tif" if image.mode in ("CMYK", "I") else "png"
            image.save(tmp_path / name / f"{k}.{suffix}")
    found = load(tmp_path, split_rule="stratified")
    assert found.channels == 3 and len(found.train) == len(saved)
    for label, image in zip(found.train.labels, found.train.images, strict=True):
        assert np.array_equal(image, np.stack([grey] * 3)), found.classes[label]


def test_sixteen_bits_are_divided_by_257(tmp_path):
    values = np.array([[0, 128, 129, 257, 32768, 65535]], dtype=np.uint16)
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        for k in range(2):
            Image.fromarray(values).save(tmp_path / name / f"{k}.png")
    found = load(tmp_path)
    assert found.channels == 1
    assert found.train.images[0].ravel().tolist() == [0, 0, 1, 1, 128, 255]


def sixteen_bits(root, values):
    for name in ("a", "b"):
        (root / name).mkdir(parents=True)
        for k in range(2):
            Image.fromarray(np.array([values], dtype=np.uint16)).save(root / name / f"{k}.png")
    return root


def test_the_bits_that_count(tmp_path):
    root = sixteen_bits(tmp_path / "scans", [0, 8, 9, 2048, 4095])
    dark = load(root)
    assert dark.train.images[0].ravel().tolist() == [0, 0, 0, 8, 16]
    assert any("over 4095" in note and "data.bits=12" in note for note in dark.notes)
    for _ in range(2):  # the second time from the cache
        found = load(root, bits=12)
        assert found.train.images[0].ravel().tolist() == [0, 0, 1, 128, 255]
        assert not any("data.bits" in note for note in found.notes)
    with pytest.raises(
        UserError, match=r"4 of 4 images .*a/0.png .it holds 4095, but data\.bits = 10"
    ):
        load(root, bits=10)
    with pytest.raises(UserError, match="from 8 to 16"):
        load(root, bits=7)


@pytest.mark.parametrize(
    ("highest", "bits"), [(255, 8), (1023, 10), (1024, 12), (16383, 14), (16384, None)]
)
def test_empty_upper_bits_are_remarked_on(tmp_path, highest, bits):
    notes = " ".join(load(sixteen_bits(tmp_path, [0, highest])).notes)
    assert (f"give --set data.bits={bits} (" in notes) if bits else ("data.bits" not in notes)


def test_transparent_pixels_are_white(tmp_path):
    root = two_classes(tmp_path)
    (root / "ghost").mkdir()
    Image.new("RGBA", (10, 12), (10, 20, 30, 0)).save(root / "ghost" / "0.png")
    palette = Image.new("P", (10, 12), 0)
    palette.putpalette([200, 10, 10])
    (root / "spectre").mkdir()
    palette.save(root / "spectre" / "0.gif", transparency=0)
    for image in by_name(root, "ghost", "spectre"):
        assert (image == 255).all()


def test_grey_images_have_one_channel_unless_asked(tmp_path):
    root = two_classes(tmp_path, mode="L")
    assert load(root).channels == 1
    assert load(root, channels=3).train.images.shape[1:] == (3, 12, 10)
    write_image(root / "dog" / "colour.png")
    assert load(root).channels == 3
    assert load(root, channels=1).channels == 1


def test_exif_rotation_is_applied(tmp_path):
    upright = np.zeros((16, 8, 3), dtype=np.uint8)
    upright[:8] = 255
    root = write_folder(tmp_path, {"a": 2, "b": 2}, size=(16, 8))
    for orientation, operation in (
        (3, Image.Transpose.ROTATE_180),
        (6, Image.Transpose.ROTATE_90),
        (8, Image.Transpose.ROTATE_270),
    ):
        exif = Image.Exif()
        exif[0x0112] = orientation
        stored = Image.fromarray(upright).transpose(operation)
        (root / f"r{orientation}").mkdir()
        stored.save(root / f"r{orientation}" / "0.jpg", exif=exif, quality=100, subsampling=0)
    found = load(root)
    assert found.size == (16, 8), "the rotated size counts"
    for image in by_name(root, "r3", "r6", "r8"):
        assert np.abs(image.transpose(1, 2, 0).astype(int) - upright).max() < 20


def test_mixed_sizes_are_scaled_and_cropped_at_the_centre(tmp_path):
    root = two_classes(tmp_path)
    pixels = np.zeros((100, 300, 3), dtype=np.uint8)
    pixels[:, 100:200] = 255
    (root / "wide").mkdir()
    Image.fromarray(pixels).save(root / "wide" / "0.png")
    found = load(root)
    assert found.size == (64, 64)
    assert "2 sizes, with sides from 10 to 300; they are scaled to 64×64" in " ".join(found.notes)
    assert (by_name(root, "wide")[0][:, :, 2:-2] == 255).all()
    assert load(root, size=20).size == (20, 20)
    assert load(root, size=(20, 30)).size == (20, 30)
    for given in ({}, {"channels": 3}):
        notes = " ".join(load(root, size=20, **given).notes)
        assert "with sides from 10 to 300; they are scaled to 20×20." in notes
        assert "--size" not in notes


def test_large_images_of_one_size_become_small(tmp_path):
    root = two_classes(tmp_path, 2, size=(257, 30))
    found = load(root)
    assert found.size == (64, 64) and "All images are 257×30" in " ".join(found.notes)


def test_scaling_is_antialiased(tmp_path):
    stripes = np.zeros((256, 256), dtype=np.uint8)
    stripes[:, ::2] = 255
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        for k in range(2):
            Image.fromarray(stripes).save(tmp_path / name / f"{k}.png")
    found = load(tmp_path, size=16)
    assert np.abs(found.train.images.astype(int) - 127).max() <= 4


def truncate(path):
    raw = path.read_bytes()
    path.write_bytes(raw[: len(raw) * 2 // 3])


@pytest.mark.parametrize("damage", ["truncated", "text", "empty"])
@pytest.mark.parametrize("options", [{}, {"size": 12, "channels": 3}])
def test_unreadable_images(tmp_path, damage, options):
    root = two_classes(tmp_path, 6, size=(40, 40))
    bad = root / "cat" / "003.png"
    if damage == "truncated":
        truncate(bad)
    else:
        bad.write_text("this is no image" if damage == "text" else "")
    with pytest.raises(UserError, match=r"cat/003\.png cannot be read .*--skip-unreadable"):
        load(root, **options)
    for _ in range(2):  # the second time from the cache
        found = load(root, skip_unreadable=True, **options)
        assert found.skipped == (str(bad),)
        assert len(found.train) + len(found.test) == 11
    images = np.concatenate([found.train.images, found.test.images])
    labels = np.concatenate([found.train.labels, found.test.labels])
    bad.unlink()
    clean = load(root, **options)
    known = {
        image.tobytes(): label
        for part in (clean.train, clean.test)
        for image, label in zip(part.images, part.labels, strict=True)
    }
    assert [known[image.tobytes()] for image in images] == labels.tolist()


def test_every_unreadable_image_is_named(tmp_path):
    root = two_classes(tmp_path, 14, size=(40, 40))
    (root / "cat" / "001.png").write_text("no image")
    truncate(root / "dog" / "002.png")
    with pytest.raises(UserError) as refused:
        load(root)
    text = str(refused.value)
    assert text.startswith("2 of 28 images cannot be read: ") and "more" not in text
    assert f"{root / 'cat' / '001.png'} (" in text and f"{root / 'dog' / '002.png'} (" in text
    for path in (root / "cat").iterdir():
        path.write_text("no image")
    with pytest.raises(UserError, match=r"^15 of 28 .*\) and 5 more\. Repair or remove them"):
        load(root)


def test_truncated_jpeg(tmp_path):
    root = two_classes(tmp_path)
    write_image(root / "dog" / "x.jpg", size=(80, 80))
    truncate(root / "dog" / "x.jpg")
    with pytest.raises(UserError, match=r"dog/x\.jpg cannot be read"):
        load(root)


def test_nothing_readable_left(tmp_path):
    root = two_classes(tmp_path, 3)
    for path in (root / "cat").iterdir():
        path.write_text("no image")
    with pytest.raises(UserError, match=r"No readable training image is left .* 'cat'"):
        load(root, skip_unreadable=True)
    for path in (root / "dog").iterdir():
        path.write_text("no image")
    for options in ({}, {"size": 8, "channels": 1}):
        with pytest.raises(UserError, match="None of the 6 images"):
            load(root, skip_unreadable=True, **options)


def test_floating_point_images_are_refused_by_name(tmp_path):
    root = two_classes(tmp_path)
    Image.fromarray(np.ones((12, 10), np.float32)).save(root / "cat" / "float.tif")
    with pytest.raises(UserError, match=r"float\.tif cannot be read \(floating-point"):
        load(root)


def test_folders_that_cannot_be_used(tmp_path):
    def refused(words, root=tmp_path):
        with pytest.raises(UserError, match=words):
            load(root)

    refused("does not exist", tmp_path / "missing")
    refused("holds no images: put the images of each class")
    (tmp_path / "a.xyz").touch()
    (tmp_path / "b.xyz").touch()
    refused(r"holds no images \(ignored: 2 × \.xyz\)")
    write_image(tmp_path / "loose.png")
    refused("holds 1 images but no class folders")
    write_folder(tmp_path, {"cat": 3})
    refused("only one class, 'cat'")
    (tmp_path / "dog").mkdir()
    refused("class folder .*dog holds no images")
    write_folder(tmp_path, {"dog": 3})
    assert len(load(tmp_path).classes) == 2
    refused("not an .npz file", tmp_path / "loose.png")


@pytest.mark.parametrize("rule", ["independent", "stratified"])
def test_two_images_may_leave_nothing_to_test_on(tmp_path, rule):
    recipe = for_data(str(two_classes(tmp_path, 1))).replace({"data.split_rule": rule})
    with pytest.raises(UserError, match=r"set aside for testing: .*data\.split_seed"):
        dataset_of(recipe.data)


def test_class_without_a_training_image_is_named(tmp_path):
    root = write_folder(tmp_path / "pets", {"cat": 10, "dog": 20, "emu": 1})
    for seed in range(40):
        found = load(root, split_seed=seed)
        noted = any("No training image is left of 'emu'." in note for note in found.notes)
        assert noted == (2 in found.test.labels)


def test_parts_that_cannot_be_used(tmp_path):
    root = tmp_path / "data"
    write_folder(root / "test", {"cat": 2, "dog": 2, "emu": 1})
    with pytest.raises(UserError, match="holds test but no train folder"):
        load(root)
    two_classes(root / "train")
    with pytest.raises(UserError, match=r"test holds classes that .*train lacks: 'emu'"):
        load(root)
    two_classes(root / "others")
    with pytest.raises(UserError, match="parts test, train and also others"):
        load(root)
    two_classes(tmp_path / "twice" / "val")
    two_classes(tmp_path / "twice" / "valid")
    two_classes(tmp_path / "twice" / "train")
    with pytest.raises(UserError, match="a part twice: train, val, valid"):
        load(tmp_path / "twice")
    two_classes(tmp_path / "hollow" / "train")
    (tmp_path / "hollow" / "test").mkdir()
    with pytest.raises(UserError, match="test holds no images"):
        load(tmp_path / "hollow")


def test_second_start_reads_the_cache(tmp_path, monkeypatch, cache):
    root = two_classes(tmp_path)
    first = load(root, validation=0.3)
    assert isinstance(first.train.images, np.memmap) and first.train.images.flags.c_contiguous
    monkeypatch.setattr(decode_block, "read", None)
    monkeypatch.setattr(decode_block, "read_header", None)
    second = load(root, validation=0.3)
    for a, b in zip(first.parts().values(), second.parts().values(), strict=True):
        assert np.array_equal(a.images, b.images) and np.array_equal(a.labels, b.labels)
    assert first.notes == second.notes
    files = sorted((cache / "decoded").iterdir())
    assert [path.suffix for path in files] == [".json", ".npy"]
    for path in files:
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert stat.S_IMODE((cache / "decoded").stat().st_mode) == 0o700


def test_an_old_copy_goes_when_the_folder_changes(tmp_path, cache):
    root = two_classes(tmp_path)
    load(root)
    load(root, size=4)
    entries = {path.name for path in (cache / "decoded").iterdir()}
    assert len(entries) == 4, "each way has its own"
    some = next(path for path in sorted(root.rglob("*")) if path.is_file())
    os.utime(some, (1, 1))
    load(root)
    after = {path.name for path in (cache / "decoded").iterdir()}
    assert len(after) == 4 and len(after & entries) == 2
    assert forget(cache) > 0 and not list((cache / "decoded").iterdir())
    load(root, cache=False)
    assert not list((cache / "decoded").iterdir())
    recipe = for_data(str(root)).replace({"data.cache": False})
    dataset_of(recipe.data)
    assert not list((cache / "decoded").iterdir())


@pytest.mark.parametrize("change", ["content", "options", "lost", "garbled"])
def test_a_cache_that_does_not_fit_is_not_used(tmp_path, cache, change):
    root = two_classes(tmp_path)
    options = {}
    first = load(root).fingerprint()
    if change == "content":
        write_image(root / "cat" / "000.png", seed=999)
        os.utime(root / "cat" / "000.png", ns=(1, 1))
    elif change == "options":
        options = {"size": 6}
    for path in (cache / "decoded").iterdir():
        if change == "lost" and path.suffix == ".json":
            path.unlink()
        if change == "garbled" and path.suffix == ".npy":
            path.write_bytes(path.read_bytes()[:200])
    second = load(root, **options)
    assert (first == second.fingerprint()) == (change in ("lost", "garbled"))
    assert second.fingerprint() == load(root, cache=False, **options).fingerprint()


def test_a_full_disk_costs_only_the_cache(tmp_path, monkeypatch, cache):
    root = two_classes(tmp_path)
    expected = load(root, cache=False)
    assert not isinstance(expected.train.images, np.memmap)

    def full(shape):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("sfumato.data.cache._npy_header", full)
    found = load(root)
    assert found.fingerprint() == expected.fingerprint()
    assert any("No space left on device" in note for note in found.notes)
    assert not list((cache / "decoded").iterdir()), "nothing is left behind"


def test_refused_images_leave_no_cache(tmp_path, cache):
    root = two_classes(tmp_path, size=(40, 40))
    truncate(root / "cat" / "004.png")
    with pytest.raises(UserError):
        load(root)
    assert not list((cache / "decoded").iterdir())
