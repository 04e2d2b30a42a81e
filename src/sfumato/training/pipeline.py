"""A whole run: from a recipe to a folder with weights, ledger, statement and curves."""

from __future__ import annotations

import gc
import os
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from sfumato.data import Dataset
from sfumato.data.adapt import adapt
from sfumato.errors import UserError
from sfumato.io.atomic import write_whole
from sfumato.models import Code, Trust
from sfumato.privacy.accounting.exposure import steps_to_list
from sfumato.privacy.ledger import Ledger
from sfumato.privacy.numerics.randomness import SOURCE, Randomness
from sfumato.recipe import Recipe, differences, from_record, loads
from sfumato.text import GIVEN
from sfumato.training import checkpoint, devices, run_folder, setup, snapshots
from sfumato.training.classifier import weights_digest
from sfumato.training.initial import parameters, prior, start
from sfumato.training.interrupt import stop_on_signal
from sfumato.training.loop import Loop
from sfumato.training.metrics import Metrics
from sfumato.training.physical import ROWS, physical_batch
from sfumato.training.recipe_data import data_tag, dataset_of
from sfumato.training.release import release
from sfumato.training.reporter import Reporter, Silent

_NOT_COMPARED = ("kind", "previous", "noise", "initial")
"""Entries of the ledger's first line that do not follow from the recipe and the data."""


def train(
    recipe: Recipe,
    *,
    data: object = None,
    out: str | Path | None = None,
    root: str | Path | None = None,
    device: str = "auto",
    reporter: Reporter | None = None,
    trust_code: Iterable[Code] = (),
) -> Path:
    """Train a new model.

    Args:
        recipe: What to do.
        data: The data itself, if the recipe names none that can be read.
        out: The run folder to make; `runs/NAME-NNN` if None.
        root: First folder to search for data sets.
        device: `auto`, `cpu`, `cuda` or `mps`.
        reporter: Receives messages and progress.
        trust_code: Modules outside sfumato whose models the recipe, or the weights that it starts
            from, may name, or the model itself; no other code is imported, except installed timm
            and torchvision.

    Returns:
        The run folder.
    """
    reporter = reporter or Silent()
    trust = run_folder.trust(trust_code)
    if out is not None:
        run_folder.check_free(Path(out))
    where = devices.pick_device(device, recipe.training.precision)
    if prior.concerns(recipe):
        return prior.train(recipe, out=out, device=where, reporter=reporter, trust=trust)
    donor = start.open_donor(recipe, trust_code=trust.code)
    origin = donor.origin if donor else start.Origin()
    dataset = _load(recipe, data, origin, root, reporter)
    if donor and _grey_after_colour(recipe, donor, dataset):
        recipe = recipe.replace({"data.channels": donor.description.channels})
        dataset = origin.normalised(adapt(dataset, size=None, channels=recipe.data.channels))
        reporter.say("The images are grey, and are shown in three equal channels as the start is "
                     "for colour ones.")  # fmt: skip
    plan = setup.plan(recipe, len(dataset.train), before=origin.before)
    seed = recipe.training.seed
    randomness = Randomness.fresh() if seed is None else origin.seeded_randomness(seed)
    model = setup.build_model(recipe, dataset, randomness, donor, trust=trust)
    if donor:
        words = parameters.describe(model, donor, recipe.start, classes=len(dataset.classes))
        origin = replace(origin, words=words)
    remarks = setup.check_methods(recipe, plan, dataset, model)
    for remark in (*remarks, *parameters.remarks(recipe, origin, model)):
        reporter.say(remark)
    views = recipe.training.views + recipe.training.self_mix
    physical = recipe.training.physical_batch or physical_batch(
        model, plan.sampler, dataset, views, _memory(where),
        rows=ROWS if where.type == "cuda" else None,
    )  # fmt: skip
    folder = run_folder.new_run_folder(None if out is None else Path(out), recipe.name)
    with run_folder.explained(folder):
        if not randomness.seeded:
            write_whole(folder / run_folder.KEY, randomness.key, mode=0o600)
        write_whole(folder / run_folder.RECIPE, recipe.to_toml().encode())
        header = _header(recipe, plan, dataset, randomness, physical, origin)
        header |= {"noise": _noise_from(where)}
        if recipe.model.name.startswith(GIVEN):
            header |= {"initial": weights_digest(model)}
        loop: Loop | None = None
        with (
            Ledger.create(folder / run_folder.LEDGER, header) as ledger,
            run_folder.unless_refused(folder, lambda: ledger.steps > 0 or bool(loop and loop.step)),
        ):
            loop = Loop(
                recipe, plan, dataset, model, where, randomness, ledger,
                Metrics(folder / run_folder.METRICS, clock=recipe.exact_metrics),
                folder, physical, reporter,
            )  # fmt: skip
            return _go(loop)


