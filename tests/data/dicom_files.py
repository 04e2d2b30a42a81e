"""Small DICOM files, written by pydicom."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from patients import PATIENT

SECRET = "Vinci^Leonardo"
"""A name that is in every file, and must be nowhere else."""


def write_dicom(
    path: Path,
    pixels: np.ndarray | None,
    *,
    patient: str | None = "P0",
    bits: int = 12,
    photometric: str = "MONOCHROME2",
    syntax: str | None = None,
    **elements: Any,
) -> Path:
    """A file with these pixels, (height, width), (frames, height, width) or (height, width, 3)."""
    from pydicom.dataset import Dataset, FileMetaDataset
    from pydicom.uid import CTImageStorage, ExplicitVRLittleEndian, generate_uid

    path.parent.mkdir(parents=True, exist_ok=True)
    file = Dataset()
    file.file_meta = FileMetaDataset()
    file.file_meta.TransferSyntaxUID = syntax or ExplicitVRLittleEndian
    file.SOPClassUID = file.file_meta.MediaStorageSOPClassUID = CTImageStorage
    file.SOPInstanceUID = file.file_meta.MediaStorageSOPInstanceUID = generate_uid()
    file.PatientName = SECRET
    if patient is not None:
        file.PatientID = patient
    if pixels is not None:
        colour = pixels.ndim == 3 and pixels.shape[-1] == 3
        if pixels.ndim == 3 and not colour:
            file.NumberOfFrames = len(pixels)
        file.Rows, file.Columns = pixels.shape[:2] if colour else pixels.shape[-2:]
        file.SamplesPerPixel = 3 if colour else 1
        if colour:
            file.PlanarConfiguration = 0
        file.PhotometricInterpretation = photometric
        file.BitsAllocated = 8 * pixels.itemsize
        file.BitsStored, file.HighBit = bits, bits - 1
        file.PixelRepresentation = int(pixels.dtype.kind == "i")
        file.PixelData = pixels.tobytes()
        file["PixelData"].VR = "OB" if pixels.itemsize == 1 else "OW"
        if syntax is not None:
            from pydicom.encaps import encapsulate

            file.PixelData = encapsulate([b"\0" * 64])
            file["PixelData"].VR, file["PixelData"].is_undefined_length = "OB", True
    for keyword, value in elements.items():
        setattr(file, keyword, value)
    file.save_as(path, enforce_file_format=True)
    return path


def slices(seed: int, count: int = 1, *, bits: int = 12, side: int = 12) -> np.ndarray:
    """Random frames of whole numbers."""
    random = np.random.default_rng(seed)
    return random.integers(0, 1 << bits, (count, side, side)).astype(np.uint16)


def write_scans(root: Path, patients: int = 30, *, ending: str = ".dcm", **options: Any) -> Path:
    """A file of two frames and one of one for each patient, in folders of two classes."""
    for k in range(patients):
        for part, count in (("a", 2), ("b", 1)):
            name = f"{('benign', 'malignant')[k % 2]}/{k}{part}{ending}"
            frames = slices(10 * k + count, count)
            pixels = frames if count > 1 else frames[0]
            write_dicom(root / name, pixels, patient=f"{PATIENT}{k:03d}", **options)
    return root
