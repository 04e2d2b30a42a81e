"""Summary of a network: layers, trainable parameters, multiply-accumulates per image."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.utils import parametrize
from torch.overrides import TorchFunctionMode

from sfumato.models.registry import create
from sfumato.nn.scattering import Scattering
from sfumato.nn.transformer import DotProductAttention


@dataclass(frozen=True)
class Layer:
    """One call of a layer.

    Attributes:
        name: Its name in the network.
        kind: The class of the module.
        output: The shape of its output for one image.
        parameters: Its trainable parameters; zero at a second call.
        macs: Multiply-accumulates of its convolution, matrix products or wavelets, per image.
    """

    name: str
    kind: str
    output: tuple[int, ...]
    parameters: int
    macs: int


@dataclass(frozen=True)
class Summary:
    """The layers of a network in the order of their calls, and the totals."""

    layers: tuple[Layer, ...]
    parameters: int
    macs: int


def summary(model: nn.Module, input: tuple[int, int, int]) -> Summary:
    """Run one image through the network and record every layer; convolutions and products count.

    Args:
        model: The network, on any device; it is left as it was.
        input: Channels, height and width of the image.
    """
    rows: list[Layer] = []
    names = {module: name for name, module in _layers(model)}

    def note(module: nn.Module, _: object, output: object) -> None:
        shape = tuple(output.shape[1:]) if isinstance(output, Tensor) else ()
        name = names[module]
        rows.append(
            Layer(
                name=name,
                kind=parametrize.type_before_parametrizations(module).__name__,
                output=shape,
                parameters=0 if any(row.name == name for row in rows) else _own(module),
                macs=_macs(module, shape),
            )
        )

    modes = {module: module.training for module in model.modules()}
    hooks = [module.register_forward_hook(note) for module in names]
    try:
        like = next(model.parameters(), torch.empty(0))
        with torch.no_grad():
            model.eval()(torch.zeros(1, *input, device=like.device, dtype=like.dtype))
    finally:
        for hook in hooks:
            hook.remove()
        for module, mode in modes.items():
            module.training = mode
    trainable = sum(p.numel() for p in model.parameters() if p.requires_grad)
    return Summary(tuple(rows), parameters=trainable, macs=sum(row.macs for row in rows))


def summary_of(
    name: str,
    *,
    classes: int = 10,
    channels: int = 3,
    size: tuple[int, int] = (32, 32),
    options: Mapping[str, object] | None = None,
    batchnorm_to: str | None = None,
) -> Summary:
    """The summary of a model by name, from shapes alone, without drawing weights."""
    with _ShapesOnly():
        model = create(
            name, classes=classes, channels=channels, size=size, batchnorm_to=batchnorm_to,
            **(options or {}),
        )  # fmt: skip
        return summary(model, (channels, *size))


_IN_PLACE = (
    Tensor.normal_, Tensor.uniform_, Tensor.erfinv_, Tensor.mul_, Tensor.add_, Tensor.clamp_,
    Tensor.zero_, Tensor.fill_,
)  # fmt: skip
"""Operations of initialisations."""


class _ShapesOnly(TorchFunctionMode):
    """Mode that replaces costly operations by cheap ones with results of the same shape."""

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: object,
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> object:
        if func in _IN_PLACE or func is F.group_norm:
            return args[0]
        if func is F.linear:
            return args[0].new_empty(*args[0].shape[:-1], len(args[1]))
        if func is F.conv2d and len(args) == 7 and not isinstance(args[4], str):
            image, weight, _, stride, padding, dilation, _ = args
            sides = zip(image.shape[2:], weight.shape[2:], stride, padding, dilation, strict=True)
            size = [(n + 2 * p - d * (k - 1) - 1) // s + 1 for n, k, s, p, d in sides]
            return image.new_empty(len(image), len(weight), *size)
        return func(*args, **(kwargs or {}))


def _layers(module: nn.Module, name: str = "") -> Iterator[tuple[str, nn.Module]]:
    """The modules that compute: those without children or with tensors of their own."""
    children = [(key, child) for key, child in module.named_children() if key != "parametrizations"]
    if _own(module) or not (children or isinstance(module, nn.Identity)):
        yield name, module
    for key, child in children:
        yield from _layers(child, f"{name}.{key}" if name else key)


def _own(module: nn.Module) -> int:
    """The trainable parameters of a module without its children, but with its parametrisations."""
    own = list(module.parameters(recurse=False))
    if parametrize.is_parametrized(module):
        own += list(module.get_submodule("parametrizations").parameters())
    return sum(p.numel() for p in own if p.requires_grad)


def _macs(module: nn.Module, output: tuple[int, ...]) -> int:
    if isinstance(module, nn.Conv2d):
        each = module.in_channels // module.groups * torch.Size(module.kernel_size).numel()
    elif isinstance(module, nn.Linear):
        each = module.in_features
    elif isinstance(module, DotProductAttention):
        each = 2 * output[0]  # queries by keys, and weights by values
    elif isinstance(module, Scattering):
        return output[0] // module.coefficients * module.macs
    else:
        return 0
    return torch.Size(output).numel() * each
