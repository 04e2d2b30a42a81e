"""The symbolic size of the batch, and the code that asks for it."""

from __future__ import annotations

import sys
from typing import Any

import sympy  # type: ignore[import-untyped]
from torch.fx.experimental.symbolic_shapes import ShapeEnv

HINT = 23
"""The batch size assumed when kernels are chosen, on which no result depends."""


class Sizes(ShapeEnv):
    """Symbolic sizes that record every question about the size of the batch.

    Questions that PyTorch asks to choose the kernel of a convolution, and with it the memory format
    of its output, are answered for a batch of `HINT` rows and forgotten. Any other becomes a guard
    and ends the proof: code that asks for the size may behave differently for another batch.
    """

    asked: str = ""
    """The first such question, and the line of code that asked it."""

    def evaluate_expr(self, orig_expr: Any, *args: Any, **kwargs: Any) -> Any:
        """Answer a question about sizes."""
        if _asked_by_kernel():
            numbers = {symbol: HINT for symbol in orig_expr.free_symbols if str(symbol)[0] == "s"}
            answer = sympy.sympify(orig_expr).xreplace(numbers)
            if not answer.free_symbols:
                return answer
        before = len(self.guards)
        answer = super().evaluate_expr(orig_expr, *args, **kwargs)
        if len(self.guards) > before or self.replacements:
            self.asked = self.asked or f"{orig_expr}{_place()}"
            raise RuntimeError(f"the size of the batch is asked for: {self.asked}")
        return answer


def _place() -> str:
    """The innermost line of code outside of PyTorch."""
    frame = sys._getframe(2)
    while frame is not None:
        file = frame.f_code.co_filename
        if (
            "/torch/" not in file
            and "/isolation_proof/" not in file
            and not file.endswith(_BETWEEN)
        ):
            return f", line {frame.f_lineno} of {file.rsplit('/', 1)[-1]}"
        frame = frame.f_back  # type: ignore[assignment]
    return ""


def _asked_by_kernel() -> bool:
    """Tell whether the innermost frame that is not about symbols chooses a convolution's kernel."""
    frame = sys._getframe(2)
    while frame is not None:
        file = frame.f_code.co_filename
        if "/torch/fx/experimental/" not in file and not file.endswith(_BETWEEN):
            choosing = frame.f_code.co_name == "conv"
            return choosing and file.endswith("/torch/_subclasses/fake_impls.py")
        frame = frame.f_back  # type: ignore[assignment]
    return False


_BETWEEN = ("/torch/__init__.py", "/torch/utils/_stats.py", "/functools.py", "/contextlib.py")
