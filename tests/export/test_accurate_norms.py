"""Group norms in ONNX files: the same function as PyTorch's, and as accurate."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from sfumato.export.accurate_norms import group_norm, with_accurate_norms
from sfumato.export.formats import FORMATS


@pytest.mark.parametrize("shape", [(3, 6), (2, 6, 5), (2, 6, 4, 5), (2, 6, 2, 3, 4)])
@pytest.mark.parametrize("groups", [1, 3, 6])
@pytest.mark.parametrize("affine", [True, False])
def test_the_function_is_the_group_norm(shape: tuple[int, ...], groups: int, affine: bool) -> None:
    torch.manual_seed(0)
    x = torch.randn(shape, dtype=torch.float64) + 3
    gain, shift = (torch.randn(6, dtype=torch.float64) if affine else None for _ in range(2))
    expected = F.group_norm(x, groups, gain, shift, eps=1e-3)
    torch.testing.assert_close(group_norm(x, groups, gain, shift, eps=1e-3), expected)


class Norms(nn.Module):
    """A group norm as a layer, and another as a function."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.GroupNorm(1, 48)

    def forward(self, images: Tensor) -> Tensor:
        """Normalised images."""
        return F.group_norm(self.norm(images), 4)


def test_every_group_norm_of_a_program_is_replaced() -> None:
    x = torch.rand(2, 48, 3, 3)
    module = Norms()
    program = torch.export.export(module, (x,))
    found = with_accurate_norms(program)
    assert "group_norm" in str(program.graph) and "group_norm" not in str(found.graph)
    torch.testing.assert_close(found.module()(x), module(x))


@pytest.mark.slow
def test_an_onnx_file_is_as_accurate_as_pytorch() -> None:
    """Few bright spots on a background: an instance norm is off by 4e-5."""
    for package in FORMATS["onnx"].packages:
        pytest.importorskip(package)
    spots = torch.rand(4, 48, 28, 28, generator=torch.Generator().manual_seed(0))
    x = torch.where(spots < 0.98, 0.1, 20 * spots)
    module = Norms().requires_grad_(False)
    found = FORMATS["onnx"].read(FORMATS["onnx"].write(module, x[:2], "{}", 18))(x)  # type: ignore[arg-type]
    exact = module.double()(x.double())
    assert float((found - exact).abs().max()) < 1e-5
