"""The kernels over rows against their definitions, by Triton's interpreter where there is one."""

from __future__ import annotations

import itertools

import pytest
import torch
from torch import Tensor

from sfumato.kernels import AVAILABLE, definitions

SHAPES = [(1, 1), (3, 5), (7, 600), (40, 3, 3, 3, 8), (65, 130), (17, 4, 1025)]
FILTERS = [(1, 2), (5, 27), (130, 9), (300, 1030)]


def compare(device: str, dtype: torch.dtype, tolerance: float) -> None:
    """Every kernel on every case, with NaN where nothing may be read."""
    from sfumato.kernels import row_kernels as kernels

    torch.manual_seed(0)
    for shape in SHAPES:
        rows = torch.randn(shape, device=device).to(dtype)
        weights = torch.rand(shape[0], device=device)
        weights[::3] = 0
        bad = rows.clone()
        bad[::3] = float("nan")
        wanted = definitions.row_sum(rows, weights)
        assert wanted.shape == rows.shape[1:]
        close(kernels.row_sum(bad, weights), wanted, tolerance)
        assert torch.equal(definitions.row_sum(bad, weights), wanted)
        flat = rows.flatten(1)
        part = flat[:, flat.shape[1] // 2 :]
        close(kernels.row_sum(part, weights), definitions.row_sum(part, weights), tolerance)
        if rows.dim() == 5:
            other = rows.permute(0, 4, 1, 2, 3)
            close(kernels.row_sum(other, weights), definitions.row_sum(other, weights), tolerance)
        ends = sorted({0, min(1, flat.shape[1] - 1), flat.shape[1] // 3, flat.shape[1]})
        starts = torch.tensor(ends, dtype=torch.int32, device=device)
        norms = kernels.segment_norms(flat, starts)
        close(norms, definitions.segment_norms(flat, starts), tolerance)
        spoilt = flat.clone()
        spoilt[0, 0] = float("nan")
        after = kernels.segment_norms(spoilt, starts)
        assert bool(after[0, 0].isnan()) and torch.equal(after[1:], norms[1:])
    for filters, numbers in FILTERS:
        for examples in (1, 6):
            statistics = torch.randn(examples, 3, filters, device=device)
            statistics[:, 0] = statistics.square().sum(1)
            factors = torch.rand(4, filters, device=device)
            factors[3] -= 0.5
            arguments = statistics, factors, numbers, 2.0**-9
            norms = kernels.filter_norms(*arguments)
            wanted = definitions.filter_norms(*arguments)
            torch.testing.assert_close(norms, wanted, rtol=1e-5, atol=0)
            statistics[-1, 1, -1] = float("nan")
            after = kernels.filter_norms(statistics, *arguments[1:])
            assert bool(after[-1, 0].isnan()) and torch.equal(after[:-1], norms[:-1])
        total, centred = torch.randn(2, filters, numbers, device=device)
        factors = torch.rand(4, filters, device=device)
        pairs = zip(
            kernels.filter_pullback(total, centred, factors),
            definitions.filter_pullback(total, centred, factors),
            strict=True,
        )
        for ours, defined in pairs:
            close(ours, defined, 1e-5)

    for (filters, channels, kernel), plain, gain in itertools.product(
        [(1, 2, 1), (5, 3, 3), (7, 130, 3)], (True, False), (True, False)
    ):
        raw = torch.randn(filters, channels, kernel, kernel, device=device)
        raw[0] *= 1e-6
        own = torch.randn(filters, device=device) if gain else None
        weight, centred, factors = definitions.standardise(raw, own, plain, 1e-4)
        into = [
            torch.empty_like(weight, memory_format=torch.channels_last),
            *(torch.empty_like(centred.permute(0, 2, 3, 1).contiguous()) for _ in range(2)),
            torch.empty_like(factors),
        ]
        kernels.write_standardised(raw, own, *into, plain, 1e-4)
        wanted = [weight, *2 * [centred.permute(0, 2, 3, 1)], factors]
        for ours, defined in zip(into, wanted, strict=True):
            torch.testing.assert_close(ours, defined, rtol=2e-4, atol=1e-6)


def close(ours: Tensor, wanted: Tensor, tolerance: float) -> None:
    assert ours.shape == wanted.shape
    scale = float(wanted.abs().max())
    torch.testing.assert_close(ours.float(), wanted.float(), rtol=0, atol=tolerance * scale)


@pytest.mark.skipif(not AVAILABLE, reason="needs CUDA and Triton")
def test_kernels_on_the_device_equal_their_definitions() -> None:
    compare("cuda", torch.bfloat16, 1e-5)
