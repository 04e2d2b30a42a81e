"""Memory with many images, by the benchmark that measures it for the pages."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

import sfumato

BENCHMARK = Path(__file__).parents[2] / "benchmarks" / "large_folder.py"


def peaks(layout: str, images: int, place: Path) -> list[float]:
    """MiB of preparation, of another start and of training."""
    arguments = ["--images", str(images), "--classes", "100", "--steps", "3"]
    path = str(Path(sfumato.__file__).parents[1])
    printed = subprocess.run(
        [sys.executable, BENCHMARK, *arguments, "--layout", layout, "--place", place],
        env={**os.environ, "PYTHONPATH": path}, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert printed.returncode == 0, printed.stdout + printed.stderr
    rows = re.findall(rf"\| {layout} \| .* \| ([\d,]+) \|", printed.stdout)
    return [float(peak.replace(",", "")) for peak in rows]


@pytest.mark.slow
@pytest.mark.parametrize("layout", ["folder", "shards"])
def test_memory_hardly_grows_with_the_images(tmp_path, layout):
    """Of 15 000 more images, which take 175 MiB decoded, memory holds at most a fifth."""
    few, many = peaks(layout, 5_000, tmp_path), peaks(layout, 20_000, tmp_path)
    assert len(few) == len(many) == 3 and max(many) < 2048
    assert many[0] < few[0] + 35 and many[1] < few[1] + 35, (few, many)
