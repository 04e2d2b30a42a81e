"""A run folder opened for analysis: its network, its data, its mechanism, its snapshots.

A run that has not finished is opened at its newest checkpoint or snapshot, and says so.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from sfumato import models, recipes
from sfumato.analysis.image_source import images_of
from sfumato.analysis.inference import align_labels
from sfumato.data import Dataset, ImageSet
from sfumato.errors import CodeError, UserError
from sfumato.models import Trust
from sfumato.privacy import ledger
from sfumato.privacy.accounting.accountants import Step
from sfumato.privacy.clipping import ClippingRule, Unclipped
from sfumato.privacy.noise import GaussianNoise
from sfumato.privacy.sampling import PoissonSampler
from sfumato.recipe import Recipe
from sfumato.training import checkpoint, classifier, files, metrics, setup, snapshots
from sfumato.training.classifier import Classifier, Description
from sfumato.training.initial import parameters, start
from sfumato.training.run import data_tag


@dataclass(eq=False)
class OpenRun:
    """A run as analysis needs it.

    Attributes:
        folder: The run folder.
        recipe: Its recipe.
        network: The model with the weights analysed, frozen as in training, in eval mode.
        description: Classes, image shape and normalisation.
        dataset: The run's own data or what was given instead, labels as the model numbers them.
        weights: Which weights these are, in words.
        step: The step they are of, if known.
        snapshots: Steps and files.
        header: The ledger's first line, or nothing.
        events: The ledger's steps.
        notes: What a reader should know about the run or its data.
    """

    folder: Path
    recipe: Recipe
    network: nn.Module
    description: Description
    dataset: Dataset
    weights: str
    step: int | None
    snapshots: list[tuple[int, Path]]
    header: dict[str, Any]
    events: list[Step]
    notes: list[str] = field(default_factory=list)

    @property
    def device(self) -> torch.device:
        """Where the network is."""
        return next(self.network.parameters()).device

    def part(self, name: str | None) -> tuple[str, ImageSet]:
        """A part of the data by name, or the held-out part: validation if there is one, else test.

        Raises:
            UserError: If there is no such part, or it is empty.
        """
        parts = self.dataset.parts()
        if name is None:
            name = "validation" if len(parts.get("validation", ())) else "test"
        if name not in parts:
            raise UserError(
                f"{self.folder} has no validation images, as its recipe held none out "
                "(data.validation): choose --on test."
            )
        if not len(parts[name]):
            raise UserError(f"The {name} part of '{self.dataset.name}' holds no images.")
        return name, parts[name]

    def images(self, part: ImageSet, count: int | None, *, seed: int = 0) -> tuple[Tensor, Tensor]:
        """So many images drawn at random, normalised, and labels; all of them in order if None."""
        index = np.arange(len(part))
        if count is not None and count < len(part):
            order = np.random.default_rng(seed).permutation(len(part))
            index = np.sort(order[:count])
        chosen = part.take(index)
        d = self.description
        x = classifier.normalise(torch.from_numpy(chosen.images), d.mean, d.std)
        return x.to(self.device), torch.from_numpy(chosen.labels).to(self.device)

    @contextmanager
    def at(self, path: Path) -> Iterator[nn.Module]:
        """The network with the weights of a snapshot for a while."""
        own = {name: t.detach().clone() for name, t in self.network.state_dict().items()}
        try:
            self.network.load_state_dict(snapshots.tensors(path))
        except RuntimeError as error:
            self.network.load_state_dict(own)
            raise UserError(f"The snapshot {path} does not fit the run's model: {error}") from None
        try:
            yield self.network
        finally:
            self.network.load_state_dict(own)

    def mechanism(self, step: int | None) -> tuple[ClippingRule, float, float]:
        """The clipping rule, the noise multiplier and the expected batch of the step after `step`.

        A rule that adapts is given the C that metrics.jsonl logged last before.
        """
        p, t = self.recipe.privacy, self.recipe.training
        examples = int(self.header.get("examples", len(self.dataset.train)))
        batch = float(self.header["rate"]) * examples if self.header else None
        if batch is None:
            batch = float(setup.expected_batch(t, examples))
        if not p.enabled:
            return Unclipped(), 0.0, batch
        if not self.header:
            plan = setup.plan(self.recipe, examples)
            return plan.clipping, plan.noise.multiplier, plan.sampler.batch
        steps = int(self.header["steps"])
        number = min(steps, (steps if step is None else step) + 1)
        sigma = float(self.header["sigma"])
        if self.events:
            sigma = self.events[min(number, len(self.events)) - 1].noise_multiplier
        sigmas = [sigma, float(self.header["sigma"]), *(e.noise_multiplier for e in self.events)]
        rule = setup.clipping_rule(p, batch, max(sigmas))
        asked = setup.asked_steps(t, examples, batch)
        plan = setup.Plan(
            PoissonSampler(examples, batch), rule, GaussianNoise(sigma), steps, asked,
            clip_decay=p.clip_decay,
        )  # fmt: skip
        return self._adapted(plan.clipping_at(number, rule), number - 1), sigma, batch

    def _adapted(self, rule: ClippingRule, step: int) -> ClippingRule:
        logged = [r for r in metrics.read(self.folder / files.METRICS) if "clip" in r]
        logged = [r for r in logged if r["step"] <= step]
        if not self.recipe.privacy.clipping.startswith("adaptive") or not logged:
            return rule
        return replace(rule, clip=float(logged[-1]["clip"]))  # type: ignore[type-var]


def open_run(
    folder: str | Path,
    *,
    data: str | None = None,
    root: str | Path | None = None,
    device: str | torch.device = "cpu",
    trust_code: Iterable[str] = (),
) -> OpenRun:
    """Open a run folder, finished or not, with its data.

    Args:
        folder: The run folder.
        data: A data set, folder or .npz with the model's classes, instead of the run's own.
        root: Where to look for data sets first.
        device: Where to put the network.
        trust_code: Modules outside sfumato whose models the run may name; no other code is
            imported, and none from the run folder.

    Raises:
        UserError: If it is no run folder, has no weights yet, or its data is not what it was.
    """
    folder = Path(folder)
    recipe = _recipe(folder)
    header, events = _ledger(folder)
    notes: list[str] = []
    trust = files.trust(trust_code, folder)
    final = _final(folder, trust, notes)
    shape = None
    if final is not None:
        shape = final.description.channels, *final.description.size
    try:
        dataset = images_of(recipe, data=data, root=root, shape=shape)
    except UserError as error:
        raise UserError(f"The data of {folder} cannot be read: {error}") from None
    dataset = start.Origin.of(header).normalised(dataset)
    network, description, weights, step = _network(folder, recipe, dataset, final, trust, notes)
    network.to(device).eval()
    parameters.freeze(network, recipe.start)
    taken = description.channels, *description.size
    if (dataset.channels, *dataset.size) != taken:
        raise UserError(
            f"{folder} was trained on images of {'x'.join(map(str, taken))} (channels, height, "
            f"width), but '{dataset.name}' now has "
            f"{'x'.join(map(str, (dataset.channels, *dataset.size)))}: it is not the run's data."
        )
    notes += _changed(folder, recipe, header, dataset)
    return OpenRun(
        folder, recipe, network, description, _aligned(dataset, description), weights, step,
        snapshots.read(folder), header, events, notes,
    )  # fmt: skip


def _recipe(folder: Path) -> Recipe:
    if not folder.exists():
        raise UserError(f"There is no run folder {folder}.")
    if folder.is_file() and (folder.parent / files.RECIPE).is_file():
        raise UserError(f"{folder} is a file of a run: give its folder, {folder.parent}.")
    if not folder.is_dir() or not (folder / files.RECIPE).is_file():
        raise UserError(
            f"{folder} is not a run folder: it has no {files.RECIPE}. `sfumato train` makes one."
        )
    return recipes.of_run(folder)


def _ledger(folder: Path) -> tuple[dict[str, Any], list[Step]]:
    path = folder / files.LEDGER
    needs = ("examples", "rate", "sigma", "steps", "data")
    return ledger.read(path, needs=needs) if path.is_file() else ({}, [])


def _final(folder: Path, trust: Trust, notes: list[str]) -> Classifier | None:
    if (folder / files.WEIGHTS).is_file():
        try:
            return classifier.load(folder, trust_code=trust.names)
        except CodeError:
            raise
        except UserError as error:
            notes.append(f"The final weights of {folder} are left out: {error}")
    return None


def _network(
    folder: Path,
    recipe: Recipe,
    dataset: Dataset,
    final: Classifier | None,
    trust: Trust,
    notes: list[str],
) -> tuple[nn.Module, Description, str, int | None]:
    """The final weights, or the newest that there are."""
    if final is not None:
        records = [r for r in metrics.read(folder / files.METRICS) if r.get("final")]
        step = int(records[-1]["step"]) if records else None
        return final.network, final.description, "final weights", step
    state, damaged = checkpoint.latest(folder / files.CHECKPOINTS)
    notes += [f"Checkpoint {path} is damaged and was passed over." for path in damaged]
    kept = snapshots.read(folder)
    if state is not None and (not kept or kept[-1][0] <= state.step):
        tensors, step, what = state.part("model"), state.step, "checkpoint"
        tensors |= state.part("average")
    elif kept:
        tensors, step, what = snapshots.tensors(kept[-1][1]), kept[-1][0], "snapshot"
    else:
        raise UserError(
            f"{folder} has no weights yet: neither {files.WEIGHTS} nor a checkpoint or snapshot "
            "that can be read."
        )
    m = recipe.model
    network = models.create_trusted(
        m.name, m.options, classes=len(dataset.classes), channels=dataset.channels,
        size=dataset.size, trust=trust,
    )  # fmt: skip
    try:
        network.load_state_dict(tensors)
    except RuntimeError as error:
        raise UserError(f"The {what} of {folder} does not fit '{m.name}': {error}") from None
    d = dataset
    description = Description(
        m.name, dict(m.options), d.classes, d.channels, d.size, d.mean, d.std,
        {"private": recipe.privacy.enabled},
    )  # fmt: skip
    weights = f"{what} of step {step}"
    notes.append(f"{folder} has not finished: these are the numbers of its {weights}.")
    return network, description, weights, step


def _changed(folder: Path, recipe: Recipe, header: dict[str, Any], dataset: Dataset) -> list[str]:
    """Whether the training images are those of the ledger, as far as it can still be told."""
    if not header:
        return []
    same = int(header["examples"]) == len(dataset.train)
    seed, key = recipe.training.seed, folder / files.KEY
    if same and (seed is not None or key.is_file()):
        if seed is None:
            own = key.read_bytes()
        else:
            own = start.Origin.of(header).seeded_randomness(seed).key
        same = data_tag(own, dataset) == header["data"]
    if same:
        return []
    return [
        f"The data of {folder} has changed since training ({header['examples']} training images "
        f"then, {len(dataset.train)} now): images held out today may have been trained on."
    ]


def _aligned(dataset: Dataset, description: Description) -> Dataset:
    """The data with labels as the model numbers its classes."""
    if dataset.classes == description.classes:
        return dataset

    def renumbered(part: ImageSet) -> ImageSet:
        labels = align_labels(part.labels, dataset.classes, description.classes)
        return ImageSet(part.images, labels)

    return replace(
        dataset,
        classes=description.classes,
        train=renumbered(dataset.train),
        test=renumbered(dataset.test),
        validation=None if dataset.validation is None else renumbered(dataset.validation),
    )


def same_data(runs: list[OpenRun]) -> None:
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


def _identity(run: OpenRun) -> dict[str, Any]:
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
