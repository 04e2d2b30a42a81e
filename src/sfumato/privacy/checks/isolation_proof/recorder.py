"""Recorder of every ATen operator in a forward and backward pass, with a batch of symbolic size."""

from __future__ import annotations

import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor, nn
from torch._decomp import core_aten_decompositions
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch.nn.modules.module import register_module_forward_hook, register_module_forward_pre_hook
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_leaves

from sfumato.privacy.checks.isolation_proof import (
    compute_operators,
    layer_operators,
    layout_operators,
)
from sfumato.privacy.checks.isolation_proof.calls import RULES, Call, Rule
from sfumato.privacy.checks.isolation_proof.sizes import Sizes
from sfumato.privacy.checks.isolation_proof.values import (
    Mixed,
    Refused,
    Shared,
    Total,
    Unwritten,
    Value,
    checked,
    symbolic,
)

assert layout_operators  # Importing it adds its rules.


@lru_cache
def _decompositions() -> dict[Any, Any]:
    return dict(core_aten_decompositions())


class NoReplacing(TorchFunctionMode):
    """Mode that ends the proof when code replaces a tensor's data, which no operator shows."""

    def __init__(self, recorder: Recorder) -> None:
        super().__init__()
        self._recorder = recorder

    def __torch_function__(
        self, func: Any, types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        """Call a PyTorch function."""
        if getattr(func, "__name__", "") == "__set__":
            name = getattr(getattr(func, "__self__", None), "__name__", "")
            if name in ("data", "grad", "_base"):
                self._recorder.fail(f"'.{name}' of a tensor is replaced")
        return func(*args, **(kwargs or {}))


class Recorder(FakeTensorMode):
    """Mode that runs operators on tensors without numbers and derives a value for every result.

    Attributes:
        operators: The number of operators followed.
        failure: The first reason that ends the proof whatever the values of results, or None.
        replaced: Addresses of parameters and buffers that were replaced by other tensors.
    """

    def __init__(self, sizes: Sizes) -> None:
        super().__init__(shape_env=sizes, allow_non_fake_inputs=True)  # type: ignore[no-untyped-call]
        self.operators = 0
        self.failure: str | None = None
        self.replaced: set[int] = set()
        self._values: dict[int, tuple[Tensor, Value]] = {}
        self._inside = 1
        self._decompositions = _decompositions()
        self._modules: list[str] = []
        self._spans: list[tuple[int, int, str]] = []

    def set(self, tensor: Tensor, value: Value) -> None:
        """State the value of a tensor."""
        self._values[id(tensor)] = tensor, value

    def value_of(self, tensor: Tensor) -> Value:
        """The value of a tensor; tensors with numbers are constants."""
        if id(tensor) in self._values:
            return self._values[id(tensor)][1]
        if isinstance(tensor, FakeTensor):
            return Mixed("a tensor of unknown origin is used")
        if tensor.requires_grad or tensor.data_ptr() in self.replaced:
            return Mixed("a parameter or buffer is reached other than through its module")
        return Shared()

    def begin(self) -> None:
        """Follow operators from now on."""
        self._inside = 0

    def references(self) -> list[weakref.ref[Tensor]]:
        """Weak references to the tensors that were computed from the batch."""
        every = self._values.values()
        return [weakref.ref(t) for t, value in every if not isinstance(value, Shared)]

    def forget(self) -> None:
        """Drop all tensors."""
        self._values.clear()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Run an operator and follow it."""
        kwargs = dict(kwargs or {})
        if self._inside or not isinstance(func, torch._ops.OpOverload):
            return super().__torch_dispatch__(func, types, args, kwargs)
        if _is_composite(func) and _rule_for(func) is None:
            with self:
                return func.decompose(*args, **kwargs)
        if self._is_to_be_decomposed(func, args, kwargs):
            with self:
                return self._decompositions[func](*args, **kwargs)
        self._inside += 1
        try:
            result = super().__torch_dispatch__(func, types, args, kwargs)
        finally:
            self._inside -= 1
        if func.namespace != "prim" and func.overloadpacket.__name__ not in _ABOUT_SHAPES:
            self._follow(func, args, kwargs, result)
        return result

    def _is_to_be_decomposed(self, func: Any, args: Any, kwargs: Any) -> bool:
        """Tell whether an operator without a rule decomposes into others."""
        if func not in self._decompositions or _rule_for(func) is not None:
            return False
        tensors = [t for t in tree_leaves((args, kwargs)) if isinstance(t, Tensor)]
        return not all(isinstance(self.value_of(t), Shared) for t in tensors)

    def _follow(self, func: Any, args: Any, kwargs: Any, result: Any) -> None:
        self.operators += 1
        leaves = list(result) if isinstance(result, list | tuple) else [result]
        outputs = tuple(t if isinstance(t, Tensor) else None for t in leaves)
        call = Call(func, _by_name(func, args, kwargs), outputs, self.value_of)
        if func._schema.is_mutable:
            self.fail(f"{_named(func)} writes into a tensor that is kept between calls")
        if not any(isinstance(t, Tensor) for t in tree_leaves(result)):
            known = all(isinstance(value, Shared) for value in call.values())
            if known and isinstance(result, int | float | bool):
                return  # A constant of the code.
            self.fail(f"{_named(func)} takes numbers out of a tensor")
        try:
            values = self._derived(call)
        except Refused as reason:
            values = call.every(Mixed(f"{_named(func)}{self._where()}: {reason}"))
        except Exception as error:
            kind = type(error).__name__
            values = call.every(Mixed(f"{_named(func)}{self._where()}: its rule fails ({kind})"))
        for output, value in zip(outputs, values, strict=True):
            if output is not None:
                self.set(output, value)

    def _derived(self, call: Call) -> list[Value]:
        """The values of the outputs of a call."""
        found = _rule_for(call.operator)
        read = {name: t for name, t in call.tensors().items() if not (
            found is not None and found.overwrites and name == "self"
        )}  # fmt: skip
        values = [self.value_of(t) for t in read.values()]
        for value in values:
            if isinstance(value, Mixed):
                return call.every(value)
            if isinstance(value, Unwritten):
                raise Refused("it reads memory that was never written")
        sized = [n for n, a in call.arguments.items() if any(map(symbolic, tree_leaves(a)))]
        if odd := set(sized) - (found.sizes if found else frozenset()):
            raise Refused(f"its argument '{min(odd)}' depends on the size of the batch")
        if (
            all(isinstance(v, Shared) for v in values)
            and not sized
            and not (found is not None and found.overwrites)
        ):
            return self._checked(call, call.every(Shared(_keeps_zero(call, values))))
        if found is None:
            if any(isinstance(v, Total) for v in values):
                linear = compute_operators.total_of_gradient(call)
                if linear is not None:
                    return self._checked(call, list(linear))
            raise Refused("there is no rule for this operator")
        result = found.function(call)
        return self._checked(call, result if isinstance(result, list) else call.every(result))

    def _checked(self, call: Call, values: list[Value]) -> list[Value]:
        pairs = zip(call.outputs, values, strict=True)
        return [v if t is None else checked(v, t.shape) for t, v in pairs]

    def fail(self, reason: str) -> None:
        """End the proof for this reason, in the current module."""
        self.failure = self.failure or f"{reason}{self._where()}"
        raise RuntimeError(self.failure)

    def _where(self) -> str:
        """The module that the operator belongs to, as the end of a phrase."""
        node = torch._C._current_autograd_node()
        if node is None:
            return f" in {self._modules[-1]}" if self._modules else ""
        number = node._sequence_nr()
        around = [span for span in self._spans if span[0] <= number < span[1]]
        inner = min(around, key=lambda span: span[1] - span[0], default=None)
        return f" in the backward pass of {inner[2]}" if inner else " in the backward pass"

    @contextmanager
    def naming(self, model: nn.Module) -> Iterator[None]:
        """Track which module of the model an operator belongs to."""
        names = {id(m): _module_name(name, m) for name, m in model.named_modules()}
        starts: list[int] = []

        def before(module: nn.Module, _: Any) -> None:
            self._modules.append(names.get(id(module), type(module).__name__))
            starts.append(_sequence_number())

        def after(module: nn.Module, _: Any, __: Any) -> None:
            end = _sequence_number()
            self._spans.append((starts.pop(), end, self._modules.pop()))

        handles = [
            register_module_forward_pre_hook(before),
            register_module_forward_hook(after, always_call=True),
        ]
        try:
            yield
        finally:
            for handle in handles:
                handle.remove()


def _sequence_number() -> int:
    number: int = torch._C._autograd._get_sequence_nr()
    return number


_ABOUT_SHAPES = frozenset({
    "size", "stride", "dim", "numel", "storage_offset", "sym_size", "sym_stride", "sym_numel",
    "sym_storage_offset", "is_contiguous", "sym_is_contiguous", "is_strides_like_format",
    "is_non_overlapping_and_dense",
})  # fmt: skip
"""Operators that return shapes, and read no numbers."""


def _is_composite(func: torch._ops.OpOverload) -> bool:
    """Tell whether PyTorch has no kernel for an operator, and runs others in its place."""
    key = torch._C.DispatchKey.CompositeImplicitAutograd
    composite: bool = func.namespace == "aten" and func.has_kernel_for_dispatch_key(key)
    return composite and func.overloadpacket.__name__ not in _ABOUT_SHAPES


def _module_name(name: str, module: nn.Module) -> str:
    kind = type(module).__name__
    return f"layer '{name}' ({kind})" if name else f"the model ({kind})"


def _named(func: torch._ops.OpOverload) -> str:
    return f"operator {func.namespace}.{func.overloadpacket.__name__}"


def _keeps_zero(call: Call, values: list[Value]) -> bool:
    kept = ("view", "expand", "permute", "clone", "alias", "detach", "_to_copy", "unsqueeze")
    return call.name in kept and all(isinstance(v, Shared) and v.zero for v in values)


def _by_name(func: torch._ops.OpOverload, args: Any, kwargs: dict[str, Any]) -> dict[str, Any]:
    """The arguments of a call by the names of the schema, defaults included."""
    found = {}
    for position, argument in enumerate(func._schema.arguments):
        if position < len(args) and not argument.kwarg_only:
            found[argument.name] = args[position]
        elif argument.name in kwargs:
            found[argument.name] = kwargs[argument.name]
        else:
            found[argument.name] = argument.default_value
    return found


def _rule_for(func: torch._ops.OpOverload) -> Rule | None:
    """The rule of a PyTorch operator, or None."""
    if func.namespace != "aten":
        return None
    name = func.overloadpacket.__name__
    if compute_operators.is_elementwise(func):
        return _ELEMENTWISE
    if layer_operators.is_spatial(name):
        return _SPATIAL
    return RULES.get(name)


_ELEMENTWISE = Rule(compute_operators.elementwise)
_SPATIAL = Rule(layer_operators.spatial, layer_operators.SPATIAL_SIZES)
