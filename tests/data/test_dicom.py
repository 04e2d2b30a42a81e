"""DICOM files: values, windows, frames, patients, and what is refused of them."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest
from dicom_files import SECRET, slices, write_dicom, write_scans
from patients import PATIENT

from sfumato.data import decoding, load
from sfumato.data.dicom_file import read_frame
from sfumato.data.image_files import Frame
from sfumato.data.imageset import Dataset
from sfumato.data.units import unit_numbers, with_unit
from sfumato.errors import UserError

pydicom = pytest.importorskip("pydicom")


def grey(path: Path, *, frame: int = 0, bits: int = 16, window=None) -> np.ndarray:
    """A frame at its own size."""
    height, width = pydicom.dcmread(path).Rows, pydicom.dcmread(path).Columns
    read = read_frame(
        Frame(path, frame), size=(height, width), channels=1, bits=bits, window=window
    )
    return read.pixels[0]


def by_standard(value: float, centre: float, width: float) -> float:
    """The linear function of PS3.3 C.11.2.1.2.1, as it stands there, for bytes."""
    if value <= centre - 0.5 - (width - 1) / 2:
        return 0
    if value > centre - 0.5 + (width - 1) / 2:
        return 255
    return ((value - (centre - 0.5)) / (width - 1) + 0.5) * 255


@pytest.mark.parametrize(("bits", "kind"), [(8, np.uint8), (12, np.uint16), (16, np.uint16)])
def test_stored_bits_are_the_range(tmp_path: Path, bits: int, kind: type) -> None:
    pixels = np.linspace(0, (1 << bits) - 1, 60).round().astype(kind).reshape(6, 10)
    path = write_dicom(tmp_path / "x.dcm", pixels, bits=bits)
    expected = np.floor(pixels.astype(float) / ((1 << bits) - 1) * 255 + 0.5)
    assert np.array_equal(grey(path), expected)
    other = write_dicom(tmp_path / "y.dcm", pixels, bits=bits, photometric="MONOCHROME1")
    assert np.array_equal(grey(other), 255 - expected)


def test_the_range_does_not_follow_the_image(tmp_path: Path) -> None:
    dim = write_dicom(tmp_path / "x.dcm", np.full((4, 4), 100, np.uint16),
                      WindowCenter=100, WindowWidth=2, SmallestImagePixelValue=99,
                      LargestImagePixelValue=100)  # fmt: skip
    assert (grey(dim) == 6).all()


def test_values_with_a_sign(tmp_path: Path) -> None:
    pixels = np.array([[-2048, 0], [2047, -1]], np.int16)
    path = write_dicom(tmp_path / "x.dcm", pixels)
    assert grey(path).tolist() == [[0, 128], [255, 127]]
    down = write_dicom(tmp_path / "y.dcm", pixels, RescaleSlope=-1, RescaleIntercept=0)
    assert grey(down).tolist() == [[255, 127], [0, 128]]


@pytest.mark.parametrize("kind", [np.uint16, np.int16])
@pytest.mark.parametrize("window", [(40.0, 400.0), (-600.0, 1500.0), (0.5, 2.0)])
def test_windows_are_in_rescaled_values(tmp_path: Path, kind: type, window) -> None:
    slope, intercept = 0.5, -1024 if kind == np.uint16 else 0
    pixels = np.random.default_rng(0).integers(0, 4000, (8, 9)).astype(kind)
    pixels -= kind(2000) if kind == np.int16 else kind(0)
    path = write_dicom(
        tmp_path / "x.dcm", pixels, bits=16, RescaleSlope=slope, RescaleIntercept=intercept
    )
    expected = [by_standard(float(v) * slope + intercept, *window) for v in pixels.ravel()]
    assert np.abs(grey(path, window=window).ravel() - np.array(expected)).max() <= 0.5 + 1e-9


def test_rescaling_of_each_frame(tmp_path: Path) -> None:
    def group(slope: float, intercept: float) -> pydicom.Dataset:
        values, found = pydicom.Dataset(), pydicom.Dataset()
        values.RescaleSlope, values.RescaleIntercept = slope, intercept
        found.PixelValueTransformationSequence = [values]
        return found

    pixels = np.full((2, 4, 4), 100, np.uint16)
    own = {"PerFrameFunctionalGroupsSequence": [group(1, 0), group(2, 0)]}
    path = write_dicom(tmp_path / "x.dcm", pixels, **own)
    window = (150.5, 201.0)
    assert [grey(path, frame=k, window=window)[0, 0] for k in (0, 1)] == [64, 191]
    shared = {"SharedFunctionalGroupsSequence": [group(2, 0)]}
    path = write_dicom(tmp_path / "y.dcm", pixels, **shared)
    assert [grey(path, frame=k, window=window)[0, 0] for k in (0, 1)] == [191, 191]


def test_bits_that_count(tmp_path: Path) -> None:
    path = write_dicom(tmp_path / "x.dcm", np.full((4, 4), 4095, np.uint16), bits=16)
    assert (grey(path) == 16).all() and (grey(path, bits=12) == 255).all()


@pytest.mark.parametrize("bits", [10, 12, 16])
def test_dark_files_are_said_to_be_dark_where_they_state_16_bits(tmp_path: Path, bits: int) -> None:
    """White is the largest value of the bits that a file states, so that others are not dark."""
    for k in range(20):
        pixels = np.full((4, 4), 900 + k, np.uint16)
        write_dicom(tmp_path / "ab"[k % 2] / f"{k}.dcm", pixels, bits=bits)
    notes = " ".join(load(tmp_path, cache=False).notes)
    assert ("so they are dark" in notes) == (bits == 16)


def parts_of(found: Dataset, patients: int = 30) -> dict[str, set[str]]:
    """The patients of each part; each frame must have its patient's unit."""
    drawn = {}
    for k in range(patients):
        for count in (1, 2):
            for frame in slices(10 * k + count, count):
                value = (frame.astype(np.int64) * 255 + 2047) // 4095
                drawn[value.astype(np.uint8).tobytes()] = f"{PATIENT}{k:03d}"
    parts = {}
    for name, own in found.parts().items():
        names = [drawn[image.tobytes()] for image in own.images]
        assert own.units.tolist() == unit_numbers(names).tolist()
        parts[name] = set(names)
    assert sum(len(part) for part in found.parts().values()) == 3 * patients
    return parts


