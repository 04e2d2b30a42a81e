"""Public names of a package that are imported on first use, and listed by `dir()` all the same."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any


def lazy(
    package: str, names: Mapping[str, Sequence[str]]
) -> tuple[Callable[[str], Any], Callable[[], list[str]]]:
    """Return `__getattr__` and `__dir__` of a package whose names are imported on first use.

    Args:
        package: The package's `__name__`.
        names: Public names by the module that defines them, relative to the package (one beside it
            begins with a dot); by an empty string those that are modules below it themselves.
    """
    homes = {name: home for home, group in names.items() for name in group}

    def attribute(name: str) -> Any:
        if name not in homes:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        if not homes[name]:
            return importlib.import_module(f"{package}.{name}")
        return getattr(importlib.import_module(f".{homes[name]}", package), name)

    return attribute, lambda: sorted(homes)
