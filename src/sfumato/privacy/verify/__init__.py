"""`sfumato verify`: deep checks of private training on one model; `verify.verify(model, ...)`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from sfumato._lazy import lazy

if TYPE_CHECKING:
    from sfumato.privacy.verify.verification import Check, ParameterError, Report, verify

__all__ = ["Check", "ParameterError", "Report", "verify"]

__getattr__, __dir__ = lazy(__name__, {"verification": __all__})
