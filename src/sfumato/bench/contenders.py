"""Whole training steps to be measured: sfumato's own loop, and training without privacy.

Everything of a step is inside: drawing the batch, gathering, crop and flip, forward and backward
pass, accumulation over physical batches, the update with momentum and averaged weights; and for
private ones clipping, noise and the ledger. All contenders get their images in the same way.
"""

from __future__ import annotations

import functools
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from sfumato import models
from sfumato.bench.cases import Case, image_of
from sfumato.data import Dataset, ImageSet, ImageStore
from sfumato.recipe import Recipe, from_dict
from sfumato.training import devices, optimizers, setup
from sfumato.training.averaging import Average

CLASSES = 10
SIGMA, CLIP, DECAY = 1.0, 1.0, 0.99
_ENOUGH_STEPS = 10_000


class Unsupported(Exception):
    """A contender that is not installed, or that cannot do what a case asks for."""


@dataclass
class Contender:
    """A prepared contender.

    Attributes:
        step: Takes one whole step.
        how: In what way it computes, for the table.
        note: What a reader must know to compare.
        close: Lets go of files.
        remark: Says after the steps how they were really taken.
        physical: The examples it really processes at once, if that can change by itself.
        synchronise: Waits for its steps, if they do not run on PyTorch's streams.
        model: Whose layers it runs, for profiles.
    """

    step: Callable[[], object]
    how: str
    note: str = ""
    close: Callable[[], None] = lambda: None
    remark: Callable[[], str] = lambda: ""
    physical: Callable[[], int] | None = None
    synchronise: Callable[[], object] | None = None
    model: nn.Module | None = field(default=None, repr=False)


@functools.lru_cache(maxsize=2)
def generated(image: tuple[int, int, int], examples: int) -> Dataset:
    """A data set of random bytes, of which nothing can be learnt but how fast it goes."""
    rng = np.random.default_rng(0)
    images = rng.integers(0, 256, (examples, *image), dtype=np.uint8)
    labels = rng.integers(0, CLASSES, examples, dtype=np.int64)
    train = ImageSet(images, labels)
    channels = image[0]
    return Dataset(
        name="generated",
        classes=tuple(str(k) for k in range(CLASSES)),
        train=train,
        test=train.take(np.arange(min(examples, CLASSES))),
        validation=None,
        mean=(0.5,) * channels,
        std=(0.25,) * channels,
    )


def recipe_of(case: Case) -> Recipe:
    """The recipe of a case: sigma given, so that no time goes into calibration."""
    return from_dict(
        {
            "name": "bench",
            "data": {"name": "generated"},
            "model": {"name": case.model, "options": case.options},
            "privacy": {
                "noise_multiplier": SIGMA,
                "clip": CLIP,
                "epsilon": 1e5,
                "accountant": "rdp",
            },
            "optimizer": {"lr": 1e-3, "momentum": 0.9},
            "augment": {"crop": 4, "flip": True},
            "training": {
                "batch": case.batch,
                "steps": _ENOUGH_STEPS,
                "log_every": _ENOUGH_STEPS,
                "views": case.views,
                "average": DECAY,
                "physical_batch": case.at_once,
                "precision": case.precision,
                "seed": 0,
            },
        }
    )


def build_model(case: Case, **options: Any) -> nn.Module:
    """A new model of the case, on the CPU."""
    channels, height, width = image_of(case.model)
    torch.manual_seed(0)
    return models.create(
        case.model,
        classes=CLASSES,
        channels=channels,
        size=(height, width),
        **(case.options | options),
    )


class Feed:
    """Draws batches and makes their views, as `sfumato.training.loop` does."""

    def __init__(self, case: Case, device: torch.device, *, channels_last: bool = True) -> None:
        self.case, self.device = case, device
        dataset = generated(image_of(case.model), case.examples)
        self.store = ImageStore(dataset.train, mean=dataset.mean, std=dataset.std, device=device)
        self.views = setup.views(recipe_of(case))
        self.format = torch.channels_last if channels_last else torch.contiguous_format
        self.generator = torch.Generator().manual_seed(0)

    def draw(self) -> Tensor:
        """Exactly the batch's number of different examples, in increasing order."""
        return drawn(self.case, self.generator)

    def batches(self) -> Iterator[tuple[Tensor, Tensor]]:
        """The physical batches of one step: rows, and one label per example."""
        draw, size = self.draw(), self.case.at_once
        parameters = self.views.draw(draw.numel(), self.generator).to(self.device)
        draw = draw.to(self.device)
        for start in range(0, draw.numel(), size):
            rows = torch.arange(start, start + size, device=self.device)
            images, labels = self.store.gather(draw[rows])
            x = self.views.apply(self.store.unit(images), parameters.take(rows))
            yield self.store.normalise(x).contiguous(memory_format=self.format), labels


def drawn(case: Case, generator: torch.Generator) -> Tensor:
    """A draw of exactly the expected batch, so that every step has the same size."""
    chosen = torch.randperm(case.examples, generator=generator)[: case.batch]
    return chosen.sort().values


def sfumato(case: Case, device: torch.device) -> Contender:
    """A real `Loop` over generated images, in a temporary run folder."""
    from sfumato.privacy.ledger import Ledger
    from sfumato.privacy.noise import Randomness
    from sfumato.training import files
    from sfumato.training.loop import Loop
    from sfumato.training.metrics import Metrics
    from sfumato.training.reporter import Silent

    recipe = recipe_of(case)
    devices.pick_device(str(device), case.precision)
    dataset = generated(image_of(case.model), case.examples)
    plan = setup.plan(recipe, case.examples)
    randomness = Randomness.from_seed(0)
    model = setup.build_model(recipe, dataset, randomness)
    folder = tempfile.TemporaryDirectory(prefix="sfumato-bench-")
    path = Path(folder.name)
    (path / files.CHECKPOINTS).mkdir()
    ledger = Ledger.create(path / files.LEDGER, {"recipe": recipe.to_dict()})

    def close() -> None:
        ledger.close()
        folder.cleanup()

    try:
        loop = Loop(
            recipe, plan, dataset, model, device, randomness, ledger,
            Metrics(path / files.METRICS), path, case.at_once, Silent(),
        )  # fmt: skip
    except BaseException:
        close()
        raise
    generator = torch.Generator().manual_seed(0)

    def remark() -> str:
        reason = loop.private.per_example.passed_over.get("compiled")
        if case.precision == "float32":
            return "eager"
        return f"not compiled: {reason}" if reason else "compiled"

    return Contender(
        step=lambda: loop.take_step(drawn(case, generator)),
        how=f"{case.precision}, channels last",
        close=close,
        remark=remark,
        physical=lambda: loop.physical_batch,
        model=model,
    )


def not_private(case: Case, device: torch.device, *, compiled: bool | None = None) -> Contender:
    """The same training without privacy.

    Args:
        case: What to do.
        device: Where.
        compiled: Whether with `torch.compile`; by default on CUDA only.
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
    """Make a contender ready for its first step.

    Raises:
        Unsupported: If it is not installed, or cannot do this.
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
