"""Convolutions of volumes, and transposed ones, with the gradients of one example at a time."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.utils import parametrizations

from sfumato.privacy import PerExample
from sfumato.privacy.checks.agreement import errors
from sfumato.privacy.engines.compiled import Compiled
from sfumato.privacy.engines.leaves import NotPerOperator
from sfumato.privacy.engines.objective import Objective
from sfumato.privacy.engines.one_at_a_time import one_at_a_time
from sfumato.privacy.engines.operators import Operators
from sfumato.privacy.engines.results import Gradients
from thinning import one_in
from uncompiled import run_without_code

VOLUME = (2, 5, 6, 4)


def volumes(*layers: nn.Module) -> nn.Module:
    """A classifier of volumes `(rows, 2, 5, 6, 4)`."""
    return nn.Sequential(*layers, nn.Tanh(), nn.Flatten(), nn.LazyLinear(3))


def conv(out: int = 4, kernel: Any = 3, **options: Any) -> nn.Module:
    return volumes(nn.Conv3d(2, 4, 1), nn.Tanh(), nn.Conv3d(4, out, kernel, **options))


def up(out: int = 4, kernel: Any = 3, **options: Any) -> nn.Module:
    return volumes(nn.Conv3d(2, 4, 1), nn.Tanh(), nn.ConvTranspose3d(4, out, kernel, **options))


def up_lines(out: int = 4, kernel: Any = 3, **options: Any) -> nn.Module:
    lines = nn.Flatten(2)
    return volumes(
        lines, nn.Conv1d(2, 4, 1), nn.Tanh(), nn.ConvTranspose1d(4, out, kernel, **options)
    )


def frozen(model: nn.Module, name: str) -> nn.Module:
    getattr(model[-4], name).requires_grad_(False)  # type: ignore[index]
    return model


class Residual(nn.Module):
    """A small residual network of volumes, with pooling and norms."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Conv3d(2, 16, 3, padding=1, bias=False)
        self.norm, self.second = nn.GroupNorm(4, 16), nn.Conv3d(16, 16, 3, padding="same")
        self.head = nn.Linear(16, 3)

    def forward(self, x: Tensor) -> Tensor:
        x = F.max_pool3d(F.relu(self.norm(self.first(x))), 2)
        x = F.avg_pool3d(x + F.silu(self.second(x)), 2, ceil_mode=True)
        out: Tensor = self.head(F.adaptive_avg_pool3d(x, 1).flatten(1))
        return out


