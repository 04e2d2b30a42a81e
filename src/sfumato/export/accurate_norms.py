"""Group norms in ONNX files by means of means.

PyTorch's exporter writes an instance norm in place of a group norm, for which onnxruntime adds up
all values of a group in one go: over 37 632 values in float32 it was twenty times less accurate
than PyTorch. Means over positions, and then over channels, add up few numbers at a time and are as
fast.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.export import ExportedProgram

_GROUP_NORM = torch.ops.aten.group_norm.default


def with_accurate_norms(program: ExportedProgram) -> ExportedProgram:
    """The same program with every group norm replaced by `group_norm`."""
    if not any(node.target is _GROUP_NORM for node in program.graph.nodes):
        return program
    replaced: ExportedProgram = program.run_decompositions({_GROUP_NORM: group_norm})
    return replaced


def group_norm(
    x: Tensor,
    num_groups: int,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    eps: float = 1e-5,
    cudnn_enabled: bool = True,
) -> Tensor:
    """The group norm of `torch.nn.functional.group_norm`, with the arguments of its operator."""
    spread = torch.unflatten(x, 1, (num_groups, -1)).unsqueeze(-1).flatten(3)
    centred = spread - _mean(spread)
    scaled = centred * torch.rsqrt(_mean(centred * centred) + eps)
    y = scaled.reshape(x.shape)
    channels = (1, -1, *[1] * (x.dim() - 2))
    if weight is not None:
        y = y * weight.reshape(channels)
    return y if bias is None else y + bias.reshape(channels)


def _mean(x: Tensor) -> Tensor:
    """The mean of each group of `(batch, groups, channels, positions)`."""
    return x.mean(3, keepdim=True).mean(2, keepdim=True)
