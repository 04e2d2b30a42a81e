"""Layers that let one example reach another, refused by name with the fix."""

from __future__ import annotations

from torch import nn

from sfumato.errors import UserError


def _fix(module: nn.Module) -> str | None:
    """What to do about a layer that mixes examples, or None for a sound one."""
    kind = type(module).__name__
    batch_norms = (nn.modules.batchnorm._BatchNorm, nn.SyncBatchNorm)
    instance_norms = nn.modules.instancenorm._InstanceNorm
    if isinstance(module, instance_norms):
        if module.track_running_stats:
            return (
                f"{kind} with track_running_stats=True keeps statistics of past examples: "
                "use track_running_stats=False"
            )
        return None
    if isinstance(module, batch_norms):
        width = module.num_features
        groups = next((g for g in (32, 16, 8, 4, 2) if width % g == 0 and width > g), 1)
        return (
            f"{kind} normalises each example by the others of its batch: "
            f"use nn.GroupNorm({groups if width else 32}, {width or 'channels'}) in its place"
        )
    return None


def mixing_layers(model: nn.Module) -> dict[str, str]:
    """Every layer of a known kind that mixes examples: its name in the model and the fix."""
    found = {}
    for name, module in model.named_modules():
        if fix := _fix(module):
            found[name or "(the model itself)"] = fix
    return found


def refuse_mixing_layers(model: nn.Module) -> None:
    """Raise a `UserError` that names every example-mixing layer and what to use instead.

    Guarantee: A model that passes contains no BatchNorm of any kind and no layer of PyTorch's that
    keeps statistics of the data. What a model's own code does is checked by `PerExample` before
    the first batch, and in more detail by `sfumato.privacy.verify`.
    """
    found = mixing_layers(model)
    if found:
        lines = "; ".join(f"layer '{name}': {fix}" for name, fix in found.items())
        raise UserError(
            f"This model cannot be trained with differential privacy as it is. {lines}."
        )
