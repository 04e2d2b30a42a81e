"""The checks that a model passes before its first batch counts.

They run on random inputs, so no private example is involved, and leave the model and the global
random state as they were.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from sfumato.errors import UserError
from sfumato.privacy.gradients import Gradients, NotPerLayer
from sfumato.privacy.reference import one_at_a_time

if TYPE_CHECKING:
    from sfumato.privacy.gradients import PerExample

METHODS = ("layers", "torch.func", "loop")
_PROBE_SEED = 20220408


def tolerance(dtype: torch.dtype) -> float:
    """Relative error that rounding alone may cause in a gradient of this precision."""
    return {torch.float64: 1e-7, torch.float32: 2e-3}.get(dtype, 1e-1)


@contextmanager
def undisturbed(model: nn.Module) -> Iterator[None]:
    """Silence dropout, and put back buffers, modes and the random state afterwards."""
    dropouts = [m for m in model.modules() if isinstance(m, nn.modules.dropout._DropoutNd)]
    modes = [m.training for m in dropouts]
    buffers = {name: buffer.clone() for name, buffer in model.named_buffers()}
    devices = {p.device for p in model.parameters() if p.device.type == "cuda"}
    with torch.random.fork_rng(devices=sorted(d.index or 0 for d in devices)):
        try:
            for module in dropouts:
                module.train(False)
            yield
        finally:
            for module, mode in zip(dropouts, modes, strict=True):
                module.train(mode)
            put_back(model, buffers)


def put_back(model: nn.Module, buffers: dict[str, Tensor]) -> None:
    """Restore buffers saved from the model."""
    with torch.no_grad():
        for name, buffer in model.named_buffers():
            buffer.copy_(buffers[name])


def random_rows(like: Tensor, rows: int, *, seed: int = _PROBE_SEED) -> Tensor:
    """Standard normal inputs with the shape, type, device and memory format of real ones."""
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn((rows, *like.shape[1:]), generator=generator, dtype=torch.float64)
    x = x.to(device=like.device, dtype=like.dtype)
    if like.dim() == 4 and like.is_contiguous(memory_format=torch.channels_last):
        x = x.contiguous(memory_format=torch.channels_last)
    return x


def run_apart(
    model: nn.Module, x: Tensor, *, seed: int = _PROBE_SEED
) -> tuple[Tensor, dict[str, Tensor]]:
    """Outputs and buffers after one forward pass, from a fixed random state; buffers put back."""
    before = {name: buffer.clone() for name, buffer in model.named_buffers()}
    torch.manual_seed(seed)
    with torch.no_grad():
        out = model(x)
    after = {name: buffer.clone() for name, buffer in model.named_buffers()}
    put_back(model, before)
    return out, after


def how_examples_mix(model: nn.Module, x: Tensor) -> str | None:
    """Change one example at a time and look at everything that may only depend on the others.

    Returns:
        A sentence that says where one example reached another, or None.
    """
    rows = x.shape[0]
    baseline, state = run_apart(model, x)
    if not isinstance(baseline, Tensor) or baseline.dim() == 0 or baseline.shape[0] != rows:
        got = tuple(baseline.shape) if isinstance(baseline, Tensor) else type(baseline).__name__
        return f"for {rows} examples the model returns {got}, not one row of outputs per example"
    scale = baseline.abs().max().clamp_min(1e-30)
    for j in range(rows):
        for replacement in (
            random_rows(x, 1, seed=j + 1)[0] * 3,
            torch.zeros_like(x[0]),
            x[j] * -7 + 1,
        ):
            changed = x.clone()
            changed[j] = replacement
            out, state_after = run_apart(model, changed)
            others = torch.arange(rows, device=x.device) != j
            moved = (out[others] - baseline[others]).abs().max() / scale
            if not bool(moved <= 1e-2 * tolerance(x.dtype)):
                return f"changing one example moves the outputs of the others by {float(moved):.1e}"
            for name, buffer in state_after.items():
                if not torch.equal(buffer, state[name]):
                    return (
                        f"the forward pass stores what it has seen of the data in buffer '{name}'"
                    )
    return None


def relative_error(ours: Gradients, reference: Gradients) -> tuple[float, str]:
    """Largest error over examples and parameters, relative to each example's whole gradient."""
    worst, where = 0.0, ""
    if ours.losses.shape[0] == 0:
        return worst, where
    scale = reference.squared_norms().sum(1).sqrt().clamp_min(1e-30)
    for name, a, b in zip(ours.names, ours.tensors, reference.tensors, strict=True):
        assert b is not None
        difference = b if a is None else a.to(b.dtype) - b
        error = torch.linalg.vector_norm(difference.flatten(1), dim=1) / scale
        value = float(error.max()) if torch.isfinite(error).all() else float("inf")
        if value > worst:
            worst, where = value, name
    return worst, where


def choose_method(engine: PerExample, x: Tensor, y: Tensor) -> str:
    """The fastest method that agrees with the reference on this model and input shape.

    Raises:
        UserError: If one example can reach another.
    """
    model = engine.model
    with undisturbed(model):
        compare = engine.check and not is_random(model, random_rows(x, 3))
        if engine.check and (mixing := how_examples_mix(model, random_rows(x, 3))):
            raise UserError(
                f"This model cannot be trained with differential privacy: {mixing}. Each "
                "example's output must depend on that example alone; look for statistics, "
                "sorts or rolls along the batch (`sfumato verify` shows the details)."
            )
        for method in METHODS[:-1]:
            if _agrees(engine, method, x, y, compare=compare):
                return method
    return METHODS[-1]


def is_random(model: nn.Module, x: Tensor) -> bool:
    """Whether the model draws random numbers besides its (silenced) dropout layers."""
    return not torch.equal(run_apart(model, x)[0], run_apart(model, x, seed=1)[0])


def _agrees(engine: PerExample, method: str, x: Tensor, y: Tensor, *, compare: bool) -> bool:
    views = engine.views
    for examples in (2, 3):
        rows = random_rows(x, examples * views)
        targets = y[torch.arange(examples, device=y.device) % y.shape[0]]
        before = {name: buffer.clone() for name, buffer in engine.model.named_buffers()}
        try:
            torch.manual_seed(_PROBE_SEED)
            ours = engine._run(method, rows, targets)
        except NotPerLayer:
            return False
        except (RuntimeError, ValueError, NotImplementedError):
            if method == "layers":
                raise
            return False
        finally:
            put_back(engine.model, before)
        if compare:
            reference = one_at_a_time(engine.model, rows, targets, loss=engine.loss, views=views)
            if not relative_error(ours, reference)[0] <= tolerance(rows.dtype):
                return False
    return True
