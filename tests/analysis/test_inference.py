from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from torch import nn

from sfumato.analysis import inference
from sfumato.data import ImageSet
from sfumato.errors import UserError
from sfumato.training.classifier import Classifier, Description

CLASSES = ("dark", "middle", "bright")


class Brightness(nn.Module):
    """Logits from the mean of the (normalised) image: negative is dark, zero middle."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.tensor(8.0))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        mean = x.mean((1, 2, 3))
        return self.scale * torch.stack((-mean, 0.3 - mean.abs(), mean), dim=1)


def classifier(channels: int = 1, size: tuple[int, int] = (6, 4)) -> Classifier:
    mean = (0.5,) * channels
    description = Description("brightness", {}, CLASSES, channels, size, mean, mean)
    return Classifier(Brightness(), description)


def image_set(n: int, *, dtype: type = np.uint8) -> ImageSet:
    rng = np.random.default_rng(0)
    images = rng.integers(0, 256, (n, 1, 6, 4)).astype(np.uint8)
    if dtype is np.float32:
        images = (images / 255).astype(np.float32)
    return ImageSet(images, np.zeros(n, dtype=np.int64))


@pytest.mark.parametrize("n", [0, 1, 7, 8, 20])
@pytest.mark.parametrize("dtype", [np.uint8, np.float32])
def test_probabilities_do_not_depend_on_the_batch(n: int, dtype: type) -> None:
    images, model = image_set(n, dtype=dtype), classifier()
    found = inference.probabilities(model, images, batch=8)
    assert found.shape == (n, 3)
    whole = model.predict(torch.from_numpy(images.images)).numpy()
    np.testing.assert_allclose(found, whole, atol=1e-6)


def test_a_memory_map_is_read(tmp_path: Path) -> None:
    images = image_set(9)
    np.save(tmp_path / "x.npy", images.images)
    mapped = ImageSet(np.load(tmp_path / "x.npy", mmap_mode="r"), images.labels)
    assert isinstance(mapped.images, np.memmap)
    found = inference.probabilities(classifier(), mapped, batch=4)
    np.testing.assert_array_equal(found, inference.probabilities(classifier(), images, batch=4))


def write(path: Path, value: int, *, mode: str = "L", size: tuple[int, int] = (4, 6)) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.new(mode, size, value if mode == "L" else (value,) * len(mode)).save(path)
    return path


def test_files_are_predicted_in_order_across_batches(tmp_path: Path) -> None:
    values = [0, 255, 128, 250, 5, 127, 10]
    files = [write(tmp_path / f"{k}.png", value) for k, value in enumerate(values)]
    found = list(inference.predict_files(classifier(), files, top=3, batch=3))
    assert [p.file for p in found] == files
    wanted = ["dark", "bright", "middle", "bright", "dark", "middle", "dark"]
    assert [p.ranked[0][0] for p in found] == wanted
    for prediction in found:
        names, chances = zip(*prediction.ranked, strict=True)
        assert sorted(names) == sorted(CLASSES)
        assert list(chances) == sorted(chances, reverse=True) and sum(chances) == pytest.approx(1)


def test_any_mode_size_and_rotation(tmp_path: Path) -> None:
    model = classifier(channels=3, size=(8, 8))
    files = [
        write(tmp_path / "grey.png", 250),
        write(tmp_path / "large.jpg", 250, mode="RGB", size=(300, 40)),
        write(tmp_path / "alpha.png", 0, mode="RGBA"),
        write(tmp_path / "ink.jpg", 0, mode="CMYK"),
    ]
    Image.fromarray(np.full((5, 7), 64_000, dtype=np.uint16)).save(tmp_path / "deep.png")
    found = list(inference.predict_files(model, [*files, tmp_path / "deep.png"]))
    assert [p.ranked[0][0] for p in found] == ["bright"] * 5


def test_unreadable_files_are_named_or_skipped(tmp_path: Path) -> None:
    good = [write(tmp_path / f"{k}.png", 255) for k in range(5)]
    bad = tmp_path / "broken.png"
    bad.write_bytes(good[0].read_bytes()[:40])
    files = [*good[:2], bad, *good[2:]]
    with pytest.raises(UserError, match=r"broken\.png cannot be read .*--skip-unreadable"):
        list(inference.predict_files(classifier(), files, batch=2))
    skipped: list[Path] = []
    found = inference.predict_files(
        classifier(), files, batch=2, skipped=lambda file, reason: skipped.append(file)
    )
    assert [p.file for p in found] == good and skipped == [bad]
    assert not list(inference.predict_files(classifier(), [bad], skipped=lambda *_: None))


def test_no_more_than_two_batches_are_decoded_ahead(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = write(tmp_path / "x.png", 0)
    lock, count, inner = threading.Lock(), 0, inference.read_content

    def counted(*words: Any) -> Any:
        nonlocal count
        with lock:
            count += 1
        return inner(*words)

    monkeypatch.setattr(inference, "read_content", counted)
    for done, _ in enumerate(inference.predict_files(classifier(), [file] * 100, batch=5)):
        assert count <= done // 5 * 5 + 10


@pytest.mark.parametrize("top", [0, -1, 4])
def test_impossible_top(tmp_path: Path, top: int) -> None:
    with pytest.raises(UserError, match="from 1 to 3"):
        list(inference.predict_files(classifier(), [write(tmp_path / "x.png", 0)], top=top))


def test_a_diverged_model_gives_no_answer(tmp_path: Path) -> None:
    model = classifier()
    torch.nn.init.constant_(next(model.parameters()), float("nan"))
    with pytest.raises(UserError, match="diverged"):
        list(inference.predict_files(model, [write(tmp_path / "x.png", 0)]))


def test_models_of_other_channels_take_no_files(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="2 channels"):
        list(inference.predict_files(classifier(channels=2), [write(tmp_path / "x.png", 0)]))


def test_finding_images(tmp_path: Path) -> None:
    a = write(tmp_path / "in/deep/er/a.png", 0)
    b = write(tmp_path / "in/b.JPG", 0)
    (tmp_path / "in/notes.txt").write_text("no image")
    (tmp_path / "in/.hidden.png").write_bytes(b"")
    (tmp_path / "in/deep/loop").symlink_to(tmp_path / "in", target_is_directory=True)
    odd = tmp_path / "no-extension"
    odd.write_bytes(a.read_bytes())
    assert inference.find_images([odd, tmp_path / "in"]) == [odd, *sorted([a, b])]
    (tmp_path / "empty").mkdir()
    with pytest.raises(UserError, match="empty holds no images"):
        inference.find_images([tmp_path / "empty"])
    with pytest.raises(UserError, match=r"There is no file or folder .*nowhere"):
        inference.find_images([a, tmp_path / "nowhere"])
