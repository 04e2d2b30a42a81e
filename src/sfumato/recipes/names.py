"""Names of packaged recipes."""

from __future__ import annotations

from functools import cache
from pathlib import Path

_ALIASES = {
    f"003/{step}": f"paper-003/{step}"
    for step in (
        "1-baseline", "2-adaptive-clipping", "3-weight-standardisation", "4-larger-batch",
        "5-per-layer-clipping", "6-plateau",
    )
}  # fmt: skip
"""Other names of packaged recipes: the chain of paper 003 beside the paper's other recipes."""


@cache
def packaged() -> dict[str, Path]:
    """The files of the recipes that come with sfumato, by name."""
    root = Path(__file__).parent
    return {
        path.relative_to(root).with_suffix("").as_posix(): path
        for path in sorted(root.rglob("*.toml"))
    }


def current_name(name: str) -> str:
    """A packaged recipe's own name, given that or another."""
    return _ALIASES.get(name, name)
