"""Layers: weight-standardised convolutions, norms, attention, activations, initialisations."""

from __future__ import annotations

from sfumato.nn.activations import Activation, TemperedSigmoid, activation, activation_names
from sfumato.nn.batchnorm import batchnorm_to_groupnorm
from sfumato.nn.initialisation import Init, initialise
from sfumato.nn.norms import (
    Norm,
    NormOrder,
    check_norms,
    divisor,
    norm,
    normalised,
    scale_norm,
)
from sfumato.nn.standardise import WeightStandardisation, is_standardised, standardised
from sfumato.nn.transformer import DotProductAttention, LayerScale, StochasticDepth

__all__ = [
    "Activation",
    "DotProductAttention",
    "Init",
    "LayerScale",
    "Norm",
    "NormOrder",
    "StochasticDepth",
    "TemperedSigmoid",
    "WeightStandardisation",
    "activation",
    "activation_names",
    "batchnorm_to_groupnorm",
    "check_norms",
    "divisor",
    "initialise",
    "is_standardised",
    "norm",
    "normalised",
    "scale_norm",
    "standardised",
]


def __dir__() -> list[str]:
    return sorted(__all__)
