"""Random programs of operators within rows are proved; with one that mixes rows they are not."""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from sfumato.privacy.checks.isolation_proof import prove_isolation
from sfumato.privacy.engines.objective import cross_entropy

Step = Callable[["Program", Tensor], Tensor]
A, C = 4, 6
"""Every step takes and returns tensors of shape (batch, A, C)."""

WITHIN: dict[str, Step] = {
    "tanh": lambda m, h: torch.tanh(h),
    "centre": lambda m, h: h - h.mean(1, keepdim=True),
    "softmax": lambda m, h: h.softmax(1),
    "sort": lambda m, h: h.sort(2).values,
    "roll": lambda m, h: h.roll(1, 2),
    "flip": lambda m, h: h.flip(1),
    "cumsum": lambda m, h: h.cumsum(1) / A,
    "linear": lambda m, h: m.mix(h),
    "transposed linear": lambda m, h: m.mix(h.transpose(0, 1)).transpose(0, 1),
    "folded": lambda m, h: m.mix(h.reshape(-1, C)).view(-1, A, C),
    "flat": lambda m, h: h.flatten(1).softmax(1).view(-1, A, C),
    "batch last": lambda m, h: h.permute(1, 2, 0).softmax(0).permute(2, 0, 1),
    "convolution": lambda m, h: m.conv(h),
    "group norm": lambda m, h: m.norm(h),
    "layer norm": lambda m, h: F.layer_norm(h, (C,)),
    "pool": lambda m, h: F.max_pool1d(h, 3, 1, 1),
    "join": lambda m, h: torch.cat([h[:, 1:], m.token.expand(h.shape[0], 1, C)], 1),
    "products": lambda m, h: (h @ h.transpose(1, 2)).softmax(2) @ h,
    "dropout": lambda m, h: F.dropout(h, 0.0),
    "where": lambda m, h: torch.where(h > 0.1, h, 0.5 * h),
    "written": lambda m, h: (h * 1).index_fill_(1, torch.tensor([2]), 0.1),
    "repeated": lambda m, h: h.repeat(2, 1, 1).view(2, -1, A, C).sum(0) / 2,
    "padded": lambda m, h: F.pad(h, (1, 1))[:, :, 2:],
}

BETWEEN: dict[str, Step] = {
    "centre": lambda m, h: h - h.mean(0),
    "scale": lambda m, h: h / (1 + h.abs().max()),
    "softmax": lambda m, h: h.softmax(0),
    "sort": lambda m, h: h.sort(0).values,
    "roll": lambda m, h: h.roll(1, 0),
    "flip": lambda m, h: h.flip(0),
    "cumsum": lambda m, h: h.cumsum(0),
    "first": lambda m, h: h + h[:1],
    "reshape": lambda m, h: h.reshape(A, -1, C).softmax(0).reshape(-1, A, C),
    "products": lambda m, h: h + torch.einsum("bac,bdc->ad", h, h).sum(),
    "tiled": lambda m, h: h.repeat(2, 1, 1).view(-1, 2, A, C).sum(1),
    "positions": lambda m, h: h * torch.arange(h.shape[0]).view(-1, 1, 1),
    "convolution": lambda m, h: F.avg_pool1d(h.permute(1, 2, 0), 3, 1, 1).permute(2, 0, 1),
    "size": lambda m, h: h / h.shape[0],
}


class Program(nn.Module):
    def __init__(self, steps: list[Step]) -> None:
        super().__init__()
        self.steps = steps
        self.mix, self.conv = nn.Linear(C, C), nn.Conv1d(A, A, 3, padding=1)
        self.norm, self.token = nn.GroupNorm(2, A), nn.Parameter(torch.randn(1, 1, C))
        self.out = nn.Linear(A * C, 3)

    def forward(self, x: Tensor) -> Tensor:
        for step in self.steps:
            x = step(self, x)
        out: Tensor = self.out(x.flatten(1))
        return out


def proved(model: nn.Module) -> str:
    like = torch.zeros(1, A, C), torch.zeros(1, dtype=torch.int64)
    proof = prove_isolation(model, cross_entropy, *like)
    return "proved" if proof.proved else proof.reason


programs = st.lists(st.sampled_from(sorted(WITHIN)), min_size=1, max_size=6)


@settings(max_examples=4, deadline=None, derandomize=True)
@given(programs)
def test_programs_within_rows_are_proved_and_keep_rows_apart(names: list[str]) -> None:
    torch.manual_seed(0)
    model = Program([WITHIN[name] for name in names]).double()
    assert proved(model.float()) == "proved"
    model.double()
    x = torch.randn(5, A, C, dtype=torch.float64, requires_grad=True)
    changed = x.detach().clone()
    changed[2] = 3 * torch.randn(A, C, dtype=torch.float64)
    changed.requires_grad_()
    found = []
    for inputs in (x, changed):
        outputs = model(inputs)
        loss = F.cross_entropy(outputs, torch.arange(5) % 3, reduction="sum")
        found.append((outputs, *torch.autograd.grad(loss, [inputs])))
    others = torch.arange(5) != 2
    for a, b in zip(*found, strict=True):
        assert torch.allclose(a[others], b[others], rtol=1e-9, atol=1e-12)


@settings(max_examples=4, deadline=None, derandomize=True)
@given(programs, st.sampled_from(sorted(BETWEEN)), st.integers(0, 6))
def test_programs_with_one_step_between_rows_are_not_proved(
    names: list[str], bad: str, place: int
) -> None:
    torch.manual_seed(0)
    steps = [WITHIN[name] for name in names]
    steps.insert(place % (len(steps) + 1), BETWEEN[bad])
    assert proved(Program(steps)) != "proved"
