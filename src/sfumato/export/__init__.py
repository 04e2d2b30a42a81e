"""Trained models for other programs: ONNX, TorchScript and pt2 files, and folders for a hub."""

from __future__ import annotations

from typing import TYPE_CHECKING

from sfumato._lazy import lazy

if TYPE_CHECKING:
    from sfumato.export.model_file import Exported, write

__all__ = ["Exported", "write"]

__getattr__, __dir__ = lazy(__name__, {"model_file": __all__})
