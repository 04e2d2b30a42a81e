"""Units of privacy in folders and tar shards of images: found in paths, never separated."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from data_layouts import image_bytes, write_image, write_tar

from sfumato.data import load
from sfumato.data.imageset import Dataset
from sfumato.data.units import unit_numbers
from sfumato.errors import UserError

PATTERN = r"(?P<unit>P\d+)_"


def scans(root: Path, patients: range, *, form: str = "{}/{}/{}.png") -> Path:
    """Three images of each patient, of both classes; the seed of each image is its number."""
    for patient in patients:
        for k in range(3):
            name = form.format(("benign", "malignant")[k % 2], f"P{patient:02d}", k)
            write_image(root / name, mode="L", size=(6, 5), seed=3 * patient + k)
    return root


def patients_of(dataset: Dataset) -> dict[str, set[str]]:
    """The patients of each part; each image must have the unit that it was drawn for."""
    drawn = {}
    for patient in range(30):
        for k in range(3):
            random = np.random.default_rng(3 * patient + k)
            drawn[random.integers(0, 256, (6, 5), dtype=np.uint8).tobytes()] = f"P{patient:02d}"
    found = {}
    for part, own in dataset.parts().items():
        names = [drawn[image.tobytes()] for image in own.images]
        assert own.units is not None
        assert own.units.tolist() == unit_numbers(names).tolist()
        found[part] = set(names)
    return found


@pytest.mark.parametrize(
    ("form", "pattern"), [("{}/{}/{}.png", ""), ("{}/{}_{}.png", PATTERN), ("{}/{}/s/{}.png", "")]
)
@pytest.mark.parametrize("rule", ["independent", "stratified"])
def test_units_of_a_folder_stay_together(
    tmp_path: Path, form: str, pattern: str, rule: str
) -> None:
    root = scans(tmp_path / "scans", range(30), form=form)
    found = load(root, unit="patient", unit_pattern=pattern, validation=0.2, split_rule=rule)
    parts = patients_of(found)
    assert all(parts.values()) and sum(len(own) for own in parts.values()) == 30
    assert len(set.union(*parts.values())) == 30
    assert found.train.examples == len(parts["train"])


def test_units_without_the_word_are_not_read(tmp_path: Path) -> None:
    assert load(scans(tmp_path / "scans", range(9))).train.units is None


def test_removing_a_unit_of_a_folder_moves_no_other(tmp_path: Path) -> None:
    whole = patients_of(load(scans(tmp_path / "all", range(20)), unit="patient"))
    for left_out in (0, 7, 19):
        kept = tmp_path / f"without-{left_out}"
        scans(kept, range(left_out))
        scans(kept, range(left_out + 1, 20))
        less = patients_of(load(kept, unit="patient"))
        assert less["train"] == whole["train"] - {f"P{left_out:02d}"}


def test_a_unit_in_two_parts_of_a_folder_is_refused_by_name(tmp_path: Path) -> None:
    root = tmp_path / "scans"
    scans(root / "train", range(8))
    scans(root / "test", range(8, 12))
    assert load(root, unit="patient").train.examples == 8
    scans(root / "val", range(12, 14))
    assert load(root, unit="patient").validation.examples == 2
    scans(root / "test", range(3, 5))
    with pytest.raises(UserError, match=r"same patient are in train and in test \('P03', 'P04'\)"):
        load(root, unit="patient")
    assert load(root).train.units is None


def test_a_part_named_train_alone_is_no_unit(tmp_path: Path) -> None:
    found = load(scans(tmp_path / "scans" / "train", range(20)).parent, unit="patient")
    assert found.train.examples + found.test.examples == 20


def test_images_that_cannot_be_read_leave_units_in_place(tmp_path: Path) -> None:
    root = scans(tmp_path / "scans", range(30))
    for patient in (0, 4, 17):
        (root / "benign" / f"P{patient:02d}" / "0.png").write_bytes(b"no image")
    found = load(root, unit="patient", skip_unreadable=True)
    assert len(found.skipped) == 3
    patients_of(found)
    sizes = np.unique(np.concatenate([p.units for p in found.parts().values()]), return_counts=True)
    assert sorted(sizes[1].tolist()) == [2] * 3 + [3] * 27


def test_units_of_shards_by_a_pattern(tmp_path: Path) -> None:
    members = {}
    for k in range(60):
        members[f"P{k // 3:02d}_{k}.png"] = image_bytes(k, mode="L", size=(6, 5))
        members[f"P{k // 3:02d}_{k}.cls"] = str(k % 2).encode()
    names = list(members)
    for start in range(0, 120, 50):  # Shards separate images of one patient.
        some = {name: members[name] for name in names[start : start + 50]}
        write_tar(tmp_path / "shards" / f"{start}.tar", some)
    found = load(tmp_path / "shards", unit="patient", unit_pattern=PATTERN)
    patients_of(found)
    assert found.train.examples + found.test.examples == 20
    with pytest.raises(UserError, match="give a pattern of their names"):
        load(tmp_path / "shards", unit="patient")


def test_patterns_that_cannot_be_used_are_refused(tmp_path: Path) -> None:
    root = scans(tmp_path / "scans", range(3), form="{}/{}_{}.png")
    with pytest.raises(UserError, match=r"class/patient/image\.png"):
        load(root, unit="patient")
    with pytest.raises(UserError, match="name the unit as well"):
        load(root, unit_pattern=PATTERN)
    with pytest.raises(UserError, match="these images are arrays"):
        load((np.zeros((4, 8, 8), np.uint8), [0, 1, 0, 1]), unit="patient", unit_pattern=PATTERN)
