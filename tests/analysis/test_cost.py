"""Cost of networks against counts by hand and by PyTorch."""

from __future__ import annotations

import torch
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

from sfumato import models
from sfumato.analysis.cost import cost_of


def test_cost_by_hand() -> None:
    """conv 3x3 1->4 at 8x8: 64*4*9; grouped 4->4 stride 2 at 4x4: 16*4*(2*9); linear 64->5: 320."""
    model = nn.Sequential(
        nn.Conv2d(1, 4, 3, padding=1), nn.GroupNorm(2, 4),
        nn.Conv2d(4, 4, 3, padding=1, stride=2, groups=2, bias=False), nn.Flatten(),
        nn.Linear(64, 5),
    )  # fmt: skip
    found = cost_of(model, (1, 8, 8))
    macs = [layer.macs for layer in found.layers]
    assert macs == [2304, 0, 1152, 0, 320]
    assert [layer.parameters for layer in found.layers] == [40, 8, 72, 0, 325]
    assert (found.macs, found.parameters) == (3776, 445)
    assert (found.elsewhere, found.once) == (0, 0)


def test_cost_of_published_networks_and_of_what_is_not_a_layer() -> None:
    found = cost_of(models.create("papernot-1", classes=10, channels=1, size=28), (1, 28, 28))
    by_hand = 14 * 14 * 16 * 64 + 5 * 5 * 32 * 16 * 16 + 512 * 32 + 32 * 10
    assert (found.parameters, found.macs) == (26_010, by_hand)
    steerable = models.create("eq-resnet9-c4", classes=3, channels=1, size=16, layout=(2, 2, 4))
    own = cost_of(steerable, (1, 16, 16))
    assert own.once > 0 and own.elsewhere == 0, "filters are made once per batch"
    with FlopCounterMode(display=False) as counter, torch.no_grad():
        steerable.eval()(torch.zeros(5, 1, 16, 16))
    assert counter.get_total_flops() // 2 == 5 * own.macs + own.once
