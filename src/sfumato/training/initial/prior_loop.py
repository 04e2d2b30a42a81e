"""The loop that trains a network on drawn images by contrast; see `prior`."""

from __future__ import annotations

import math
import time
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from sfumato import models
from sfumato.data import contrastive_views, drawn
from sfumato.errors import UserError
from sfumato.memory import out_of_memory
from sfumato.privacy.numerics.randomness import Randomness
from sfumato.recipe import Recipe
from sfumato.training import checkpoint, devices, optimizers, run_folder, schedules, trouble
from sfumato.training.averaging import Average
from sfumato.training.initial.contrast import Projection, contrast
from sfumato.training.initial.parameters import HEAD
from sfumato.training.interrupt import StopRequest
from sfumato.training.loop import Stopped
from sfumato.training.metrics import Metrics
from sfumato.training.reporter import Progress, Reporter

POOL = {"cuda": 65_536, "mps": 65_536, "cpu": 16_384}
"""Most images that are drawn, by device; a step uses some of them."""
_BYTES = 1 << 31
"""Most memory for them."""
CLASSES = ("untrained 0", "untrained 1")
"""Names of the classes of the head, which is not trained."""
_LARGER = 1.5
"""The side of an image over that of its views: a view shows a part, which must not be blurred."""
_SECONDS = 20.0
"""Time between checkpoints."""


