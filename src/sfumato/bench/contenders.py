"""Whole training steps to be measured: sfumato's own loop, and training without privacy.

A step includes drawing the batch, gathering, crop and flip, forward and backward pass, accumulation
over physical batches, and the update with momentum and averaged weights; for private contenders
also clipping, noise and the ledger. All contenders get their images from the same feed.
"""

from __future__ import annotations

import functools
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import torch
import torch.nn.functional as F
from torch import Tensor

from sfumato import models
from sfumato.bench.cases import Case
from sfumato.bench.feed import (
    DECAY,
    Contender,
    Feed,
    build_model,
    drawn,
    generated,
    recipe_of,
)
from sfumato.privacy.per_example import REPLAY
from sfumato.training import devices, optimizers, setup
from sfumato.training.averaging import Average

if TYPE_CHECKING:
    from sfumato.training.loop import Loop


def real_loop(case: Case, device: torch.device) -> tuple[Loop, Callable[[], None]]:
    """A `Loop` over generated images in a temporary run folder, and its clean-up function."""
    from sfumato.privacy.ledger import Ledger
    from sfumato.privacy.numerics.randomness import Randomness
    from sfumato.training import run_folder
    from sfumato.training.loop import Loop
    from sfumato.training.metrics import Metrics
    from sfumato.training.reporter import Silent

    recipe = recipe_of(case)
    devices.pick_device(str(device), case.precision)
    dataset = generated(case.image, case.examples)
    plan = setup.plan(recipe, case.examples)
    randomness = Randomness.from_seed(0)
    named = (case.model,) if ":" in case.model else ()
    model = setup.build_model(recipe, dataset, randomness, trust=models.Trust(named))
    folder = tempfile.TemporaryDirectory(prefix="sfumato-bench-")
    path = Path(folder.name)
    (path / run_folder.CHECKPOINTS).mkdir()
    ledger = Ledger.create(path / run_folder.LEDGER, {"recipe": recipe.to_dict()})

    def close() -> None:
        ledger.close()
        folder.cleanup()

    try:
        loop = Loop(
            recipe, plan, dataset, model, device, randomness, ledger,
            Metrics(path / run_folder.METRICS), path, case.at_once, Silent(),
        )  # fmt: skip
    except BaseException:
        close()
        raise
    return loop, close


def sfumato(case: Case, device: torch.device) -> Contender:
    """A contender that takes steps of a real `Loop`."""
    loop, close = real_loop(case, device)
    generator = torch.Generator().manual_seed(0)

    def remark() -> str:
        passed_over = loop.private.per_example.passed_over
        if case.precision == "float32":
            return "eager"
        if reason := passed_over.get("compiled"):
            return f"not compiled: {reason}"
        reason = passed_over.get(REPLAY)
        return f"compiled, no CUDA graph: {reason}" if reason else "compiled"

    return Contender(
        step=lambda: loop.take_step(drawn(case, generator)),
        how=f"{case.precision}, channels last",
        close=close,
        remark=remark,
        physical=lambda: loop.feed.physical_batch,
        model=loop.model,
    )


def not_private(case: Case, device: torch.device, *, compiled: bool | None = None) -> Contender:
    """A contender that trains the same model without privacy.

    Args:
        case: The case.
        device: The device.
        compiled: Whether to use `torch.compile`; by default on CUDA only.
    """
    compiled = device.type == "cuda" if compiled is None else compiled
    feed, model = Feed(case, device), build_model(case)
    model.to(device=device)
    model.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    optimizer = optimizers.build(recipe_of(case).optimizer, model.parameters())
    average = Average(model, DECAY)
    narrow = case.precision == "bfloat16"

    def loss_of(x: Tensor, y: Tensor) -> Tensor:
        with torch.autocast(device.type, torch.bfloat16, enabled=narrow):
            out = model(x)
        return F.cross_entropy(out.float(), y) / case.physical

    run = torch.compile(loss_of, dynamic=False) if compiled else loss_of
    taken = 0

    def step() -> None:
        nonlocal taken
        for x, y in feed.batches():
            torch.autograd.backward(run(x, y.repeat_interleave(case.views)))
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        taken += 1
        average.update(model, taken)

    words = "torch.compile" if compiled else "eager"
    cast = "bfloat16 autocast" if narrow else "float32"
    return Contender(step, f"{cast}, {words}, channels last", model=model)


def prepare(name: str, case: Case, device: torch.device) -> Contender:
    """Prepare a contender for its first step.

    Raises:
        Unsupported: If it is not installed, or does not support the case.
    """
    from sfumato.bench import jax_peer, peers

    makers: dict[str, Callable[[Case, torch.device], Contender]] = {
        "sfumato": sfumato,
        "not-private": not_private,
        "not-private-compiled": functools.partial(not_private, compiled=True),
        "opacus": peers.opacus,
        "opacus-ghost": functools.partial(peers.opacus, ghost=True),
        "vmap": peers.vmapped,
        "jax-privacy": jax_peer.jax_privacy,
    }
    return makers[name](case, device)