def resume(
    folder: str | Path,
    *,
    data: object = None,
    changes: dict[str, Any] | None = None,
    root: str | Path | None = None,
    device: str = "auto",
    reporter: Reporter | None = None,
    trust_code: Iterable[Code] = (),
) -> Path:
    """Resume an interrupted run, with the same result as if it had not been interrupted.

    Guarantee: The recipe, the training data, sigma, C and the sampling rate must be those of the
    ledger's first line; whatever differs is named and the run refused. Steps are repeated only with
    the noise that they had, and files of the first attempt at them are removed. Nothing outside the
    run folder is written or deleted.

    Args:
        folder: The run.
        data: The run's images, if they were given in Python, or where they are now.
        changes: Settings to compare with the run's.
        root: Where to look for data sets first.
        device: Where to train.
        reporter: Told about progress.
        trust_code: Modules outside sfumato whose models the run may name, or the model itself; no
            other code is imported, and none from the run folder.

    Returns:
        The run folder.
    """
    reporter = reporter or Silent()
    folder = Path(folder)
    if not (folder / run_folder.LEDGER).is_file():
        raise UserError(f"{folder} is not a run folder: it has no {run_folder.LEDGER}.")
    run_folder.refuse_links(folder)
    with Ledger.open(folder / run_folder.LEDGER) as ledger:
        trust = run_folder.trust(trust_code, folder)
        return _resume(folder, ledger, data, changes or {}, root, device, reporter, trust)


