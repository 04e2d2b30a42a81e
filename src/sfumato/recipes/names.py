"""Names of packaged recipes and of the papers that they are from, those of version 0.1 included."""

from __future__ import annotations

from functools import cache
from pathlib import Path

_FORMER = {
    "000": "smoothnets", "001": "scale-norm", "002": "shoe-fit", "003": "optimizer-report",
    "paper-003": "optimizer-report", "004": "equivariant",
}  # fmt: skip
"""The papers' names by those that version 0.1 used."""


@cache
def packaged() -> dict[str, Path]:
    """The files of the recipes that come with sfumato, by name."""
    root = Path(__file__).parent
    return {
        path.relative_to(root).with_suffix("").as_posix(): path
        for path in sorted(root.rglob("*.toml"))
    }


def current_name(name: str) -> str:
    """The present name of a paper, recipe, row or pattern of rows, given that or its former one."""
    paper, slash, rest = name.partition("/")
    return _FORMER.get(paper, paper) + slash + rest


def former_names(paper: str) -> list[str]:
    """The names that version 0.1 used for a paper."""
    return [former for former, present in _FORMER.items() if present == paper]
