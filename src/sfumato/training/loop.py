"""The training loop: draw, augment, clip, add noise, update, record, checkpoint.

A step's random numbers follow from the run's key and the step's number alone, so a run that was
interrupted repeats its last steps exactly and ends where it would have ended.
"""

from __future__ import annotations

import math
import time
from collections.abc import Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from pathlib import Path

import torch
from torch import Tensor, nn

from sfumato.data import Dataset, ImageStore
from sfumato.distributed.ranks import Ranks
from sfumato.errors import UserError
from sfumato.live import working
from sfumato.privacy.ledger import Ledger
from sfumato.privacy.mechanism import PrivateGradients
from sfumato.privacy.numerics.randomness import Randomness
from sfumato.privacy.statistics import BatchStatistics
from sfumato.recipe import Recipe
from sfumato.training import (
    canary_steps,
    checkpoint,
    devices,
    optimizers,
    phases,
    schedules,
    setup,
    snapshots,
    trouble,
)
from sfumato.training.averaging import Average
from sfumato.training.balance import Balance
from sfumato.training.canary_plan import CanaryPlan
from sfumato.training.class_weights import loss_of
from sfumato.training.draw_feed import DrawFeed
from sfumato.training.drawn_images import UnitImages
from sfumato.training.evaluation import evaluate, evaluate_rows
from sfumato.training.initial.frozen_features import frozen_features
from sfumato.training.interrupt import GRACE, StopRequest
from sfumato.training.interrupt import Stopped as Stopped
from sfumato.training.metrics import MANY, Metrics, coarse
from sfumato.training.reporter import Progress, Reporter
from sfumato.training.run_folder import CHECKPOINTS, without_clock
from sfumato.training.setup import Plan

_CHECKPOINT_SECONDS = 20.0


