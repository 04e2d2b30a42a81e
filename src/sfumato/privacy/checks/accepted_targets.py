"""The targets that a loss accepts, found by trying it on the CPU."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from functools import partial
from types import CellType, FunctionType
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from sfumato.privacy.checks.random_inputs import random_targets
from sfumato.privacy.engines.objective import Loss
from sfumato.privacy.numerics.model_state import copied
from sfumato.privacy.numerics.precision import widened

_CTC = (torch.ctc_loss, F.ctc_loss)


class _CtcCalls(TorchFunctionMode):
    """Mode that records whether `ctc_loss` is called."""

    called = False

    def __torch_function__(
        self,
        func: Any,
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        """Run an operation."""
        self.called = self.called or func in _CTC
        return func(*args, **(kwargs or {}))


def calls_ctc(loss: Loss, outputs: Tensor, y: Tensor) -> bool:
    """Tell whether a loss calls `ctc_loss`: run on real targets, the only ones known to be safe."""
    rows = min(len(outputs), len(y))
    with _CtcCalls() as mode, suppress(Exception):  # An error is reported where the loss is used.
        loss(outputs[:rows].clone(), y[:rows].clone())
    return bool(mode.called)


def accepts(loss: Loss, outputs: Tensor, targets: Tensor, *, of: int | None = None) -> bool:
    """Tell whether a loss takes such targets: it raises no error, and is finite if outputs are.

    It is tried on the CPU: a label that is no class would end a process that uses a GPU.

    Args:
        loss: The loss.
        outputs: Outputs of the model.
        targets: The targets, as many.
        of: Number of targets whose losses must be finite; all if None.
    """
    try:
        own = loss if outputs.device.type == "cpu" else with_tensors(loss, on_cpu)
        losses = own(outputs.cpu().clone(), targets.cpu().clone())[:of]
        finite = [bool(torch.isfinite(t).all()) for t in (losses, outputs)]
        return finite[0] or not finite[1]
    except Exception:  # The error is reported where the loss is used.
        return False


def with_tensors(value: Any, change: Callable[[Any], Any]) -> Any:
    """A loss, or what it holds, with all tensors and modules changed; the loss itself stays.

    Args:
        value: A callable, or a part of its closure, of its arguments or of its attributes.
        change: From a tensor to a tensor, and from a module to a module.
    """
    again = partial(with_tensors, change=change)
    if isinstance(value, nn.Module):
        own = change(copied(value))
        for module in own.modules():
            vars(module).update({k: again(v) for k, v in vars(module).items() if _is_tensor(v)})
        return own
    if isinstance(value, partial):
        kwargs = {name: again(v) for name, v in value.keywords.items()}
        return partial(again(value.func), *map(again, value.args), **kwargs)
    if isinstance(value, FunctionType):
        cells = tuple(CellType(again(cell.cell_contents)) for cell in value.__closure__ or ())
        defaults = tuple(map(again, value.__defaults__ or ()))
        twin = FunctionType(value.__code__, value.__globals__, value.__name__, defaults, cells)
        twin.__kwdefaults__ = value.__kwdefaults__
        return twin
    return change(value) if _is_tensor(value) else value


def on_cpu(value: Any) -> Any:
    """A tensor or a module on the CPU."""
    return value.cpu()


def in_double(value: Any) -> Any:
    """A tensor or a module in float64."""
    return value.double() if isinstance(value, nn.Module) else widened(value)


def _is_tensor(value: Any) -> bool:
    return isinstance(value, Tensor)


def accepted_labels(loss: Loss, outputs: Tensor, y: Tensor, *, ctc: bool) -> range | None:
    """Labels that the loss accepts: of all outputs or, if these are others, between real ones."""
    if y.is_floating_point() or y.is_complex() or y.dtype == torch.bool or not y.numel():
        labels = range(2)
        return labels if accepts(loss, outputs, random_targets(y, labels, len(outputs))) else None
    between = range(int(y.min()), int(y.max()) + 1)
    for labels in ((None if ctc else _classes(outputs, y)) or between, between):
        drawn = random_targets(y, labels, len(outputs))
        ends = [torch.full_like(drawn, end) for end in (labels[0], labels[-1])]
        if all(accepts(loss, outputs, targets) for targets in (drawn, *ends)):
            return labels
    return None


def _classes(outputs: Tensor, y: Tensor) -> range | None:
    """The classes that outputs are of, two at least; None if no order of dimensions is usual."""
    if outputs.dim() <= 2 or outputs.shape[2:] == y.shape[1:]:
        return range(max(2, outputs.shape[1]) if outputs.dim() > 1 else 2)
    if outputs.shape[1:] == y.shape[1:]:
        return range(2)
    return range(max(2, outputs.shape[-1])) if outputs.shape[1:-1] == y.shape[1:] else None
