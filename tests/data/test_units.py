"""Units of privacy in data: from arrays, paths and patterns, never separated."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from sfumato import data
from sfumato.data.units import unit_numbers, units_of_paths, with_unit
from sfumato.errors import UserError

IMAGES = np.random.default_rng(0).integers(0, 255, (60, 8, 8), dtype=np.uint8)
LABELS = np.arange(60) % 3
UNITS = np.array([f"P{k // 4}" for k in range(60)])


def test_equal_names_have_equal_numbers() -> None:
    numbers = unit_numbers(["a", "b", "a", 3, "3"])
    assert numbers[0] == numbers[2] != numbers[1] and numbers[3] == numbers[4]
    assert (numbers >= 0).all() and numbers.dtype == np.int64


@pytest.mark.parametrize("names", [("images", "labels", "units"), ("x", "y", "units")])
def test_units_of_an_npz_stay_together(tmp_path: Path, names: tuple[str, str, str]) -> None:
    path = tmp_path / "scans.npz"
    np.savez(path, **dict(zip(names, (IMAGES, LABELS, UNITS), strict=True)))
    found = with_unit(data.load(path, validation=0.2), "patient")
    parts = {key: part.units for key, part in found.parts().items()}
    assert all(units is not None for units in parts.values())
    sets = [set(units) for units in parts.values()]  # type: ignore[arg-type]
    assert all(not a & b for a, b in ((sets[0], sets[1]), (sets[0], sets[2]), (sets[1], sets[2])))
    assert found.train.examples == len(sets[0]) < len(found.train)


def test_removing_a_unit_moves_no_other(tmp_path: Path) -> None:
    def train(kept: np.ndarray) -> set[bytes]:
        found = data.load((IMAGES[kept], LABELS[kept], UNITS[kept]))
        return {image.tobytes() for image in found.train.images}

    whole = train(np.ones(60, bool))
    for unit in ("P0", "P7", "P14"):
        less = train(unit != UNITS)
        assert less <= whole
        assert whole - less <= {image[None].tobytes() for image in IMAGES[unit == UNITS]}


def test_parts_of_an_npz_have_units_of_their_own(tmp_path: Path) -> None:
    path = tmp_path / "scans.npz"
    parts = {"train_images": IMAGES[:40], "train_labels": LABELS[:40], "train_units": UNITS[:40],
             "test_images": IMAGES[40:], "test_labels": LABELS[40:]}  # fmt: skip
    np.savez(path, **parts, test_units=UNITS[40:])
    assert data.load(path).train.examples == 10
    np.savez(path, **parts)
    with pytest.raises(UserError, match="units of test_images"):
        data.load(path)
    np.savez(path, **parts, test_units=UNITS[36:56])
    with pytest.raises(UserError, match=r"same unit are in train and in test \('P9'\)"):
        data.load(path)


def test_bad_units_of_arrays_are_refused() -> None:
    for units in (UNITS[:10], np.ones((60, 2), int), np.linspace(0, 1, 60)):
        with pytest.raises(UserError, match="60 whole numbers or names"):
            data.load((IMAGES, LABELS, units))


def test_units_that_are_not_asked_for_are_mentioned() -> None:
    found = with_unit(data.load((IMAGES, LABELS, UNITS)), "image")
    assert found.train.units is None and found.test.units is None
    assert any("--unit patient" in note for note in found.notes)


def test_units_that_are_not_known_are_refused() -> None:
    with pytest.raises(UserError, match="nothing says which images"):
        with_unit(data.load((IMAGES, LABELS)), "patient")


def test_units_of_one_image_are_mentioned() -> None:
    found = with_unit(data.load((IMAGES, LABELS, np.arange(60))), "patient")
    assert any("No patient has more than one" in note for note in found.notes)


def test_units_of_paths() -> None:
    paths = ["a/P1/x.png", "a/P2/x.png", "b/P1/y.png"]
    assert list(units_of_paths(paths, "patient", "", depth=1)) == ["P1", "P2", "P1"]
    with_parts = [f"train/{path}" for path in paths]
    assert list(units_of_paths(with_parts, "patient", "", depth=2)) == ["P1", "P2", "P1"]
    series = ["a/P1/left/x.png", "a/P1/right/x.png"]
    assert list(units_of_paths(series, "patient", "", depth=1)) == ["P1", "P1"]
    names = ["a/P1_001.png", "b/P22_7.png"]
    pattern = r"(?P<unit>P\d+)_"
    assert list(units_of_paths(names, "patient", pattern, depth=1)) == ["P1", "P22"]
    for pattern, sentence in (
        ("", r"class/patient/image\.png"), ("P", "no group named unit"), ("(", "is no pattern"),
        (r"(?P<unit>Q\d+)", r"finds no patient in the path 'a/P1_001\.png'"),
    ):  # fmt: skip
        with pytest.raises(UserError, match=sentence):
            list(units_of_paths(names, "patient", pattern, depth=1))
