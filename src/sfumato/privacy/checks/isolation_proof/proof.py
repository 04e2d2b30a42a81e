"""A proof, by the operators of a model and its loss, that examples do not reach each other.

The forward pass, the loss and the backward pass are run once on tensors without numbers, for a
batch whose size is a symbol. Every ATen operator has a rule that derives where the batch is in its
results, or refuses.

Guarantee: If isolation is proved, then under the conditions below there are functions f, l and g
such that, for every batch of two or more examples, the output of row i is f(x_i), its loss is
l(x_i, y_i), and the gradient of the summed loss with respect to each parameter is the sum over i of
g(x_i, y_i). Each may also depend on parameters, constants, and random numbers that were drawn for
that row or that no data influenced. None depends on the number of rows, nor on the position of a
row.

This holds by induction over the operators, since each rule carries the property from inputs to
outputs. Backward passes of custom autograd functions, hooks on tensors and modules, and recomputed
parts are followed like everything else, because the operators that they run are what is followed.

Conditions:
- Later calls run the same operators. What the model keeps in parameters, buffers and plain
  attributes is compared before and after, and tensors that outlive the pass are found, but not
  numbers, files or clocks that its code reads elsewhere, nor code that asks whether it is traced.
- Kernels compute what their operator says, each row for itself. Rounding may depend on the batch.
- The model is in the mode (training or evaluation) in which it will be used, and inputs have the
  shape, type and device of those given.
"""

from __future__ import annotations

import copy
import gc
import logging
import random
import warnings
import weakref
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch._dispatch.python import enable_python_dispatcher
from torch._dynamo.source import ConstantSource
from torch._functorch._aot_autograd.functional_utils import from_fun, has_data_mutation, to_fun
from torch._subclasses.fake_tensor import FakeTensor
from torch._subclasses.functional_tensor import FunctionalTensor, FunctionalTensorMode
from torch.fx.experimental.symbolic_shapes import DimDynamic, StatelessSymbolicContext
from torch.utils._pytree import tree_leaves

from sfumato.privacy.checks.isolation_proof.outcome import Proof
from sfumato.privacy.checks.isolation_proof.recorder import NoReplacing, Recorder
from sfumato.privacy.checks.isolation_proof.sizes import HINT, Sizes
from sfumato.privacy.checks.isolation_proof.values import EXAMPLE, Mixed, Rows, Shared, Total, Value
from sfumato.privacy.engines.objective import Loss
from sfumato.privacy.numerics.model_state import Snapshot


class _NotProved(Exception):
    """The reason why isolation cannot be proved."""


def prove_isolation(model: nn.Module, loss: Loss, x: Tensor, y: Tensor) -> Proof:
    """Try to prove that each example's results depend on that example alone.

    Nothing is computed, so it takes time for the operators of one pass and no memory for results.
    The model is left as it was.

    Args:
        model: The model, in the mode in which it will run.
        loss: From outputs and targets to one loss per row.
        x: Inputs whose shape, type and device to use; their values are not.
        y: Targets, likewise.

    Returns:
        The proof, or the reason why there is none. A model that cannot be followed is not proved;
        nothing is raised.
    """
    sizes = Sizes()
    recorder = Recorder(sizes)
    try:
        _refuse_hooks(model)
        try:
            kept = _trace(recorder, sizes, model, loss, x, y)
        finally:
            if recorder.failure:
                raise _NotProved(recorder.failure)
            _refuse_guards(sizes)
        operators = recorder.operators
        recorder.forget()
        _refuse_survivors(kept)
    except _NotProved as reason:
        return Proof(False, recorder.operators, str(reason))
    except Exception as error:
        lines = str(error).strip().splitlines() or [""]
        said = f"{type(error).__name__}: {lines[0][:200]}"
        return Proof(False, recorder.operators, f"it cannot be traced ({said})")
    return Proof(True, operators)


def _refuse_hooks(model: nn.Module) -> None:
    """Refuse hooks on parameters, which the trace would not see because it replaces these."""
    for name, parameter in model.named_parameters():
        if type(parameter) is not nn.Parameter:
            raise _NotProved(f"parameter '{name}' is a {type(parameter).__name__}")
        hooks = (parameter._backward_hooks, getattr(parameter, "_post_accumulate_grad_hooks", None))
        if any(hooks):
            raise _NotProved(f"parameter '{name}' has a hook on its gradient")