class Tied(nn.Module):
    """One convolution in two places, whose filters another one shares."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.other = nn.Conv3d(2, 2, 3, padding=1), nn.Conv3d(2, 2, 3, padding=1)
        self.other.weight, self.head = self.first.weight, nn.LazyLinear(3)

    def forward(self, x: Tensor) -> Tensor:
        x = self.other(self.first(self.first(x).tanh()).tanh())
        out: Tensor = self.head(x.flatten(1))
        return out


class Merged(nn.Module):
    """Convolutions on slices that were merged with the rows, next to each other or far apart."""

    def __init__(self, *, interleaved: bool) -> None:
        super().__init__()
        self.conv, self.up = nn.Conv3d(1, 2, 3), nn.ConvTranspose3d(2, 2, 2, stride=2)
        self.interleaved, self.head = interleaved, nn.LazyLinear(3)

    def forward(self, x: Tensor) -> Tensor:
        x = x.transpose(0, 1) if self.interleaved else x
        shape = x.shape[:2]
        z = self.up(self.conv(x.reshape(-1, 1, *x.shape[2:])).tanh()).view(*shape, -1)
        out: Tensor = self.head((z.transpose(0, 1) if self.interleaved else z).flatten(1))
        return out


class Calls(nn.Module):
    """The functions themselves, with arguments by name, in `torch` and `torch.nn.functional`."""

    def __init__(self) -> None:
        super().__init__()
        self.w, self.b = nn.Parameter(torch.randn(2, 3, 2, 2, 3)), nn.Parameter(torch.randn(3))
        self.head = nn.LazyLinear(3)

    def forward(self, x: Tensor) -> Tensor:
        z = F.conv_transpose3d(x, weight=self.w, bias=self.b, stride=[2, 1, 1], padding=(1, 0, 1))
        z = torch.conv3d(z.tanh(), self.w, None, 1, padding="valid")
        out: Tensor = self.head(torch.conv_transpose3d(z, self.w).tanh().flatten(1))
        return out


def parametrised() -> nn.Module:
    model = conv(padding=1)
    parametrizations.weight_norm(model[-4])  # type: ignore[index]
    return model


MODELS: dict[str, Callable[[], nn.Module]] = {
    "plain": conv,
    "padded": lambda: conv(padding=(1, 0, 2)),
    "padded widely": lambda: conv(kernel=(2, 1, 1), padding=(4, 0, 0), stride=(3, 1, 1)),
    "same": lambda: conv(padding="same"),
    "same, of even size": lambda: conv(kernel=(2, 3, 4), padding="same", dilation=(3, 1, 1)),
    "valid": lambda: conv(padding="valid"),
    "strided": lambda: conv(stride=2, padding=1),
    "strided unevenly": lambda: conv(stride=(3, 1, 2), padding=(1, 2, 0), kernel=(2, 3, 3)),
    "strided past the end": lambda: conv(kernel=(2, 2, 2), stride=(4, 4, 3)),
    "dilated": lambda: conv(dilation=(2, 1, 1), padding=(3, 0, 1)),
    "a tap that sees zeros alone": lambda: conv(
        kernel=(3, 1, 1), dilation=(5, 1, 1), padding=(5, 0, 0)
    ),
    "grouped": lambda: conv(6, groups=2, padding=1),
    "depthwise": lambda: conv(8, groups=4, stride=2, padding=1),
    "without a bias": lambda: conv(bias=False),
    "of one position": lambda: conv(kernel=(5, 6, 4)),
    "pointwise": lambda: conv(kernel=1, stride=(2, 1, 1)),
    "circular": lambda: conv(padding=1, padding_mode="circular"),
    "reflected": lambda: conv(padding=(1, 0, 1), padding_mode="reflect"),
    "replicated": lambda: conv(padding="same", padding_mode="replicate", kernel=(3, 2, 3)),
    "frozen filters": lambda: frozen(conv(), "weight"),
    "frozen bias": lambda: frozen(conv(), "bias"),
    "wide": lambda: volumes(nn.Conv3d(2, 16, 1), nn.Tanh(), nn.Conv3d(16, 16, 3, padding=1)),
    "residual": Residual,
    "tied": Tied,
    "merged with the rows": lambda: Merged(interleaved=False),
    "interleaved with the rows": lambda: Merged(interleaved=True),
    "functions": Calls,
    "parametrised": parametrised,
    "transposed": up,
    "transposed, strided": lambda: up(
        stride=(2, 1, 3), padding=(1, 2, 0), output_padding=(1, 0, 2)
    ),
    "transposed, dilated": lambda: up(
        dilation=(1, 2, 1), stride=(1, 3, 1), output_padding=(0, 1, 0)
    ),
    "transposed, grouped": lambda: up(6, groups=2, stride=2, padding=1, bias=False),
    "transposed, depthwise": lambda: up(groups=4, stride=2, output_padding=1),
    "transposed, frozen filters": lambda: frozen(up(), "weight"),
    "transposed, frozen bias": lambda: frozen(up(), "bias"),
    "transposed lines": up_lines,
    "transposed lines, strided": lambda: up_lines(stride=3, padding=2, output_padding=1),
    "transposed lines, dilated": lambda: up_lines(
        dilation=2, bias=False, stride=2, output_padding=1
    ),
    "transposed lines, grouped": lambda: up_lines(6, groups=2, stride=2),
    "transposed lines, frozen filters": lambda: frozen(up_lines(), "weight"),
}  # fmt: skip


def built(name: str, dtype: torch.dtype = torch.float64) -> nn.Module:
    torch.manual_seed(0)
    model = MODELS[name]()
    model(torch.randn(2, *VOLUME))
    return model.to(dtype)


def batch(
    views: int = 1, examples: int = 3, dtype: torch.dtype = torch.float64
) -> tuple[Tensor, Tensor]:
    torch.manual_seed(1)
    return torch.randn(examples * views, *VOLUME, dtype=dtype), torch.arange(examples) % 3


def same_norms_and_sums(found: Gradients, reference: Gradients, tolerance: float) -> None:
    wanted = reference.squared_norms()
    torch.testing.assert_close(found.squared_norms(), wanted, rtol=tolerance, atol=tolerance)
    weights = torch.linspace(0.2, 1.0, len(found.losses)).double()[:, None]
    sums = found.weighted_sum(weights), reference.weighted_sum(weights)
    for a, b in zip(*sums, strict=True):
        torch.testing.assert_close(a, b, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("views", [1, 2])
@pytest.mark.parametrize("name", MODELS)
def test_gradients_are_those_of_one_example_at_a_time(name: str, views: int) -> None:
    model = built(name)
    x, y = batch(views)
    found = Operators(Objective(model, views=views)).gradients(x, y)
    reference = one_at_a_time(model, x, y, views=views)
    assert max(errors(found, reference).values()) < 1e-10
    torch.testing.assert_close(found.outputs, reference.outputs, rtol=1e-10, atol=1e-10)
    same_norms_and_sums(found, reference, 1e-9)


@pytest.mark.parametrize("shape", [(1, 1, -1), (1, -1)], ids=["positions", "channels"])
def test_rows_in_other_dimensions_than_the_first_are_left_to_others(shape: tuple[int, ...]) -> None:
    class Sideways(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Conv1d(1, 8, 1)

        def forward(self, x: Tensor) -> Tensor:
            return self.layer(x.view(shape)).view(8, -1).t()

    x, y = torch.randn(4, 1), torch.arange(4) % 3
    with pytest.raises(NotPerOperator, match="channels or positions"):
        Operators(Objective(Sideways())).gradients(x, y)


@pytest.mark.parametrize("name", MODELS)
def test_convolutions_pass_the_checks_and_run_by_operators(name: str) -> None:
    model = built(name, torch.float32)
    x, y = batch(dtype=torch.float32)
    engine = PerExample(model)
    found = engine(x, y)
    views = batch(views=2, dtype=torch.float32)
    several = Operators(Objective(model, views=2)).gradients(*views)
    assert max(errors(several, one_at_a_time(model, *views, views=2)).values()) < 2e-5
    assert max(errors(found, one_at_a_time(model, x, y)).values()) < 2e-5
    assert engine.method == "operators" and not engine.passed_over
    assert "torch.func" not in {path.path for path in engine.paths()}
    alone = engine(x[:1], y[:1])
    assert max(errors(alone, one_at_a_time(model, x[:1], y[:1])).values()) < 2e-5
    assert engine(x[:0], y[:0]).squared_norms().shape == (0, len(found.names))


COMPILED = [
    "same, of even size", "strided unevenly", "depthwise", "circular", "residual", "tied",
    "interleaved with the rows", "parametrised", "transposed, strided", "transposed lines, strided",
]  # fmt: skip


@pytest.mark.parametrize("name", one_in(2, COMPILED))
def test_the_compiled_pass_has_the_same_norms_and_sums(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    run_without_code(monkeypatch)
    model = built(name)
    x, y = batch(views=2)
    objective = Objective(model, views=2)
    ours = Compiled(objective, x, len(y), torch.float64).gradients(x, y)
    wanted = Operators(objective).gradients(x, y)
    torch.testing.assert_close(ours.squared_norms(), wanted.squared_norms(), rtol=1e-3, atol=1e-7)
    weights = torch.rand(len(y), len(ours.names)).double()
    for a, b in zip(ours.weighted_sum(weights), wanted.weighted_sum(weights), strict=True):
        torch.testing.assert_close(a.double(), b, rtol=1e-4, atol=1e-6)


def test_gradients_by_taps_are_summed_without_a_copy() -> None:
    model = built("wide")
    x, y = batch()
    found = Operators(Objective(model)).gradients(x, y)
    part, block = found.parts[2], found._blocks[2]
    assert isinstance(part, Tensor) and isinstance(block, Tensor)
    assert block.shape == (27, 3, 256) and block.data_ptr() == part.data_ptr()