@dataclass
class Loop:
    """The state and all parts of a run in progress; only rank 0 has a ledger, and writes files."""

    recipe: Recipe
    plan: Plan
    dataset: Dataset
    model: nn.Module
    device: torch.device
    randomness: Randomness
    ledger: Ledger | None
    metrics: Metrics
    folder: Path
    physical_batch: int
    reporter: Reporter
    canary_plan: CanaryPlan | None = None
    common: Mapping[str, str] = field(default_factory=dict)
    step: int = 0
    not_finite: int = 0
    saved: int = 0

    def __post_init__(self) -> None:
        r = self.recipe
        self.ranks = Ranks.current()
        self.model.to(device=self.device)
        if self.device.type == "cuda":
            torch.backends.cudnn.benchmark = True
            devices.keep_compiled()
        t = r.training
        self.views = setup.views(r)
        self.store = self._store("train")
        self.memory_format = devices.pick_memory_format(
            self.model, (self.dataset.channels, *self.dataset.size), self.device, self.reporter.say
        )
        self.model.to(memory_format=self.memory_format)  # type: ignore[call-overload]
        self.phases = phases.Phases(r, self.model, self.plan.steps)
        # While everything is trainable that any phase trains: what is fixed then always is.
        self.features = frozen_features(self.model, self.store, self.views)
        self.phases.enter(1)
        self._held: dict[str, tuple[Tensor, Tensor]] = {}
        if self.features is not None:
            self.reporter.say("Fixed layers run once for each image, not in every step.")
        units = UnitImages(self.dataset.train, r.data.per_unit, self.randomness)
        narrow = devices.precision(t.precision, self.device) == "bfloat16"
        self.private = PrivateGradients(
            self.model if self.features is None else self.features.end,
            sampler=self.plan.sampler,
            clipping=self.plan.clipping,
            noise=self.plan.noise,
            loss=loss_of(r, self.device),
            views=self.views.total,
            images=units.slots,
            randomness=self.randomness,
            precision=torch.bfloat16 if narrow else None,
        )
        self.private.per_example.say = self.reporter.say
        self.feed = DrawFeed(
            self.private, self.store, units, self.views, self.features, self.randomness,
            self.memory_format, self.physical_batch, self.reporter,
        )  # fmt: skip
        self.optimizer = optimizers.build(r.optimizer, self.phases.every.values())
        self.average: Average | None = None
        if t.average:
            self.average = Average(
                self.model, t.average, kind=t.average_kind, steps=self.plan.steps
            )
        self.balance = Balance(r.data.balance, self.dataset.train.labels, self.randomness)
        self.canaries = canary_steps.begin(self.canary_plan, self)
        self.epoch = 1 / self.plan.sampler.rate
        self.watch = schedules.watch(r, self.epoch)
        self._unread = BatchStatistics()
        self.log_every = r.training.log_every or math.ceil(self.plan.steps / 60)
        self.seconds = self.metrics.seconds
        self._spent: dict[int, float] = {}
        if r.privacy.enabled:
            counts = sorted(
                {*range(self.log_every, self.plan.steps, self.log_every), self.plan.steps}
            )
            p = r.privacy
            spent = self.plan.curve(counts, delta=p.delta, accountant=p.accountant)
            self._spent = dict(zip(counts, spent, strict=True))

    def _store(self, part: str) -> ImageStore:
        d = self.dataset
        return ImageStore(d.parts()[part], mean=d.mean, std=d.std, device=self.device)

    def epsilon_after(self, step: int) -> float:
        """An upper bound of epsilon after a step, cheap enough to show."""
        if not self.recipe.privacy.enabled:
            return float("inf")
        return next(eps for count, eps in self._spent.items() if count >= step)

    def restore(self, state: checkpoint.Checkpoint) -> None:
        """Restore a checkpoint."""
        try:
            self.model.load_state_dict(state.part("model"))
        except RuntimeError:
            raise UserError(
                f"The checkpoint of step {state.step} in {self.folder} does not fit the model "
                f"'{self.recipe.model.name}': its code is not what it was. Give it back its "
                "layers, or start a new run."
            ) from None
        checkpoint.restore_optimizer(self.optimizer, state)
        if self.average is not None:
            self.average.load(state.part("average"))
        self.canaries.load(state.part("canaries"))
        self.step = self.saved = state.step
        self.phases.enter(max(1, state.step))
        self.private.history = self.plan.history(state.step)
        self.private.clipping = self.private.clipping.restored(state.numbers.get("clipping", {}))
        self.watch.load(state.numbers.get("watch", {}))
        self.not_finite = int(state.numbers.get("not_finite", 0))
        self.seconds = self.seconds or float(state.numbers.get("seconds", 0.0))

    def save(self) -> None:
        """Write a checkpoint, after the ledger is on the disk; all ranks call this together."""
        optimizers.gather_state(self.optimizer)
        if self.ledger is None:
            return
        self.ledger.sync()
        self._settle()
        tensors, numbers = checkpoint.optimizer_state(self.optimizer)
        tensors |= {f"model/{n}": t for n, t in self.model.state_dict().items()}
        if self.average is not None:
            tensors |= {f"average/{n}": t for n, t in self.average.tensors.items()}
        tensors |= {f"canaries/{n}": t for n, t in self.canaries.state().items()}
        numbers |= {"physical_batch": self.feed.physical_batch}
        if self.recipe.exact_metrics:
            numbers |= {"not_finite": self.not_finite}
        numbers |= {"seconds": coarse(self.seconds)} if self.step >= MANY else {}
        numbers |= {"clipping": self.private.clipping.state(), "watch": self.watch.state()}
        state = checkpoint.Checkpoint(self.step, tensors, numbers)
        without_clock(checkpoint.write(self.folder / CHECKPOINTS, state), self.folder)
        self.saved = self.step

    def run(self, stop: StopRequest) -> None:
        """Take the remaining steps.

        Raises:
            Stopped: If asked to, after saving.
        """
        every = self.recipe.training.checkpoint_every
        started = saved = logged = settled = before = time.monotonic()
        earlier, first, views = self.seconds, self.step, 0.0
        recent = BatchStatistics()
        while not self.finished:
            slow = self.step == first or self.phases.begins(self.step + 1)
            with working("first step") if slow else nullcontext():
                statistics = self.take_step()
            if self.step == first + 1 and not stop:  # A signal may have ended the compiler, too.
                for remark in trouble.about_start(self.private, time.monotonic() - started):
                    self.reporter.say(remark)
            recent += statistics
            # Of the expected batch: the number of images drawn must not be revealed.
            views += self.plan.sampler.batch * self.private.per_example.views
            now = time.monotonic()
            self.seconds = earlier + now - started
            if self.step % self.log_every == 0 or self.finished:
                self._log(recent, views / max(now - logged, 1e-9))
                logged, views = now, 0.0
                recent = BatchStatistics()
                if self.watch.stopped:
                    self.reporter.say(
                        f"Stopped early after step {self.step} of {self.plan.steps}: no better "
                        f"validation {self.recipe.optimizer.monitor} since step "
                        f"{self.watch.best_step}."
                    )
            due = self.step % every == 0 if every else now - saved > _CHECKPOINT_SECONDS
            # A step this long is not waited for when the run is asked to stop.
            due = due or now - before > GRACE
            # Before the next release: all ranks still have the same recipe and data.
            told = self.ranks.agree(self.common, [stop.signal or 0, due])
            if signal := max(asked for asked, _ in told):
                self.save()
                raise Stopped(self.folder, self.step, signal)
            if told[0][1] or self.finished:
                self.save()
                saved = time.monotonic()
            before, left = now, None
            if self.step == first + 1:
                # The first step includes checks and compilation: later ones take less.
                settled = logged = max(now, saved)
                views = 0.0
            else:
                each = (now - settled) / (self.step - first - 1)
                left = each * (self.plan.steps - self.step)
            self._show(left)

    @property
    def finished(self) -> bool:
        """Tell whether all steps are taken, or training is to end early."""
        return self.step >= self.plan.steps or self.watch.stopped

    def take_step(self, draw: Tensor | None = None) -> BatchStatistics:
        """Take one step of DP-SGD.

        Args:
            draw: The examples of this step, for measurements of speed only; the sampler's if None.

        Guarantee: The step's event is in the ledger before the noisy gradient exists on any rank;
        every drawn example that stays is accumulated exactly once, however the draw is split.
        """
        number = self.step + 1
        phase = self._enter_phase(number)
        self.private.noise = self.plan.noise_at(number)
        if self.plan.clip_decay != 1 or self.phases.sets_clip:
            now = self.private.clipping
            self.private.clipping = self.plan.clipping_at(number, now, phase.clip)
        if draw is None:
            draw = self.plan.sampler.whole_draw(self.randomness.stream(number, "sample"))
            draw = self.balance.stay(draw, number)
        # For dropout and the like, which need not be the same on all ranks.
        generator = self.randomness.generator(number, f"model{self.ranks.rank or ''}")
        with devices.seeded(generator.initial_seed(), self.device):
            self.feed.accumulate(self.canaries.images_of(draw), number)
        self.canaries.accumulate(draw)
        ledger = self.ledger
        statistics = self.private.release(
            before=None if ledger is None else lambda event: ledger.record(number, event)
        )
        self.canaries.see()
        trouble.check_divergence(self.recipe, statistics, number, phase.rate)
        o, noise = phase.optimizer, self.plan.effective_noise(number)
        scale = self.watch.scale * schedules.noise_scale(o, noise)
        rate = schedules.learning_rate(o, number, self.plan.steps, epoch=self.epoch, scale=scale)
        for group in self.optimizer.param_groups:
            group["lr"] = rate
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)
        self.step = number
        if self.average is not None:
            self.average.update(self.model, number)
        self.keep_snapshot()
        self._unread += statistics
        if self.device.type == "cpu":
            self._settle()
        return statistics

    def _enter_phase(self, step: int) -> phases.Phase:
        """The phase of a step, with its parameters trainable and all others frozen."""
        if self.phases.enter(step):
            self.private.per_example.forget()
        if self.phases.begins(step):
            self.reporter.say(f"The next phase trains {self.phases.at(step).words}.")
        return self.phases.at(step)

    def keep_snapshot(self) -> None:
        """Write a snapshot of the weights if one is due, after the step's event is on disk."""
        steps, count = self.plan.steps, self.recipe.training.snapshots
        if self.ledger is not None and snapshots.due(self.step, steps, count):
            self.ledger.sync()
            snapshots.keep(self.folder, self.model, self.step, steps, count)

    def _settle(self) -> None:
        """Read the statistics since the last call; on an accelerator this waits for the device."""
        recent, self._unread = self._unread, BatchStatistics()
        self.not_finite += recent.not_finite
        # Among several runs of which the best is released, none may end early by its examples.
        if self.plan.selection is None and recent.examples == recent.not_finite > 0:
            trouble.explain_not_finite(self.model, self.step, self.phases.at(self.step).rate)

    def accuracy(self, part: str, *, averaged: bool = True) -> float:
        """Accuracy on a part of the data, by default of averaged weights if there are any."""
        return self.evaluate(part, averaged=averaged)[0]

    def evaluate(self, part: str, *, averaged: bool = True) -> tuple[float, float]:
        """Accuracy and mean loss on a part of the data; test images use the test-time views.

        Args:
            part: `train`, `validation` or `test`.
            averaged: Use averaged weights, if there are any; else those of the last step.
        """
        with self.released_weights() if averaged else nullcontext():
            kind = self.recipe.training.test_views if part == "test" else "none"
            alone = part == "validation" or self.ranks.size == 1
            if part != "train" and kind == "none" and alone and self.features is not None:
                if part not in self._held:
                    self._held[part] = self.features.held_out(self._store(part))
                return evaluate_rows(self.features.end, *self._held[part])
            label = "test images" if part == "test" else ""
            store = self._store(part)
            return evaluate(self.model, store, test_views=kind, ranks=self.ranks, label=label)

    def released_weights(self) -> AbstractContextManager[None]:
        """Give the model the weights that are released within a `with` block."""
        return self.average.applied(self.model) if self.average is not None else nullcontext()

    def _validate(self) -> dict[str, float]:
        """Results on validation images, of averaged weights and of those of the last step."""
        # Equal on all ranks, which must stop together.
        accuracy, loss = self.ranks.from_leader(self.evaluate("validation"))
        self.watch.see(self.step, accuracy if self.watch.higher else loss)
        found = {"validation_accuracy": accuracy, "validation_loss": loss}
        if self.average is not None:
            found["validation_accuracy_last"] = self.accuracy("validation", averaged=False)
        return found

    def _log(self, recent: BatchStatistics, speed: float) -> None:
        """Keep the numbers that are shown; record those that `Recipe.exact_metrics` allows."""
        self._settle()
        record: dict[str, float | int] = {"step": self.step}
        if self.recipe.privacy.enabled:
            record["epsilon"] = self.epsilon_after(self.step)
        self._loss = self._accuracy = None
        counted = recent.examples - recent.not_finite
        if counted:
            self._loss, self._accuracy = recent.loss / counted, recent.correct / counted
        if counted and self.recipe.exact_metrics:
            record |= {"loss": recent.loss / counted, "train_accuracy": recent.correct / counted}
            record |= {"clipped": recent.clipped / counted, "not_finite": self.not_finite}
        if self.dataset.validation is not None:
            record |= self._validate()
            self._accuracy = record["validation_accuracy"]
        if self.private.clipping.state() or self.plan.clip_decay != 1 or self.phases.sets_clip:
            record["clip"] = self.private.clipping.sensitivity
        record["lr"] = float(self.optimizer.param_groups[0]["lr"])
        rate = self.phases.at(self.step).rate
        if not self._warned and (remark := trouble.about_loss(self._loss, rate)):
            self._warned = True
            self.reporter.say(remark)
        self._speed = speed
        if self.recipe.exact_metrics:
            record |= {"views_per_second": round(speed, 1), "seconds": round(self.seconds, 3)}
        self.metrics.add(record)

    _loss: float | None = None
    _accuracy: float | None = None
    _speed: float = 0.0
    _warned: bool = False

    def _show(self, seconds_left: float | None) -> None:
        now = self.step, self.plan.steps, self.epsilon_after(self.step)
        recent = self._loss, self._accuracy, self._speed
        self.reporter.show(Progress(*now, *recent, seconds_left))
