"""BatchNorm, which mixes the examples of a batch, replaced by GroupNorm (Wu and He, 2018)."""

from __future__ import annotations

from collections import OrderedDict

import torch
import torch.nn.functional as F
from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm

from sfumato.errors import UserError
from sfumato.nn.norms import divisor

_GROUPS = 32
"""The most groups of a GroupNorm in the place of a BatchNorm."""

_PLAIN = (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d, nn.SyncBatchNorm)


def batchnorm_to_groupnorm(model: nn.Module) -> nn.Module:
    """Replace every BatchNorm of a model by a GroupNorm with its gain, shift and epsilon.

    The number of groups is the largest divisor of the channels up to 32, for a BatchNorm1d also
    up to half of the channels, because its input may be one number per channel. Running statistics
    are dropped. A subclass that ends with layers of its own, such as the activation of timm's
    BatchNormAct2d, keeps them behind the GroupNorm.

    Args:
        model: The network, changed in place.

    Returns:
        The network, or the GroupNorm in its place if it is itself a BatchNorm.

    Raises:
        UserError: A subclass of BatchNorm computes something else.
    """
    replaced: dict[nn.Module, nn.Module] = {}
    for name, module in model.named_modules():
        if isinstance(module, _BatchNorm):
            replaced[module] = _group_norm(name, module)
    for parent in list(model.modules()):
        for key, child in list(parent._modules.items()):
            if child in replaced:
                setattr(parent, key, replaced[child])
    return replaced.get(model, model)


def _group_norm(name: str, old: _BatchNorm) -> nn.Module:
    channels = old.num_features
    most = min(_GROUPS, max(1, channels // 2)) if isinstance(old, nn.BatchNorm1d) else _GROUPS
    new: nn.Module = nn.GroupNorm(divisor(channels, most), channels, old.eps, affine=old.affine)
    if old.affine:
        new.weight, new.bias = old.weight, old.bias
    if type(old) not in _PLAIN:
        after = OrderedDict(old.named_children())
        if not _is_followed_by(old, nn.Sequential(after)):
            raise UserError(
                f"The layer '{name}' ({type(old).__name__}) does more than a BatchNorm, so no "
                "GroupNorm can take its place: write that part of the model without BatchNorm."
            )
        new = nn.Sequential(OrderedDict(norm=new, **after))
    return new.train(old.training)


def _is_followed_by(norm: _BatchNorm, after: nn.Module) -> bool:
    """Tell whether a layer is BatchNorm and then other layers, in evaluation mode."""
    dimensions = {nn.BatchNorm1d: 1, nn.BatchNorm3d: 3}
    sides = next((n for kind, n in dimensions.items() if isinstance(norm, kind)), 2)
    x = torch.linspace(-3, 3, 2 * norm.num_features * 2**sides).view(2, -1, *[2] * sides)
    training = norm.training
    norm.eval()
    try:
        with torch.no_grad():
            wanted = after(
                F.batch_norm(
                    x,
                    norm.running_mean,
                    norm.running_var,
                    norm.weight,
                    norm.bias,
                    training=norm.running_mean is None,
                    eps=norm.eps,
                )
            )
            return torch.allclose(norm(x), wanted, atol=1e-5)
    finally:
        norm.train(training)
