"""The models: one file per family; importing this package imports them all, and so registers them.

`create` builds a model from its name, `create_trusted` from a name read from a file, `names` and
`info` query the registry, and `summary` counts layers and parameters. To add a model, put one file
with one `@register(...)` here (docs/adding-a-model.md).
"""

from __future__ import annotations

import importlib
import pkgutil

from sfumato.models._given import given_name
from sfumato.models._summary import Layer, Summary, summary, summary_of
from sfumato.models._trust import Code, GivenModel, Trust, is_library_name
from sfumato.models.registry import (
    ModelInfo,
    create,
    create_trusted,
    info,
    names,
    parse_options,
    patterns,
    register,
)

for _module in pkgutil.iter_modules(__path__):
    if not _module.name.startswith("_"):
        importlib.import_module(f"{__name__}.{_module.name}")

__all__ = [
    "Code",
    "GivenModel",
    "Layer",
    "ModelInfo",
    "Summary",
    "Trust",
    "create",
    "create_trusted",
    "given_name",
    "info",
    "is_library_name",
    "names",
    "parse_options",
    "patterns",
    "register",
    "summary",
    "summary_of",
]


def __dir__() -> list[str]:
    return sorted(__all__)
