"""Weight standardisation of convolutions (Qiao et al., 2019), as a parametrisation of the weight.

The module stays an ordinary `nn.Conv2d`: its `weight` is a function of the raw weight
`parametrizations.weight.original` and of the gain `parametrizations.weight[0].gain`.
"""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor, nn
from torch.nn.utils import parametrize

from sfumato.errors import UserError
from sfumato.nn.reparametrisation import FilterStandardisation

Form = Literal["de", "plain"]

_TINY = 1e-20
"""Smallest variance in the plain form, because the square root has no gradient at 0."""


class WeightStandardisation(FilterStandardisation):
    """Standardise each filter of a convolution over its fan-in.

    With m and v the mean and (biased) variance of the raw filter w over its n entries:

    - `de`, of De et al. (2022): gain * (w - m) / sqrt(max(n * v, eps)), a filter of norm `gain`;
    - `plain`, of Radhakrishna and Hegde (2024): gain * (w - m) / (sqrt(v) + eps), entries of
      standard deviation `gain`.

    Attributes:
        form: The form.
        eps: Its constant.
        gain: One learnable factor per filter, shaped (filters,), or None for a gain of 1.
    """

    gain: nn.Parameter | None

    def __init__(self, filters: int, *, form: Form, gain: bool, eps: float) -> None:
        super().__init__()
        self.form: Form = form
        self.eps = eps
        self.register_parameter("gain", nn.Parameter(torch.ones(filters)) if gain else None)

    def forward(self, raw: Tensor) -> Tensor:
        """The standardised weight."""
        bare = self.bare(raw)
        return bare if self.gain is None else bare * self.gain.view(-1, 1, 1, 1)

    def pullback(self, raw: Tensor, gradient: Tensor) -> tuple[Tensor, ...]:
        """Gradients `(..., *raw.shape)` of the weight as gradients of the raw weight and the gain.

        The transposed derivative of `forward` in closed form. It is linear in `gradient`, so it
        applies to one gradient, to a sum, and to a stack of per-example gradients alike.
        """
        bare = self.pullback_bare(raw, gradient)
        if self.gain is None:
            return (bare,)
        centred, _, scale, _ = self._derivative(raw)
        along = (gradient.flatten(-3) * centred).sum(-1)
        return bare * self.gain.view(-1, 1, 1, 1), scale.squeeze(-1) * along

    def _derivative(self, raw: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Centred filters, their squared norms, and the two factors of the derivative."""
        flat = raw.flatten(1)
        centred = flat - flat.mean(1, keepdim=True)
        squares = centred.square().sum(1, keepdim=True)
        if self.form == "de":
            scale = squares.clamp_min(self.eps).rsqrt()
            shrink = torch.where(squares > self.eps, scale.pow(3), 0.0)
        else:
            deviation = (squares / flat.shape[1]).clamp_min(_TINY).sqrt()
            scale = 1 / (deviation + self.eps)
            shrink = scale.square() / (deviation * flat.shape[1])
        return centred, squares, scale, shrink

    @property
    def plain(self) -> bool:
        """Tell whether the form is `plain`; `de` otherwise."""
        return self.form == "plain"

    def bare(self, raw: Tensor) -> Tensor:
        """The standardised weight without the gain."""
        centred, _, scale, _ = self._derivative(raw)
        return (centred * scale).view_as(raw)

    def pullback_bare(self, raw: Tensor, gradient: Tensor) -> Tensor:
        """Gradients `(..., *raw.shape)` of the bare weight as gradients of the raw weight."""
        g = gradient.flatten(-3)
        centred, _, scale, shrink = self._derivative(raw)
        along = (g * centred).sum(-1, keepdim=True)
        own = scale * (g - g.mean(-1, keepdim=True)) - shrink * along * centred
        return own.view(gradient.shape)

    def extra_repr(self) -> str:
        """The form and its constants."""
        return f"form={self.form}, gain={self.gain is not None}, eps={self.eps}"


def standardised(
    conv: nn.Conv2d, *, form: Form = "de", gain: bool = True, eps: float | None = None
) -> nn.Conv2d:
    """Standardise the weight of a convolution, and return the same convolution.

    The raw weight is drawn anew with standard deviation 1/sqrt(fan_in), so that the gradient of the
    raw weight is as large as that of the resulting filter: at a larger scale it would shrink in
    proportion, below the noise of private training.

    Args:
        conv: An ordinary convolution; a bias is set to zero.
        form: See `WeightStandardisation`.
        gain: Whether each filter has a learnable gain.
        eps: The form's constant; 1e-4 for `de` and 1e-5 for `plain` unless given.

    Raises:
        UserError: Each filter has one entry only, so that nothing is left after subtracting its
            mean.
    """
    if conv.weight[0].numel() < 2:
        raise UserError(
            "A convolution whose filters have a single entry cannot be standardised: "
            "use more input channels, a larger kernel, or no weight standardisation."
        )
    if form not in ("de", "plain"):
        raise UserError(f"There is no weight standardisation '{form}': choose 'de' or 'plain'.")
    draw_raw(conv.weight)
    if conv.bias is not None:
        nn.init.zeros_(conv.bias)
    constant = eps if eps is not None else (1e-4 if form == "de" else 1e-5)
    layer = WeightStandardisation(conv.out_channels, form=form, gain=gain, eps=constant)
    layer.to(device=conv.weight.device, dtype=conv.weight.dtype)
    parametrize.register_parametrization(conv, "weight", layer, unsafe=True)
    return conv


def is_standardised(module: nn.Module) -> bool:
    """Tell whether the module's weight is standardised."""
    return parametrize.is_parametrized(module, "weight") and any(
        isinstance(step, WeightStandardisation)
        for step in module.parametrizations["weight"]  # type: ignore[index]
    )


def draw_raw(raw: Tensor) -> None:
    """Draw a raw weight from a normal of standard deviation 1/sqrt(fan_in)."""
    nn.init.normal_(raw, std=raw[0].numel() ** -0.5)
