"""Filter gradients of depthwise convolutions in float32 against those by unfolding in float64."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

from sfumato.privacy.engines.convolution_gradients import conv_weight_gradients


@pytest.mark.parametrize("views", [1, 2])
@pytest.mark.parametrize("each", [1, 3])
@pytest.mark.parametrize(
    ("kernel", "stride", "padding", "dilation", "size"),
    [
        ((3, 3), (1, 1), (1, 1), (1, 1), (6, 5)),
        ((3, 2), (2, 1), (1, 0), (1, 1), (8, 5)),
        ((3, 3), (3, 2), (0, 2), (1, 2), (11, 9)),
        ((7, 7), (1, 1), (3, 3), (1, 1), (2, 2)),
        ((1, 5), (1, 2), (0, 2), (1, 1), (3, 9)),
    ],
)
def test_depthwise_gradients_are_those_by_unfolding(
    kernel: tuple[int, int],
    stride: tuple[int, int],
    padding: tuple[int, int],
    dilation: tuple[int, int],
    size: tuple[int, int],
    each: int,
    views: int,
) -> None:
    torch.manual_seed(0)
    channels = 4
    x = torch.randn(2 * views, channels, *size)
    weight = torch.randn(channels * each, 1, *kernel)
    d = torch.randn_like(F.conv2d(x, weight, None, stride, padding, dilation, channels))
    found, wanted = (
        conv_weight_gradients(
            inputs, gradients, kernel=kernel, stride=stride, padding=padding,
            dilation=dilation, groups=channels, views=views,
        )
        for inputs, gradients in ((x, d), (x.double(), d.double()))
    )  # fmt: skip
    assert found.shape == (2, channels * each, 1, *kernel)
    torch.testing.assert_close(found.double(), wanted, rtol=1e-5, atol=1e-5)
