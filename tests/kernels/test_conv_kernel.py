"""The convolution kernel against its definition, by Triton's interpreter where there is one."""

from __future__ import annotations

import subprocess
import sys

import pytest

pytest.importorskip("triton")

SCRIPT = """
import torch
from sfumato.kernels.conv import conv_weight_gradients
from sfumato.privacy.filters import conv_weight_gradients as definition
torch.manual_seed(0)
CASES = [
    # in, out, height, width, kernel, stride, padding, dilation, views, examples
    (5, 7, 6, 5, (3, 3), (1, 1), (1, 1), (1, 1), 1, 2),
    (16, 20, 8, 8, (3, 3), (2, 2), (1, 1), (1, 1), 2, 2),
    (8, 16, 7, 7, (1, 1), (2, 2), (0, 0), (1, 1), 3, 2),
    (3, 4, 9, 9, (5, 4), (1, 2), (2, 1), (1, 2), 1, 2),
    (33, 65, 4, 4, (3, 3), (1, 1), (2, 2), (2, 2), 2, 1),
]
for c, o, h, w, kernel, stride, padding, dilation, views, examples in CASES:
    x = torch.randn(examples * views, c, h, w)
    y = torch.nn.functional.conv2d(x, torch.zeros(o, c, *kernel), None, stride, padding, dilation)
    d = torch.randn_like(y)
    ours = conv_weight_gradients(x, d, kernel, stride, padding, dilation, views)
    wanted = definition(
        x, d, kernel=kernel, stride=stride, padding=padding, dilation=dilation,
        groups=1, views=views,
    )
    torch.testing.assert_close(ours.permute(0, 1, 4, 2, 3), wanted, rtol=1e-4, atol=1e-4)
print("equal")
"""


def test_kernel_equals_its_definition() -> None:
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT],
        capture_output=True,
        text=True,
        env={**__import__("os").environ, "TRITON_INTERPRET": "1"},
    )
    assert done.stdout.strip() == "equal", done.stderr
