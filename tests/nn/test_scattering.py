"""The scattering transform against its definition, and what it is used for."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from sfumato import models
from sfumato.nn.scattering import Scattering


def images(*shape: int, seed: int = 0) -> Tensor:
    """Smooth random images."""
    rough = torch.randn(*shape, generator=torch.Generator().manual_seed(seed))
    return torch.nn.functional.avg_pool2d(rough, 3, stride=1, padding=1).double()


def gaussian(side: int, sigma: float, slant: float, angle: float) -> tuple[Tensor, Tensor]:
    """An envelope in the middle of a grid, and the coordinate along the angle."""
    middle = torch.arange(side, dtype=torch.float64) - side // 2
    y, x = torch.meshgrid(middle, middle, indexing="ij")
    along = x * math.cos(angle) + y * math.sin(angle)
    across = y * math.cos(angle) - x * math.sin(angle)
    return torch.exp(-(along**2 + (slant * across) ** 2) / (2 * sigma**2)), along


def slow(x: Tensor, scales: int, angles: int) -> Tensor:
    """The definition: convolutions at every position of mirrored images, thinned at the end."""
    step, side, reach = 2**scales, 25, 12
    x = torch.nn.functional.pad(x, 4 * (reach,), mode="reflect")

    def convolved(signal: Tensor, kernel: Tensor) -> Tensor:
        flat = signal.flatten(0, -3).unsqueeze(1)
        turned = kernel.flip(0, 1)[None, None]
        parts = [
            torch.nn.functional.conv2d(flat, part.contiguous(), padding=side // 2)
            for part in ((turned.real, turned.imag) if turned.is_complex() else (turned,))
        ]
        out = torch.complex(*parts) if len(parts) == 2 else parts[0]
        return out.view(signal.shape)

    def modulus(signal: Tensor, j: int) -> Tensor:
        found = []
        for n in range(angles):
            sigma, slant, angle = 0.8 * 2**j, 4 / angles, math.pi * n / angles
            envelope, along = gaussian(side, sigma, slant, angle)
            wave = envelope * torch.exp(1j * 3 * math.pi / 4 / 2**j * along)
            wave = wave - wave.sum() / envelope.sum() * envelope
            kernel = wave / (2 * math.pi * sigma**2 / slant)
            found.append(convolved(signal, kernel).abs())
        return torch.stack(found, dim=signal.dim() - 2)

    def smooth(signal: Tensor) -> Tensor:
        envelope, _ = gaussian(side, 0.8 * 2 ** (scales - 1), 1.0, 0.0)
        return convolved(signal, envelope / envelope.sum())[
            ..., reach:-reach:step, reach:-reach:step
        ]

    once = [modulus(x, j) for j in range(scales)]
    found = [smooth(x).unsqueeze(2), *(smooth(u) for u in once)]
    for j in range(scales):
        for k in range(j + 1, scales):
            pairs = torch.stack([modulus(once[j][:, :, n], k) for n in range(angles)], dim=2)
            found.append(smooth(pairs).flatten(2, 3))
    return torch.cat(found, dim=2).flatten(1, 2)


@pytest.mark.parametrize(
    ("scales", "angles"), [(1, 8), (2, 4), pytest.param(2, 8, marks=pytest.mark.slow)]
)
def test_the_coefficients_are_those_of_the_definition(scales: int, angles: int) -> None:
    x = images(1, 2, 28, 28)
    ours = Scattering((28, 28), scales=scales, angles=angles).double()
    found, wanted = ours(x), slow(x, scales, angles)
    assert found.shape == wanted.shape == (1, 2 * ours.coefficients, *2 * (28 // 2**scales,))
    # We mirror less of the image than the filters reach, and thin out between two filters.
    inner = (..., slice(2, -2), slice(2, -2))
    first, per = 1 + scales * angles, ours.coefficients
    for part in (slice(0, 1), slice(1, first), slice(first, per)):
        a, b = (t.unflatten(1, (2, per))[:, :, part][inner] for t in (found, wanted))
        if a.numel():
            assert (a - b).norm() <= 0.02 * b.norm(), part


def test_nothing_but_the_mean_is_left_of_a_plain_image() -> None:
    found = Scattering((12, 20))(torch.full((1, 1, 12, 20), 0.7))
    assert found.shape == (1, 81, 3, 5)
    torch.testing.assert_close(found[:, 0], torch.full((1, 3, 5), 0.7))
    assert found[:, 1:].abs().max() < 1e-5


def test_a_turned_image_has_turned_wavelets() -> None:
    # A grid of positions 0, 4, 8, ... is itself when turned only if the image is 4n + 1 wide.
    x = images(1, 1, 33, 33)
    ours = Scattering((33, 33)).double()
    before, after = ours(x), ours(torch.rot90(x, 1, (2, 3)))
    once = before[:, 1:17].unflatten(1, (2, 8)).roll(4, 2)
    twice = before[:, 17:].unflatten(1, (8, 8)).roll((4, 4), (1, 2))
    turned = torch.cat([before[:, :1], once.flatten(1, 2), twice.flatten(1, 2)], dim=1)
    inner = (..., slice(2, -2), slice(2, -2))
    difference = torch.rot90(turned, 1, (2, 3))[inner] - after[inner]
    assert difference.abs().max() < 0.02 * after[:, 1:].abs().max()
    assert (before[inner] - after[inner]).abs().max() > 0.2 * after[:, 1:].abs().max()


def test_what_moves_a_little_changes_less_than_its_pixels() -> None:
    x = images(4, 1, 33, 32)
    here, there = x[:, :, :-1], x[:, :, 1:]
    ours = Scattering((32, 32)).double()

    def change(a: Tensor, b: Tensor) -> float:
        return float((a - b).norm() / a.norm())

    assert change(ours(here)[:, 1:], ours(there)[:, 1:]) < 0.5 * change(here, there)


def test_each_image_by_itself_in_any_precision() -> None:
    x = images(3, 2, 10, 9).float()
    ours = Scattering((10, 9))
    whole = ours(x)
    for n in range(3):
        torch.testing.assert_close(ours(x[n : n + 1]), whole[n : n + 1])
    with torch.autocast("cpu", torch.bfloat16):
        assert torch.equal(ours(x), whole)
    assert ours(x[:0]).shape == (0, *whole.shape[1:])
    assert ours.double()(x.double()).dtype == torch.float64


def test_a_model_saves_its_last_layer_alone() -> None:
    model = models.create("scatternet", classes=3, channels=2, size=(70, 9))
    assert {name: tuple(p.shape) for name, p in model.state_dict().items()} == {
        "head.weight": (3, 2 * 81 * 8 * 3),
        "head.bias": (3,),
    }
    assert model(torch.zeros(2, 2, 70, 9)).shape == (2, 3)


def test_another_size_is_a_sentence() -> None:
    with pytest.raises(ValueError, match="for images of 12x9 pixels, not of 12x10"):
        Scattering((12, 9))(torch.zeros(1, 1, 12, 10))
    with pytest.raises(ValueError, match="at least 8 pixels, not 7x8"):
        Scattering((7, 8))