@pytest.mark.parametrize("ending", [".dcm", ".DCM", ".ima"])
def test_frames_of_a_folder_have_their_patient_as_unit(tmp_path: Path, ending: str) -> None:
    root = write_scans(tmp_path / "scans", ending=ending)
    found = load(root, unit="patient", validation=0.2)
    assert found.classes == ("benign", "malignant") and found.channels == 1
    parts = parts_of(found)
    assert all(parts.values()) and sum(map(len, parts.values())) == 30
    plain = with_unit(load(root), "image")
    assert plain.train.units is None and any("--unit patient" in note for note in plain.notes)


def test_tables_of_dicom(tmp_path: Path) -> None:
    root = write_scans(tmp_path / "scans")
    files = sorted(path.relative_to(root).as_posix() for path in root.rglob("*.dcm"))
    lines = [f"{file},{file.split('/')[0]}" for file in files]
    (root / "table.csv").write_text("\n".join(["path,label", *lines]))
    parts_of(load(root / "table.csv", unit="patient"))
    lines = [f"{line},E{k % 20}" for k, line in enumerate(lines)]
    (root / "table.csv").write_text("\n".join(["path,label,patient", *lines]))
    found = load(root / "table.csv", unit="patient")
    assert found.train.examples + found.test.examples == 20, "a column wins over the field"


def test_units_by_other_means(tmp_path: Path) -> None:
    root = write_scans(tmp_path / "scans", BodyPartExamined="CHEST")
    found = load(root, unit="patient", unit_pattern=r"(?P<unit>\d+)[ab]")
    assert found.train.examples + found.test.examples == 30
    with pytest.raises(UserError, match=r"names the eye\? .*unit_field"):
        load(root, unit="eye")
    with pytest.raises(UserError, match="is no DICOM field"):
        load(root, unit="eye", unit_field="Eye")
    for path in root.rglob("*b.dcm"):
        path.unlink()
    found = load(root, unit="region", unit_field="BodyPartExamined")
    assert found.train.examples + found.test.examples == 1


def test_a_patient_in_two_parts_is_refused_without_the_name(tmp_path: Path) -> None:
    for part in ("train", "test"):
        write_scans(tmp_path / "scans" / part, 3)
    with pytest.raises(UserError, match=r"same patient are in train and in test") as caught:
        load(tmp_path / "scans", unit="patient")
    assert "0a.dcm" in str(caught.value) and PATIENT not in str(caught.value)