def _refuse_guards(sizes: Sizes) -> None:
    """Refuse a pass that asked for the size of the batch."""
    if sizes.asked or sizes.guards or sizes.replacements:
        raise _NotProved(f"the code asks for the size of the batch ({sizes.asked})")


def _refuse_survivors(kept: list[weakref.ref[Tensor]]) -> None:
    """Refuse a pass after which something still holds tensors computed from the batch."""
    for generation in range(3):
        if all(reference() is None for reference in kept):
            return
        gc.collect(generation)
    if any(reference() is not None for reference in kept):
        raise _NotProved("something keeps a tensor of the batch after the pass")


@contextmanager
def _no_python_draws() -> Iterator[None]:
    """Refuse a pass that draws from the random numbers of Python or NumPy."""
    python, numpy = random.getstate(), np.random.get_state()
    try:
        yield
        drawn = python != random.getstate() or str(numpy) != str(np.random.get_state())
    finally:
        random.setstate(python)
        np.random.set_state(numpy)
    if drawn:
        raise _NotProved("the code draws random numbers of Python or NumPy")


_LOGGERS = (
    "torch._subclasses.fake_tensor",
    "torch.fx.experimental.symbolic_shapes",
    "torch.fx.experimental.recording",
)


@contextmanager
def _quiet() -> Iterator[None]:
    """Hide PyTorch's messages about a model that it cannot follow."""
    loggers = [logging.getLogger(name) for name in _LOGGERS]
    before = [logger.disabled for logger in loggers]
    try:
        for logger in loggers:
            logger.disabled = True
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        for logger, disabled in zip(loggers, before, strict=True):
            logger.disabled = disabled


def _shell(module: nn.Module) -> nn.Module:
    """A copy of a module that shares its tensors; new attributes are set on the copy only."""
    memo: dict[int, object] = {id(t): t for t in (*module.parameters(), *module.buffers())}
    for part in module.modules():
        for value in vars(part).values():
            if isinstance(value, Tensor):
                memo[id(value)] = value.detach()
    return copy.deepcopy(module, memo)


def _fake(recorder: Recorder, tensor: Tensor) -> Tensor:
    fake: Tensor = recorder.from_tensor(tensor.detach(), static_shapes=True)
    return fake.requires_grad_(tensor.requires_grad)


