"""The search for the layer in which one example reaches another, at both ends of every module."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial

from torch import Tensor, nn
from torch.utils._pytree import tree_flatten

from sfumato.privacy.numerics.distance import distance


@dataclass
class _Call:
    """One call of a module: values and gradients at its two ends."""

    module: str
    kind: str
    inputs: list[Tensor] = field(default_factory=list)
    outputs: list[Tensor] = field(default_factory=list)
    input_gradients: dict[int, Tensor] = field(default_factory=dict)
    output_gradients: dict[int, Tensor] = field(default_factory=dict)


def _keep_gradient(kept: dict[int, Tensor], index: int, gradient: Tensor) -> None:
    kept[index] = gradient.detach().clone()


@contextmanager
def _listening(model: nn.Module) -> Iterator[list[_Call]]:
    """Record every module's calls, innermost first, in the order in which they end."""
    calls: list[_Call] = []
    open_calls: list[_Call] = []
    handles = []

    def keep(values: object, kept: list[Tensor], gradients: dict[int, Tensor]) -> None:
        for value in tree_flatten(values)[0]:
            # Tensors of tensors of several lengths have no shape.
            if isinstance(value, Tensor) and not value.is_nested:
                if value.requires_grad:
                    index = len(kept)
                    hook = partial(_keep_gradient, gradients, index)
                    value.register_hook(hook)  # type: ignore[no-untyped-call]
                kept.append(value.detach().clone())

    def listen(name: str, module: nn.Module) -> None:
        def before(_: nn.Module, args: object, kwargs: object) -> None:
            call = _Call(name, type(module).__name__)
            keep((args, kwargs), call.inputs, call.input_gradients)
            open_calls.append(call)

        def after(_: nn.Module, args: object, out: object) -> None:
            call = open_calls.pop()
            keep(out, call.outputs, call.output_gradients)
            calls.append(call)

        handles.append(module.register_forward_pre_hook(before, with_kwargs=True))
        handles.append(module.register_forward_hook(after))

    for name, module in model.named_modules():
        listen(name, module)
    try:
        yield calls
    finally:
        for handle in handles:
            handle.remove()


def culprit(
    model: nn.Module, first: Callable[[], object], second: Callable[[], object], others: Tensor
) -> str:
    """The innermost module whose inputs of other examples are unmoved and whose outputs moved.

    Gradients are compared likewise, from the outputs to the inputs.

    Args:
        model: The model.
        first: Runs the model on a batch.
        second: Runs it on the batch with one example changed, from the same random state.
        others: Indices of the rows that were not changed.
    """
    try:
        with _listening(model) as calls:
            first()
        with _listening(model) as calls_after:
            second()
    except Exception:
        return ""
    pairs = [(a, b) for a, b in zip(calls, calls_after, strict=False) if a.module == b.module]
    for a, b in pairs:
        if not _any_moved(a.inputs, b.inputs, others) and _any_moved(a.outputs, b.outputs, others):
            return _named(a)
    for a, b in pairs:
        entering = _aligned(a.output_gradients, b.output_gradients)
        leaving = _aligned(a.input_gradients, b.input_gradients)
        if not _any_moved(*entering, others) and _any_moved(*leaving, others):
            return _named(a)
    return ""


def _aligned(a: dict[int, Tensor], b: dict[int, Tensor]) -> tuple[list[Tensor], list[Tensor]]:
    shared = [index for index in a if index in b]
    return [a[i] for i in shared], [b[i] for i in shared]


def _any_moved(a: list[Tensor], b: list[Tensor], others: Tensor) -> bool:
    return any(_rows_moved(u, v, others) for u, v in zip(a, b, strict=False))


def _rows_moved(a: Tensor, b: Tensor, others: Tensor) -> bool:
    """Tell whether rows of the other examples differ, along the first dimension of their number."""
    if a.shape != b.shape:
        return True
    for dim, size in enumerate(a.shape):
        if size == others.numel():
            index = others.nonzero().squeeze(1).to(a.device)
            return distance(a.index_select(dim, index), b.index_select(dim, index)) > 0
    return False


def _named(call: _Call) -> str:
    return f"layer '{call.module}' ({call.kind})" if call.module else f"the model ({call.kind})"