def test_windows_and_sizes_reach_the_images(tmp_path: Path) -> None:
    root = write_scans(tmp_path / "scans", 6)
    narrow = load(root, window=[2048, 2])
    assert set(np.unique(narrow.train.images)) <= {0, 255}
    assert len(np.unique(load(root).train.images)) > 100, "the cache tells windows apart"
    assert load(root, size=8, channels=3).train.images.shape[1:] == (3, 8, 8)
    for window in ([1], [1, 1], [0, float("nan")], [1, 2, 3]):
        with pytest.raises(UserError, match="give the centre and the width"):
            load(root, window=window)


def test_processes_decode_the_same(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    root = write_scans(tmp_path / "scans", 6)
    here = load(root, window=[2000, 3000], cache=False)
    monkeypatch.setattr(decoding, "_WORTH_PROCESSES", 0)
    there = load(root, window=[2000, 3000])
    assert there.fingerprint() == here.fingerprint()


def test_files_without_pixels_and_damaged_ones(tmp_path: Path) -> None:
    root = write_scans(tmp_path / "scans", 6)
    write_dicom(root / "benign" / "report.dcm", None, patient="Q777")
    with pytest.raises(UserError, match=r"report\.dcm cannot be read \(a DICOM file without pix"):
        load(root, unit="patient")
    (root / "benign" / "x.dcm").write_bytes(b"no DICOM")
    stripped = pydicom.dcmread(root / "benign" / "0b.dcm")
    del stripped.PixelData
    stripped.save_as(root / "benign" / "stripped.dcm")
    cut = root / "benign" / "0a.dcm"  # The second of its frames ends early.
    cut.write_bytes(cut.read_bytes()[:-100])
    with pytest.raises(UserError, match=r"4 of 21 images cannot be read: .*damaged") as caught:
        load(root, unit="patient")
    assert "Q" not in str(caught.value).replace(str(root), "") and SECRET not in str(caught.value)
    found = load(root, unit="patient", skip_unreadable=True)
    assert len(found.skipped) == 4 and found.train.examples + found.test.examples == 6


def test_a_file_whose_unit_is_not_known_is_never_decoded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from sfumato.data import dicom_file, dicom_listing

    root = write_scans(tmp_path / "scans", 6)
    whole = dicom_file.about
    monkeypatch.setattr(
        dicom_listing,
        "about",
        lambda path, field: dicom_file.About() if path.name == "3b.dcm" else whole(path, field),
    )
    with pytest.raises(UserError, match=r"3b\.dcm cannot be read"):
        load(root, unit="patient")


@pytest.mark.parametrize("identity", [None, "", "  "])
def test_files_without_a_patient(tmp_path: Path, identity: str | None) -> None:
    root = write_scans(tmp_path / "scans", 6)
    write_dicom(root / "benign" / "nobody.dcm", slices(1)[0], patient=identity)
    with pytest.raises(UserError, match=r"1 DICOM files .* no PatientID .*benign/nobody\.dcm"):
        load(root, unit="patient")
    assert load(root).train.units is None


def test_colour_and_mixtures_are_refused(tmp_path: Path) -> None:
    root = write_scans(tmp_path / "scans", 6)
    white = write_dicom(
        root / "benign" / "w.dcm", slices(1)[0], photometric="MONOCHROME1", patient="Q9"
    )
    with pytest.raises(UserError, match=r"\(1 MONOCHROME1 and 12 MONOCHROME2\).*w\.dcm"):
        load(root)
    assert len(load(root, mixed_photometric=True).train)
    white.unlink()
    pixels = np.zeros((12, 12, 3), np.uint8)
    colour = write_dicom(root / "benign" / "c.dcm", pixels, photometric="RGB", bits=8)
    with pytest.raises(UserError, match=r"1 DICOM files .*c\.dcm', are in colour \(RGB\)"):
        load(root)
    colour.rename(root / "benign" / "c.png")
    with pytest.raises(UserError, match=r"DICOM files such as .* beside other images"):
        load(root)


def test_missing_plug_ins_are_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    root = write_scans(tmp_path / "scans", 6)
    decoder = pydicom.pixels.get_decoder(pydicom.uid.JPEGLSLossless)
    monkeypatch.setattr(type(decoder), "is_available", False)
    write_dicom(root / "benign" / "z.dcm", slices(1)[0], syntax=pydicom.uid.JPEGLSLossless)
    with pytest.raises(UserError, match=r"1 DICOM files .*z\.dcm.* JPEG-LS Lossless .*jpegls"):
        load(root)


def test_without_pydicom(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    root = write_scans(tmp_path / "scans", 6)
    monkeypatch.setitem(sys.modules, "pydicom", None)
    with pytest.raises(UserError, match=r"sfumato\[dicom\]"):
        load(root)
