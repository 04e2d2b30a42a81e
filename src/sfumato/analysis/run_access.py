"""The images, snapshots and mechanism of a run, as its analyses need them."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from sfumato.data import ImageSet
from sfumato.errors import UserError
from sfumato.privacy import ledger
from sfumato.privacy.clipping import ClippingRule, Unclipped
from sfumato.privacy.noise import GaussianNoise
from sfumato.privacy.sampling import PoissonSampler
from sfumato.run import Run
from sfumato.training import classifier, phases, run_folder, setup, snapshots


def part_of(run: Run, name: str | None) -> tuple[str, ImageSet]:
    """A part of the data by name, or the held-out part: validation if there is one, else test.

    Raises:
        UserError: If there is no such part, or it is empty.
    """
    parts = run.dataset.parts()
    if name is None:
        name = "validation" if len(parts.get("validation", ())) else "test"
    if name not in parts:
        raise UserError(
            f"{run.folder} has no validation images, as its recipe held none out "
            "(data.validation): choose --on test."
        )
    if not len(parts[name]):
        raise UserError(f"The {name} part of '{run.dataset.name}' holds no images.")
    return name, parts[name]


def draw_images(
    run: Run, part: ImageSet, count: int | None, *, seed: int = 0
) -> tuple[Tensor, Tensor]:
    """Images drawn at random, normalised, with their labels; all in order if `count` is None."""
    index = np.arange(len(part))
    if count is not None and count < len(part):
        order = np.random.default_rng(seed).permutation(len(part))
        index = np.sort(order[:count])
    chosen = part.take(index)
    d = run.description
    x = classifier.normalise(torch.from_numpy(chosen.images), d.mean, d.std)
    return x.to(run.device), torch.from_numpy(chosen.labels).to(run.device)


@contextmanager
def at_snapshot(run: Run, path: Path) -> Iterator[nn.Module]:
    """The network with the weights of a snapshot for a while."""
    own = {name: t.detach().clone() for name, t in run.network.state_dict().items()}
    try:
        run.network.load_state_dict(snapshots.tensors(path))
    except RuntimeError as error:
        run.network.load_state_dict(own)
        raise UserError(f"The snapshot {path} does not fit the run's model: {error}") from None
    try:
        yield run.network
    finally:
        run.network.load_state_dict(own)


@contextmanager
def next_phase(run: Run, step: int | None) -> Iterator[None]:
    """Freeze what the step after `step` does not train, for a while."""
    planned = run.planned or setup.plan(run.recipe, run.dataset.train.examples).steps
    found = phases.Phases(run.recipe, run.network, planned)
    found.enter(min(planned, (planned if step is None else step) + 1))
    try:
        yield
    finally:
        found.leave()


def mechanism(run: Run, step: int | None) -> tuple[ClippingRule, float, float]:
    """The clipping rule, the noise multiplier and the expected batch of the step after `step`.

    A rule that adapts is given the C that metrics.jsonl logged last before.
    """
    p, t = run.recipe.privacy, run.recipe.training
    path = run.folder / run_folder.LEDGER
    needs = ("examples", "rate", "sigma", "steps")
    header, events = ledger.read(path, needs=needs) if path.is_file() else ({}, [])
    examples = int(header.get("examples", len(run.dataset.train)))
    batch = float(setup.expected_batch(t, examples))
    if header:
        batch = float(header["rate"]) * examples
    if not p.enabled:
        return Unclipped(), 0.0, batch
    if not header:
        plan = setup.plan(run.recipe, examples)
        return plan.clipping, plan.noise.multiplier, plan.sampler.batch
    steps = int(header["steps"])
    number = min(steps, (steps if step is None else step) + 1)
    sigma = float(header["sigma"])
    sigmas = [sigma, *(event.noise_multiplier for event in events)]
    if events:
        sigma = events[min(number, len(events)) - 1].noise_multiplier
    rule = setup.clipping_rule(p, batch, max(sigmas))
    asked = setup.asked_steps(t, examples, batch)
    plan = setup.Plan(
        PoissonSampler(examples, batch), rule, GaussianNoise(sigma), steps, asked,
        clip_decay=p.clip_decay,
    )  # fmt: skip
    phase = phases.Phases(run.recipe, run.network, steps).at(number)
    return _adapted(run, plan.clipping_at(number, rule, phase.clip), number - 1), sigma, batch


def _adapted(run: Run, rule: ClippingRule, step: int) -> ClippingRule:
    logged = [r for r in run.metrics if "clip" in r]
    logged = [r for r in logged if r["step"] <= step]
    if not run.recipe.privacy.clipping.startswith("adaptive") or not logged:
        return rule
    return replace(rule, clip=float(logged[-1]["clip"]))  # type: ignore[type-var]


def same_data(runs: list[Run]) -> None:
    """Refuse to set runs side by side whose numbers are about different images.

    Raises:
        UserError: If two runs differ in data, split or image shape.
    """
    for run in runs[1:]:
        a, b = _identity(runs[0]), _identity(run)
        wrong = [f"{key} is {a[key]!r} and {b[key]!r}" for key in a if a[key] != b[key]]
        if wrong:
            raise UserError(
                f"{runs[0].folder} and {run.folder} are runs on different data ({'; '.join(wrong)})"
                ": their numbers cannot stand side by side. Analyse them one at a time."
            )


def _identity(run: Run) -> dict[str, Any]:
    d = run.dataset
    held_out = hashlib.sha256()
    for name, part in d.parts().items():
        if name != "train":
            held_out.update(part.labels.tobytes())
    return {
        "the data": d.name,
        "the image shape": (d.channels, *d.size),
        "the classes": d.classes,
        "the number of training images": len(d.train),
        "the split seed": run.recipe.data.split_seed,
        "the held-out labels": held_out.hexdigest()[:8],
    }
