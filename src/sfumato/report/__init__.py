"""Documents about runs: the HTML page, the card, pictures of evaluations and analyses."""

from __future__ import annotations

from typing import TYPE_CHECKING

from sfumato._lazy import lazy

if TYPE_CHECKING:
    from sfumato.report.page import write

__all__ = ["write"]

__getattr__, __dir__ = lazy(__name__, {"page": __all__})