def _resume(
    folder: Path,
    ledger: Ledger,
    data: object,
    changes: dict[str, Any],
    root: str | Path | None,
    device: str,
    reporter: Reporter,
    trust: Trust,
) -> Path:
    recipe = _same_recipe(folder, ledger, changes)
    where = devices.pick_device(device, recipe.training.precision)
    if run_folder.finished(folder):
        (folder / run_folder.KEY).unlink(missing_ok=True)
        raise UserError(
            f"{folder} is finished: there is nothing to resume. See "
            f"{folder / run_folder.STATEMENT}."
        )
    origin = start.Origin.of(ledger.header)
    randomness = _same_randomness(folder, recipe, origin)
    if prior.concerns(recipe):
        return prior.resume(
            folder, ledger, recipe, randomness, device=where, reporter=reporter, trust=trust
        )
    try:
        dataset = _load(recipe, data, origin, root, reporter)
        if data is not None:
            dataset = replace(dataset, name=start.known_as(recipe.data.name))
    except UserError as error:
        if recipe.data.name.startswith(GIVEN):
            raise
        raise UserError(
            f"{error} (The run was trained on '{recipe.data.name}'; --data says where it is now.)"
        ) from None
    plan = setup.plan(recipe, len(dataset.train), before=origin.before)
    physical = int(ledger.header.get("physical_batch", 0))
    expected = _header(recipe, plan, dataset, randomness, physical, origin)
    found = {k: v for k, v in ledger.header.items() if k not in _NOT_COMPARED}
    found["version"] = expected["version"]  # Runs of an older version go on in this one.
    # Settings that did not exist when the run began are filled in.
    found["recipe"] = recipe.to_dict()
    changed = differences(found, expected)
    if changed:
        raise UserError(
            f"{folder} cannot go on, because something is no longer what it was: "
            f"{'; '.join(_in_words(c) for c in changed)}."
        )
    state, damaged = checkpoint.latest(folder / run_folder.CHECKPOINTS)
    for path in damaged:
        at = f"step {state.step}" if state else "the start"
        reporter.say(f"Checkpoint {path.name} is damaged; going on from {at} instead.")
    _check_repeats(folder, ledger, state.step if state else 0, where)
    with run_folder.explained(folder):
        run_folder.sweep(folder)
        snapshots.forget(folder, after=state.step if state else 0)
        (folder / run_folder.CHECKPOINTS).mkdir(exist_ok=True)
        donor = None
        if state is None:
            donor = start.open_donor(recipe, unchanged=origin, trust_code=trust.code)
        model = setup.build_model(recipe, dataset, randomness, donor, trust=trust)
        if state is None and ledger.header.get("initial") not in (None, weights_digest(model)):
            raise UserError(
                f"The model given has other initial weights than {folder} began with, and no "
                "checkpoint was written yet. Give it as it was, or start a new run."
            )
        if state is not None:
            physical = int(state.number("physical_batch"))
        metrics = Metrics(
            folder / run_folder.METRICS, upto=state.step if state else 0, clock=recipe.exact_metrics
        )
        loop = Loop(
            recipe, plan, dataset, model, where, randomness, ledger,
            metrics, folder, physical, reporter,
        )  # fmt: skip
        if state is not None:
            with checkpoint.explained(state, folder):
                loop.restore(state)
        reporter.say(f"Going on with {folder} after step {loop.step} of {plan.steps}.")
        return _go(loop)


def _go(loop: Loop) -> Path:
    """Take the remaining steps, then release."""
    plan, recipe = loop.plan, loop.recipe
    if plan.steps < plan.asked:
        loop.reporter.say(
            f"The budget of epsilon {recipe.privacy.epsilon:g} ends after {plan.steps} of the "
            f"{plan.asked} steps asked for; the run stops there."
        )
    if loop.step == 0:
        loop.save()
        loop.keep_snapshot()
    with stop_on_signal() as stop:
        loop.run(stop)
    return release(loop)


def _header(
    recipe: Recipe,
    plan: setup.Plan,
    dataset: Dataset,
    randomness: Randomness,
    physical: int,
    origin: start.Origin,
) -> dict[str, Any]:
    """The first line of the ledger: the mechanism, its settings and its data."""
    return {
        "version": run_folder.VERSION,
        "mechanism": "Poisson-subsampled Gaussian" if recipe.privacy.enabled else "none",
        "relation": "add or remove one example",
        "examples": len(dataset.train),
        "rate": plan.sampler.rate,
        "sigma": plan.noise.multiplier,
        **({"sigmas": steps_to_list(plan.history(plan.steps))} if plan.schedule else {}),
        "clip": recipe.privacy.clip,
        "delta": recipe.privacy.delta,
        "budget": recipe.privacy.epsilon,
        "accountant": recipe.privacy.accountant,
        "steps": plan.steps,
        "data": data_tag(randomness.key, dataset),
        "physical_batch": physical,
        "recipe": recipe.to_dict(),
        **({"start": origin.to_dict()} if origin.weights else {}),
    }


def _noise_from(device: torch.device) -> dict[str, str]:
    """The device and versions that the noise depends on beside the key."""
    return {"source": SOURCE, "device": device.type, "torch": torch.__version__}


