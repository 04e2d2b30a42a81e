"""Trained models for other programs: ONNX, TorchScript and pt2 files, and folders for a hub."""

from __future__ import annotations

from typing import TYPE_CHECKING

from sfumato._lazy import lazy

if TYPE_CHECKING:
    from sfumato.export.hub_folder import write_folder
    from sfumato.export.model_file import Exported, write

__all__ = ["Exported", "write", "write_folder"]

__getattr__, __dir__ = lazy(
    __name__, {"model_file": ("Exported", "write"), "hub_folder": ("write_folder",)}
)
