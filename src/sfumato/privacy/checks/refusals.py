"""Layers, parameters and losses that cannot be trained soundly, refused by name with the fix."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from sfumato.errors import UserError
from sfumato.privacy.clipping import ClippingRule
from sfumato.privacy.noise import GaussianNoise
from sfumato.privacy.sampling import PoissonSampler


def _fix(module: nn.Module) -> str | None:
    """The advice for a layer that mixes examples, or None for a sound one."""
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
    if isinstance(module, nn.Embedding | nn.EmbeddingBag):
        return _embedding_fix(module)
    if isinstance(module, batch_norms):
        if not module.training and module.track_running_stats:
            return None  # Its statistics are constants until it is set to training mode.
        width = module.num_features
        groups = next((g for g in (32, 16, 8, 4, 2) if width % g == 0 and width > g), 1)
        return (
            f"{kind} normalises each example by the others of its batch: "
            f"use nn.GroupNorm({groups if width else 32}, {width or 'channels'}) in its place "
            "(sfumato.nn.batchnorm_to_groupnorm replaces all)"
        )
    return None


def _embedding_fix(module: nn.Embedding | nn.EmbeddingBag) -> str | None:
    kind = type(module).__name__
    if module.max_norm is not None:
        return (
            f"{kind} with max_norm shortens the rows that a batch uses, without noise: "
            "use max_norm=None"
        )
    if module.scale_grad_by_freq:
        return (
            f"{kind} with scale_grad_by_freq counts words over the whole batch: "
            "use scale_grad_by_freq=False"
        )
    if module.sparse:
        return f"{kind} with sparse=True has gradients that cannot be clipped: use sparse=False"
    return None


def mixing_layers(model: nn.Module) -> dict[str, str]:
    """Every layer of a known kind that mixes examples: its name in the model and the fix."""
    found = {}
    for name, module in model.named_modules():
        if fix := _fix(module):
            found[name or "(the model itself)"] = fix
    return found


def refuse_what_is_no_module(model: object) -> None:
    """Raise a `UserError` for a model that is not a `torch.nn.Module`."""
    if not isinstance(model, nn.Module):
        raise UserError(
            f"The model must be a torch.nn.Module, not {model!r} of type {type(model).__name__}."
        )


def refuse_precision(precision: object) -> None:
    """Raise a `UserError` for what is no precision; a misspelt one would not be compiled."""
    floating = isinstance(precision, torch.dtype) and precision.is_floating_point
    if not (precision is None or precision == "auto" or floating):
        raise UserError(
            f"precision={precision!r} is not known: give 'auto', None, or a floating-point type "
            "such as torch.bfloat16."
        )


def refuse_parameters(model: nn.Module) -> None:
    """Raise a `UserError` for trainable parameters that noise cannot be added to.

    Guarantee: Every trainable parameter of a model that passes is real, so that noise on each of
    its numbers is noise on all of it.
    """
    for name, parameter in model.named_parameters():
        if parameter.requires_grad and parameter.is_complex():
            raise UserError(
                f"Parameter '{name}' is complex, and noise is added to real numbers: keep a real "
                "parameter of shape (..., 2), and use torch.view_as_complex of it in forward."
            )


def refuse_loss(loss: Callable[..., Any]) -> None:
    """Raise a `UserError` for a loss with parameters, which would not be trained."""
    if isinstance(loss, nn.Module):
        names = [name for name, p in loss.named_parameters() if p.requires_grad]
        if names:
            raise UserError(
                f"The loss has parameters of its own ('{names[0]}'), which would not be trained: "
                "make them part of the model, or freeze them."
            )


def refuse_mixing_layers(model: nn.Module) -> None:
    """Raise a `UserError` that names every example-mixing layer and what to use instead.

    Guarantee: A model that passes contains no BatchNorm that uses the statistics of a batch, and no
    layer of PyTorch's that keeps statistics of the data or writes into its own weights. What a
    model's own code does is checked by `PerExample` before the first batch, and in more detail by
    `sfumato.privacy.verify.verification`.
    """
    found = mixing_layers(model)
    if found:
        lines = "; ".join(f"layer '{name}': {fix}" for name, fix in found.items())
        raise UserError(
            f"This model cannot be trained with differential privacy as it is. {lines}."
        )


def refuse_without_noise(parameters: dict[str, nn.Parameter]) -> None:
    """Raise a `UserError` for parameters that noise cannot be added to, at batches and releases."""
    if not parameters:
        raise UserError("Every parameter of the model is frozen: there is nothing to train.")
    for name, p in parameters.items():
        if p.is_complex() or not p.is_floating_point():
            raise UserError(
                f"The parameter '{name}' is of type {p.dtype}, and noise is added to real numbers "
                "alone: hold it as two real parameters (torch.view_as_complex makes one of them), "
                "or freeze it with requires_grad_(False)."
            )


def refuse_parts(sampler: object, clipping: object, noise: object) -> None:
    """Refuse parts of the mechanism that are of another kind, or that do not go together."""
    wanted = (
        ("sampler", sampler, PoissonSampler, "PoissonSampler(examples=N, batch=B)"),
        ("clipping", clipping, ClippingRule, "Flat(C)"),
        ("noise", noise, GaussianNoise, "GaussianNoise(sigma)"),
    )
    for name, given, kind, example in wanted:
        if not isinstance(given, kind):
            raise UserError(f"{name} must be something like {example}, not {given!r}.")
    assert isinstance(clipping, ClippingRule) and isinstance(noise, GaussianNoise)
    if noise.multiplier and clipping.sensitivity == float("inf"):
        raise UserError(
            "Noise cannot be scaled to gradients that are not clipped: choose a clipping rule, or "
            "no noise for a run without privacy."
        )
