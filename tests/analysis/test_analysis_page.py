"""What docs/analysis.md tells people to type."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np

from tiny_run import train_run

PAGE = Path(__file__).parents[2] / "docs" / "analysis.md"


def test_the_page_runs(tmp_path: Path) -> None:
    """All its Python, one piece after the other, on a run that was just made."""
    folder = train_run(tmp_path / "run", {"training.snapshots": 2})
    blocks = re.findall(r"```python\n(.*?)```", PAGE.read_text(encoding="utf-8"), flags=re.DOTALL)
    assert len(blocks) >= 7
    rng = np.random.default_rng(0)
    known: dict[str, object] = {
        f"{part}{what}": values
        for part in ("", "validation_")
        for what, values in (("logits", rng.normal(size=(90, 10))), ("labels", np.arange(90) % 10))
    }
    for block in blocks:
        exec(block.replace("runs/digits-001", str(folder)), known)
