"""Finding the residual sums of any network while it runs, and the two paths that meet in each.

Klause et al. (2022, figure 1) name the tensors of a residual block: V_R on the residual path (the
skip connection), V_F on the convolutional path, V_A their sum, and V_A^S the sum after ScaleNorm.
No block class needs to be known: every operation of a forward pass is watched, each tensor carries
its depth, the number of convolutions and matrix products (and, to decide between equals, of all
operations) between the input and itself, and a sum of two tensors of one shape but different depth
is a residual sum, whose deeper part is V_F. Sums before the first convolution or product, such as
those of a Fourier transform, are none.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_iter

Seen = Callable[[str, str, Tensor], None]
"""Called with the block's name, the tensor's name (V_R, ...) and the tensor."""

_DEPTH = "_sfumato_depth"
_SUM_OF = "_sfumato_sum_of"
_SUMS = (torch.add, Tensor.add, Tensor.add_, Tensor.__add__, Tensor.__radd__, Tensor.__iadd__)
_DEEPER = (
    F.conv1d, F.conv2d, F.conv3d, F.conv_transpose1d, F.conv_transpose2d, F.conv_transpose3d,
    F.linear, F.scaled_dot_product_attention, F.multi_head_attention_forward,
)  # fmt: skip


class _Watch(TorchFunctionMode):
    """Carries depths from arguments to results, and reports residual sums."""

    def __init__(self, seen: Seen, block: Callable[[], str]) -> None:
        super().__init__()
        self._seen, self._block = seen, block

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: object,
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        kwargs = kwargs or {}
        depths = [_depth(a) for a in tree_iter((args, kwargs)) if isinstance(a, Tensor)]
        known = [depth for depth in depths if depth is not None]
        parts = self._parts(func, args) if known else None
        if parts is not None:
            self._report(*parts)
        result = func(*args, **kwargs)
        if known:
            products, operations = max(known)
            depth = products + (func in _DEEPER), operations + 1
            for tensor in tree_iter(result):
                if isinstance(tensor, Tensor):
                    setattr(tensor, _DEPTH, depth)
        if parts is not None and isinstance(result, Tensor):
            block = self._block()
            setattr(result, _SUM_OF, block)
            self._seen(block, "V_A", result)
        return result

    def _parts(self, func: Any, args: tuple[Any, ...]) -> tuple[Tensor, Tensor] | None:
        """The skip path and the deep path, if this is a residual sum."""
        if func not in _SUMS or len(args) < 2:
            return None
        a, b = args[:2]
        if not (isinstance(a, Tensor) and isinstance(b, Tensor) and a.shape == b.shape):
            return None
        depth_a, depth_b = _depth(a), _depth(b)
        if depth_a is None or depth_b is None or depth_a == depth_b:
            return None
        if max(depth_a, depth_b)[0] == 0:
            return None
        return (a, b) if depth_a < depth_b else (b, a)

    def _report(self, skip: Tensor, deep: Tensor) -> None:
        block = self._block()
        self._seen(block, "V_R", skip)
        self._seen(block, "V_F", deep)


def _depth(tensor: Tensor) -> tuple[int, int] | None:
    found: tuple[int, int] | None = getattr(tensor, _DEPTH, None)
    return found


@contextmanager
def watched(model: nn.Module, seen: Seen) -> Iterator[Callable[[Tensor], Tensor]]:
    """Report the tensors of every residual block in forward passes of `model`.

    Yields:
        A function that runs the model on a batch.
    """
    inside: list[str] = []
    counts: dict[str, int] = {}

    def block() -> str:
        name = inside[-1] if inside else ""
        return name or "(whole model)"

    def enter(name: str) -> Callable[[nn.Module, Any], None]:
        return lambda _module, _args: inside.append(name)

    def leave(name: str, norm: bool) -> Callable[[nn.Module, Any, Any], None]:
        def hook(_module: nn.Module, args: Any, result: Any) -> None:
            inside.pop()
            first = args[0] if args else None
            if norm and isinstance(first, Tensor) and isinstance(result, Tensor):
                of = getattr(first, _SUM_OF, None)
                if of is not None and of == block():
                    seen(numbered(of), "V_A^S", result)

        return hook

    def numbered(name: str) -> str:
        """A module with several sums (a stage without block modules) has them numbered."""
        return name if counts.get(name, 1) == 1 else f"{name}#{counts[name]}"

    def count(name: str, path: str, tensor: Tensor) -> None:
        if path == "V_R":
            counts[name] = counts.get(name, 0) + 1
        seen(numbered(name), path, tensor)

    hooks = []
    for name, module in model.named_modules():
        norm = "norm" in type(module).__name__.lower()
        hooks.append(module.register_forward_pre_hook(enter(name)))
        hooks.append(module.register_forward_hook(leave(name, norm)))

    def run(x: Tensor) -> Tensor:
        counts.clear()
        inside.clear()
        x = x.detach().clone()
        setattr(x, _DEPTH, (0, 0))
        with _Watch(count, block):
            result: Tensor = model(x)
        return result

    try:
        yield run
    finally:
        for hook in hooks:
            hook.remove()
