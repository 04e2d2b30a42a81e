"""Initialisations by name: Xavier, He, LeCun, truncated normal, and torch's own."""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal, TypeVar, get_args

from torch import Tensor, nn
from torch.nn.utils import parametrize

from sfumato.errors import UserError, nearest

Init = Literal["xavier", "he", "lecun", "truncated", "torch"]
M = TypeVar("M", bound=nn.Module)


def _he(weight: Tensor) -> None:
    nn.init.kaiming_normal_(weight, nonlinearity="relu")


def _lecun(weight: Tensor) -> None:
    nn.init.kaiming_normal_(weight, nonlinearity="linear")


def _truncated(weight: Tensor) -> None:
    nn.init.trunc_normal_(weight, std=0.02)


_SCHEMES: dict[str, Callable[[Tensor], object]] = {
    "xavier": nn.init.xavier_uniform_,
    "he": _he,
    "lecun": _lecun,
    "truncated": _truncated,
}


def initialise(model: M, scheme: Init) -> M:
    """Draw the weights of every convolution and linear layer, and set their biases to zero.

    Args:
        model: The network, changed in place. Weights with a parametrisation (standardised or
            steerable ones) keep theirs, because their scale is set by the parametrisation.
        scheme: `xavier` (Glorot and Bengio, 2010, uniform), `he` (He et al., 2015, normal,
            variance 2/fan_in), `lecun` (normal, variance 1/fan_in), `truncated` (normal, standard
            deviation 0.02, as in vision transformers), or `torch`, which leaves what torch drew at
            construction (uniform, variance 1/(3 fan_in)).

    Returns:
        The network.

    Raises:
        UserError: An unknown scheme.
    """
    if scheme == "torch":
        return model
    if scheme not in _SCHEMES:
        known = get_args(Init)
        raise UserError(
            f"There is no initialisation '{scheme}'.{nearest(scheme, known)} "
            f"Known initialisations: {', '.join(known)}."
        )
    for module in model.modules():
        if isinstance(module, (nn.Conv2d, nn.Linear)):
            if not parametrize.is_parametrized(module, "weight"):
                _SCHEMES[scheme](module.weight)
            if module.bias is not None:
                nn.init.zeros_(module.bias)
    return model