def _check_repeats(folder: Path, ledger: Ledger, done: int, device: torch.device) -> None:
    """Refuse to resume after step `done` if steps would be repeated with other noise.

    Two versions of a step with different noise reveal more than one, and the ledger counts one.
    """
    if done > ledger.steps:
        raise UserError(
            f"{folder / run_folder.LEDGER} ends at step {ledger.steps}, but the last checkpoint is "
            f"of step {done}: some of what was released is not accounted for. Put back the ledger "
            "that belongs to this checkpoint."
        )
    before = {**_noise_from(device), "source": None, **ledger.header.get("noise", {})}
    began, version = str(before["device"]), str(before["torch"])
    if began != device.type:
        raise UserError(
            f"{folder} began on {began} and cannot go on on {device.type}, where the "
            "same key gives other noise: a step that was taken there and is taken again here would "
            f"be released twice and counted once. Let it go on there with --device {began}."
        )
    if before["source"] != SOURCE and done < ledger.steps:
        raise UserError(
            f"{folder} began with a version of sfumato whose noise had another source: steps "
            f"{done + 1} to {ledger.steps} would be taken again with other noise, and be released "
            "twice but counted once. Go on with that version."
        )
    if version != torch.__version__ and done < ledger.steps:
        raise UserError(
            f"{folder} began with PyTorch {version}, and this is {torch.__version__}: "
            f"steps {done + 1} to {ledger.steps} would be taken again, perhaps with other noise, "
            "and be released twice but counted once. Go on with that version."
        )


def _in_words(change: str) -> str:
    if change.startswith("data was"):
        return "the training images or their labels are not the ones the run started with"
    return change


def _same_recipe(folder: Path, ledger: Ledger, changes: dict[str, Any]) -> Recipe:
    """The recipe that the ledger states, if the file and the command line agree with it."""
    stated = from_record(ledger.header.get("recipe", {}), where=run_folder.LEDGER)
    path, now = folder / run_folder.RECIPE, stated
    if path.exists():
        now = loads(path.read_text(encoding="utf-8"), where=str(path), record=True)
    changed = differences(stated.to_dict(), now.replace(changes).to_dict())
    if changed:
        raise UserError(
            f"{folder} cannot go on with another recipe: {'; '.join(changed)}. Start a new run to "
            "train with other settings."
        )
    return stated


def _same_randomness(folder: Path, recipe: Recipe, origin: start.Origin) -> Randomness:
    if recipe.training.seed is not None:
        return origin.seeded_randomness(recipe.training.seed)
    try:
        return Randomness((folder / run_folder.KEY).read_bytes(), False)
    except OSError as error:
        raise UserError(
            f"{folder / run_folder.KEY} cannot be read ({error.strerror}), and without it the run "
            "cannot go on: its last steps could not be repeated with the same noise."
        ) from None


def _load(
    recipe: Recipe,
    data: object,
    origin: start.Origin,
    root: str | Path | None,
    reporter: Reporter,
) -> Dataset:
    dataset = origin.normalised(dataset_of(recipe.data, given=data, root=root))
    for note in dataset.notes:
        reporter.say(note)
    if dataset.skipped:
        few = ", ".join(dataset.skipped[:5]) + (", ..." if len(dataset.skipped) > 5 else "")
        reporter.say(f"Skipped {len(dataset.skipped)} unreadable images: {few}")
    return dataset


def _grey_after_colour(recipe: Recipe, donor: start.Donor, dataset: Dataset) -> bool:
    """Tell whether images need the channels that transferred layers were trained with."""
    free = recipe.start.how == "transfer" and recipe.data.channels is None
    return free and (dataset.channels, donor.description.channels) == (1, 3)


def _memory(device: torch.device) -> int:
    """Bytes that a physical batch may take."""
    if device.type == "cuda":
        # Memory of an earlier run in the same process is no longer in use.
        gc.collect()
        torch.cuda.empty_cache()
        return int(torch.cuda.mem_get_info(device)[0] * 0.6)
    try:
        free = os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (ValueError, OSError, AttributeError):
        free = 1 << 32
    return min(free // 4, 1 << 30)