def _batch(recorder: Recorder, sizes: Sizes, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    """Inputs and targets without numbers, with one symbol for their number of rows."""
    like = x.new_empty((HINT, *x.shape[1:]), device="meta")
    if x.dim() == 4 and x.is_contiguous(memory_format=torch.channels_last):
        like = like.contiguous(memory_format=torch.channels_last)
    dims = [DimDynamic.DYNAMIC] + [DimDynamic.STATIC] * (x.dim() - 1)
    context: Any = StatelessSymbolicContext(dynamic_sizes=dims)
    source = ConstantSource("x")
    shape = recorder.from_tensor(like, symbolic_context=context, source=source)
    with recorder:
        inputs = torch.empty_like(shape, device=x.device)
        targets = torch.empty((shape.shape[0], *y.shape[1:]), dtype=y.dtype, device=y.device)
    return inputs, targets


def _trace(
    recorder: Recorder, sizes: Sizes, model: nn.Module, loss: Loss, x: Tensor, y: Tensor
) -> list[weakref.ref[Tensor]]:
    """Run the pass and judge its results; returns references to the tensors that it made."""
    shell = _shell(model)
    own_loss = _shell(loss) if isinstance(loss, nn.Module) else loss
    before = [Snapshot(part) for part in (shell, own_loss) if isinstance(part, nn.Module)]
    state = {n: _fake(recorder, t) for n, t in _state(shell)}
    recorder.replaced = {t.data_ptr() for _, t in _state(shell) if t.numel()}
    inputs, targets = _batch(recorder, sizes, x, y)
    for tensor in state.values():
        recorder.set(tensor, Shared())
    recorder.set(inputs, EXAMPLE)
    recorder.set(targets, EXAMPLE)
    recorder.begin()
    with ExitStack() as stack:
        for context in (
            _quiet(),
            torch.random.fork_rng(devices=[]),
            _no_python_draws(), recorder, enable_python_dispatcher(), recorder.naming(shell),
            NoReplacing(recorder), torch.enable_grad(),
            torch.autograd.set_multithreading_enabled(False),
        ):  # fmt: skip
            stack.enter_context(context)
        _run(recorder, shell, own_loss, state, inputs, targets)
    for snapshot, part in zip(before, (shell, own_loss), strict=False):
        _refuse_changes(snapshot, part)
    return recorder.references()


def _state(model: nn.Module) -> list[tuple[str, Tensor]]:
    return [*model.named_parameters(), *model.named_buffers()]


@contextmanager
def _holding(model: nn.Module, instead: dict[int, Tensor]) -> Iterator[None]:
    """Replace parameters and buffers by other tensors for a while."""
    slots = [
        (holder, key, tensor, f"{path}.{key}".removeprefix("."))
        for path, part in model.named_modules()
        for holder in (part._parameters, part._buffers)
        for key, tensor in holder.items()
        if tensor is not None
    ]
    for holder, key, tensor, _ in slots:
        holder[key] = instead[id(tensor)]
    try:
        yield
        for holder, key, tensor, name in slots:
            if holder.get(key) is not instead[id(tensor)]:
                raise _NotProved(f"the forward pass writes into '{name}'")
    finally:
        for holder, key, tensor, _ in slots:
            holder[key] = tensor


def _refuse_changes(before: Snapshot, module: Any) -> None:
    made = (
        f"{path}.{key}".removeprefix(".")
        for path, part in module.named_modules()
        for key, value in vars(part).items()
        if any(isinstance(leaf, FakeTensor | FunctionalTensor) for leaf in tree_leaves(value))
    )
    if name := next(made, None) or before.first_difference(Snapshot(module)):
        raise _NotProved(f"the forward pass changes '{name}', which is kept between calls")


def _run(
    recorder: Recorder,
    model: nn.Module,
    loss: Loss,
    state: dict[str, Tensor],
    inputs: Tensor,
    targets: Tensor,
) -> None:
    """Forward pass, loss and backward pass, with in-place operators made functional."""
    with FunctionalTensorMode():
        wrapped = {name: to_fun(tensor) for name, tensor in state.items()}
        x, y = to_fun(inputs), to_fun(targets)
        with _holding(model, {id(t): wrapped[n] for n, t in _state(model)}):
            outputs = model(x)
            losses = loss(outputs, y)
            _refuse_results(outputs, losses)
            wanted = {n: p for n, p in wrapped.items() if p.requires_grad}
            found = torch.autograd.grad(losses.sum(), list(wanted.values()), allow_unused=True)
        for name, tensor in wrapped.items():
            if has_data_mutation(tensor):
                raise _NotProved(f"the forward pass writes into '{name}'")
        if has_data_mutation(y):
            raise _NotProved("the targets are changed")
        _judge(recorder, "the outputs", outputs, EXAMPLE)
        _judge(recorder, "the losses", losses, EXAMPLE)
        for name, gradient in zip(wanted, found, strict=True):
            if gradient is not None:
                _judge(recorder, f"the gradient of parameter '{name}'", gradient, Total())


def _refuse_results(outputs: object, losses: object) -> None:
    for what, result in (("model", outputs), ("loss", losses)):
        if not isinstance(result, Tensor):
            raise _NotProved(f"the {what} returns no tensor")
    if isinstance(losses, Tensor) and losses.dim() != 1:
        raise _NotProved("the loss does not return one number per row")


def _judge(recorder: Recorder, what: str, tensor: Tensor, wanted: Value) -> None:
    plain: Any = from_fun(tensor)
    value = recorder.value_of(plain)
    if value == wanted or (isinstance(wanted, Total) and value == Shared(zero=True)):
        return
    if isinstance(value, Mixed):
        raise _NotProved(value.reason)
    if isinstance(wanted, Rows):
        raise _NotProved(f"{what}: not one row per example")
    raise _NotProved(f"{what}: no sum with one term per example")