@dataclass
class Prior:
    """The state of training initial weights on drawn images."""

    recipe: Recipe
    randomness: Randomness
    device: torch.device
    reporter: Reporter
    trust: models.Trust = models.Trust()  # noqa: RUF009
    step: int = 0

    def __post_init__(self) -> None:
        r, t = self.recipe, self.recipe.training
        size = r.data.size or 32
        self.size = (size, size) if isinstance(size, int) else (int(size[0]), int(size[1]))
        self.channels = r.data.channels or 3
        self.side = 8 * math.ceil(_LARGER * max(self.size) / 8)
        self.batch = int(t.batch or 512)
        pool = POOL[self.device.type]
        asked = t.steps or round((t.epochs or 100) * pool / self.batch)
        self.steps = max(1, asked)
        most = _BYTES // (self.channels * self.side**2)
        self.count = max(self.batch, min(pool, most, self.steps * self.batch))
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(self.randomness.generator(0, "initialise").initial_seed())
            self.model = models.create_trusted(
                r.model.name,
                r.model.options,
                classes=len(CLASSES),
                channels=self.channels,
                size=self.size,
                trust=self.trust,
                batchnorm_to=r.model.batchnorm_to,
            )
            self._split()
        self.model.to(self.device)
        shape = self.channels, *self.size
        self.memory_format = devices.pick_memory_format(
            self.model, shape, self.device, self.reporter.say
        )
        self.model.to(memory_format=self.memory_format)  # type: ignore[call-overload]
        self.projection.to(self.device)
        trained = [*self.model.parameters(), *self.projection.parameters()]
        self.optimizer = optimizers.build(r.optimizer, trained)
        self.average: Average | None = None
        if t.average:
            self.average = Average(self.model, t.average, kind=t.average_kind, steps=self.steps)
        self.narrow = devices.precision(t.precision, self.device) == "bfloat16"
        self.compare = self._compare
        if self.device.type == "cuda":
            torch.backends.cudnn.benchmark = True
            devices.keep_compiled()
            # Only the projection and what follows it are float32.
            warnings.filterwarnings("ignore", message="TensorFloat32 tensor cores")
            self.compare = torch.compile(self._compare)
        self.log_every = t.log_every or math.ceil(self.steps / 60)

    def _split(self) -> None:
        """Replace the head, which the next run draws anew, by the projection."""
        head = getattr(self.model, HEAD, None)
        if not isinstance(head, nn.Module):
            raise UserError(
                f"Model '{self.recipe.model.name}' has no layer called '{HEAD}', behind which "
                f"features could be compared: '{self.recipe.data.name}' cannot train it."
            )
        self.head = head.to(self.device)
        setattr(self.model, HEAD, nn.Identity())
        with torch.no_grad():
            features = self.model(torch.zeros(2, self.channels, *self.size))
        self.projection = Projection(features.flatten(1).shape[1])

    def header(self) -> dict[str, Any]:
        """The first line of the ledger, which states that there is nothing to account for."""
        return {
            "version": 1,
            "mechanism": "none",
            "relation": "none: every image is drawn by the program",
            "examples": self.count,
            "rate": self.batch / self.count,
            "sigma": 0.0,
            "clip": 0.0,
            "delta": 0.0,
            "budget": 0.0,
            "accountant": "",
            "steps": self.steps,
            "data": self.recipe.data.name,
            "physical_batch": self.batch,
            "recipe": self.recipe.to_dict(),
        }

    def open(self, folder: Path, *, upto: int | None = None) -> None:
        """Draw the images, and open the run folder."""
        self.folder, self.metrics = folder, Metrics(folder / run_folder.METRICS, upto=upto)
        self.reporter.say(
            f"Training {self.recipe.model.name} to tell {self.count:,} drawn images apart: "
            f"{self.steps:,} steps, each with two views of {self.batch:,} of them. They are drawn "
            "first."
        )
        self.images = self._drawn(self.count, "images")

    def _drawn(self, count: int, purpose: str) -> Tensor:
        generator = self.randomness.generator(0, purpose, self.device)
        name, side, channels = self.recipe.data.name, self.side, self.channels
        return drawn.draw(name, count, side=side, channels=channels, generator=generator)

    def restore(self, state: checkpoint.Checkpoint) -> None:
        """Restore a checkpoint."""
        self.model.load_state_dict(state.part("model"))
        self.projection.load_state_dict(state.part("projection"))
        checkpoint.restore_optimizer(self.optimizer, state)
        if self.average is not None:
            self.average.load(state.part("average"))
        self.step = state.step

    def save(self) -> None:
        """Write a checkpoint."""
        tensors, numbers = checkpoint.optimizer_state(self.optimizer)
        tensors |= {f"model/{n}": t for n, t in self.model.state_dict().items()}
        tensors |= {f"projection/{n}": t for n, t in self.projection.state_dict().items()}
        if self.average is not None:
            tensors |= {f"average/{n}": t for n, t in self.average.tensors.items()}
        state = checkpoint.Checkpoint(self.step, tensors, numbers)
        checkpoint.write(self.folder / run_folder.CHECKPOINTS, state)

    def take_step(self) -> Tensor:
        """Take one step and return its loss and accuracy."""
        number = self.step + 1
        chosen = torch.randperm(
            self.count,
            generator=self.randomness.generator(number, "sample", self.device),
            device=self.device,
        )[: self.batch]
        rate = schedules.learning_rate(
            self.recipe.optimizer, number, self.steps, epoch=self.count / self.batch
        )
        for group in self.optimizer.param_groups:
            group["lr"] = rate
        self.optimizer.zero_grad(set_to_none=True)
        try:
            loss, accuracy = self.compare(self.images[chosen], self._numbers(number, "views"))
            loss.backward()  # type: ignore[no-untyped-call]
        except Exception as error:
            if not out_of_memory(error):
                raise
            raise UserError(
                f"Not enough memory for two views of {self.batch} images, which are compared with "
                "each other and cannot be taken in parts: lower training.batch."
            ) from None
        self.optimizer.step()
        self.step = number
        if self.average is not None:
            self.average.update(self.model, number)
        return torch.stack([loss.detach(), accuracy])

    def _numbers(self, step: int, purpose: str) -> Tensor:
        """The random numbers of two views of each image of a batch."""
        return torch.rand(
            (2 * self.batch, contrastive_views.NUMBERS),
            generator=self.randomness.generator(step, purpose, self.device),
            device=self.device,
        )

    def _compare(self, images: Tensor, numbers: Tensor) -> tuple[Tensor, Tensor]:
        """Loss and accuracy of matching the two views of each image."""
        twice = torch.cat([images, images]).float() / 255
        views = contrastive_views.change(twice, numbers, size=self.size)
        views = (views - drawn.MEAN) / drawn.STD
        views = views.contiguous(memory_format=self.memory_format)
        with torch.autocast(self.device.type, torch.bfloat16, enabled=self.narrow):
            features = self.model(views)
        return contrast(self.projection(features.float().flatten(1)))

    def run(self, stop: StopRequest) -> None:
        """Take the remaining steps.

        Raises:
            Stopped: If asked to, after saving.
        """
        every = self.recipe.training.checkpoint_every
        earlier, first = self.metrics.seconds, self.step
        started = settled = saved = logged = time.monotonic()
        recent, since = torch.zeros(2, device=self.device), 0
        shown: tuple[float | None, float | None, float] = (None, None, 0.0)
        while self.step < self.steps:
            recent += self.take_step()
            since += 1
            now = time.monotonic()
            if self.step == first + 1:
                # The first steps include compilation: later ones take less.
                settled = logged = now
                compiled = self.device.type == "cuda"
                for remark in trouble.first_step(now - started, "compilation") * compiled:
                    self.reporter.say(remark)
            if self.step % self.log_every == 0 or self.step == self.steps:
                loss, accuracy = (recent / since).tolist()
                now = time.monotonic()
                speed = 2 * self.batch * since / max(now - logged, 1e-9)
                self._log(loss, accuracy, speed, earlier + now - started)
                shown = (loss, accuracy, speed)
                logged, since = now, 0
                recent.zero_()
            if stop:
                self.save()
                raise Stopped(self.folder, self.step, stop.signal or 0)
            if self.step % every == 0 if every else now - saved > _SECONDS:
                self.save()
                saved = time.monotonic()
            left = (now - settled) / max(1, self.step - first - 1) * (self.steps - self.step)
            loss_, accuracy_, speed_ = shown
            self.reporter.show(
                Progress(self.step, self.steps, math.inf, loss_, accuracy_, speed_, left)
            )
        self.save()

    def _log(self, loss: float, accuracy: float, speed: float, seconds: float) -> None:
        if not math.isfinite(loss):
            raise trouble.Diverged(
                f"Training diverged: the loss is not a number after step {self.step}. Lower the "
                f"learning rate (optimizer.lr = {self.recipe.optimizer.lr:g}), or add a warm-up."
            )
        record = {"step": self.step, "loss": loss, "train_accuracy": accuracy}
        record |= {"lr": float(self.optimizer.param_groups[0]["lr"])}
        self.metrics.add(
            record | {"views_per_second": round(speed, 1), "seconds": round(seconds, 3)}
        )

    @torch.no_grad()
    def accuracy(self) -> float:
        """Fraction of views whose partner is found, in a new batch, with averaged weights."""
        fresh = self._drawn(self.batch, "test")
        with self.average.applied(self.model) if self.average else nullcontext():
            return float(self._compare(fresh, self._numbers(0, "test"))[1])

    @contextmanager
    def whole(self) -> Iterator[nn.Module]:
        """The network with its averaged weights, if there are any, and with its untrained head."""
        averaged = self.average.applied(self.model) if self.average else nullcontext()
        with averaged:
            setattr(self.model, HEAD, self.head)
            try:
                yield self.model
            finally:
                setattr(self.model, HEAD, nn.Identity())
