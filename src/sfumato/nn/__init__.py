"""Layers: weight-standardised convolutions, norms, activations, initialisations."""

from __future__ import annotations

from sfumato.nn.activations import TemperedSigmoid, activation, activation_names
from sfumato.nn.init import Init, initialise
from sfumato.nn.norms import Norm, NormOrder, divisor, norm, normalised, scale_norm
from sfumato.nn.standardise import WeightStandardisation, is_standardised, standardised

__all__ = [
    "Init",
    "Norm",
    "NormOrder",
    "TemperedSigmoid",
    "WeightStandardisation",
    "activation",
    "activation_names",
    "divisor",
    "initialise",
    "is_standardised",
    "norm",
    "normalised",
    "scale_norm",
    "standardised",
]
