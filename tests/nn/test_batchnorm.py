"""BatchNorm replaced by GroupNorm: gain and shift kept, what follows kept, the rest refused."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from sfumato.errors import UserError
from sfumato.nn import batchnorm_to_groupnorm


class Activated(nn.BatchNorm2d):
    """BatchNorm with dropout and an activation behind it, as timm's BatchNormAct2d."""

    def __init__(self, channels: int) -> None:
        super().__init__(channels)
        self.drop, self.act = nn.Identity(), nn.ReLU()

    def forward(self, x: Tensor) -> Tensor:
        return self.act(self.drop(super().forward(x)))


class Shifted(nn.BatchNorm2d):
    """BatchNorm that computes something else."""

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x) + 1


@pytest.mark.parametrize(
    ("old", "groups"),
    [
        (nn.BatchNorm2d(64), 32),
        (nn.BatchNorm2d(48), 24),
        (nn.BatchNorm2d(8), 8),
        (nn.BatchNorm2d(37), 1),
        (nn.BatchNorm3d(6), 6),
        (nn.BatchNorm1d(8), 4),
        (nn.BatchNorm1d(256), 32),
        (nn.BatchNorm1d(1), 1),
        (nn.SyncBatchNorm(12), 12),
    ],
    ids=lambda value: str(value).partition(", eps")[0],
)
def test_groups_are_the_largest_divisor_up_to_32(old: nn.Module, groups: int) -> None:
    new = batchnorm_to_groupnorm(old)
    assert type(new) is nn.GroupNorm and new.num_groups == groups


def test_gain_shift_epsilon_and_mode_are_kept() -> None:
    old = nn.BatchNorm2d(4, eps=0.1)
    nn.init.normal_(old.weight)
    old.bias.requires_grad_(False)
    plain = nn.BatchNorm2d(4, affine=False)
    model = nn.Sequential(nn.Conv2d(3, 4, 1), nn.Sequential(old), plain).eval()
    found = batchnorm_to_groupnorm(model)
    assert found is model
    assert model[1][0].weight is old.weight and model[1][0].bias is old.bias
    assert model[1][0].eps == 0.1 and model[2].weight is None
    assert not any(module.training for module in model.modules())
    assert not list(model.buffers()), "running statistics are dropped"
    model(torch.randn(1, 3, 2, 2))


def test_one_layer_in_two_places_stays_one() -> None:
    shared = nn.BatchNorm2d(4)
    model = batchnorm_to_groupnorm(nn.ModuleDict({"a": shared, "b": nn.Sequential(shared)}))
    assert isinstance(model["a"], nn.GroupNorm) and model["a"] is model["b"][0]


def test_numbers_without_positions_are_still_told_apart() -> None:
    out = batchnorm_to_groupnorm(nn.BatchNorm1d(4))(torch.randn(2, 4))
    assert out.abs().min() > 0.1


def test_layers_behind_the_norm_are_kept() -> None:
    old = Activated(8)
    model = batchnorm_to_groupnorm(nn.Sequential(old))
    x = torch.randn(2, 8, 3, 3)
    assert torch.equal(model(x), nn.GroupNorm(8, 8)(x).relu())
    assert model[0].act is old.act and old.training


def test_what_is_no_plain_batchnorm_is_refused_by_name() -> None:
    model = nn.Sequential(nn.Sequential(Shifted(4)))
    with pytest.raises(UserError, match=r"layer '0.0' \(Shifted\) does more than a BatchNorm"):
        batchnorm_to_groupnorm(model)
