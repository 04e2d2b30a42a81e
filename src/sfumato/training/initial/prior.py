"""Initial weights without data: a network trained by contrast on drawn images.

The images are those of `sfumato.data.drawn`. Two views of an image are to be more alike than
views of others. The features learned so serve real images too, and private training that starts
from them spends less of its budget on learning edges and surfaces.

*Guarantee:* Nothing here depends on an image that was not drawn by the program, so a run that
starts from the result spends nothing for it.
"""

from __future__ import annotations

from pathlib import Path

import torch

from sfumato import version
from sfumato.charts import curves
from sfumato.data import drawn
from sfumato.data.catalogue import DRAWN, check_channels
from sfumato.errors import UserError
from sfumato.io.atomic import write_whole
from sfumato.models import Trust
from sfumato.privacy.accounting.exposure import Exposure
from sfumato.privacy.ledger import Ledger
from sfumato.privacy.numerics.randomness import Randomness
from sfumato.recipe import Recipe
from sfumato.text import words_in_markdown
from sfumato.training import checkpoint, run_folder
from sfumato.training.classifier import Description, save_weights
from sfumato.training.initial.prior_loop import CLASSES, Prior
from sfumato.training.interrupt import stop_on_signal
from sfumato.training.reporter import Reporter

_KNOWN = (
    "name", "about", "data.name", "data.size", "data.channels", "data.public", "model.",
    "privacy.enabled", "optimizer.", "training.batch", "training.steps", "training.epochs",
    "training.seed", "training.precision", "training.average", "training.average_kind",
    "training.log_every", "training.checkpoint_every",
)  # fmt: skip
"""Settings that apply here."""


def concerns(recipe: Recipe) -> bool:
    """Tell whether a recipe's images are drawn by the program."""
    return recipe.data.name in DRAWN


def train(
    recipe: Recipe,
    *,
    out: str | Path | None,
    device: torch.device,
    reporter: Reporter,
    trust: Trust,
) -> Path:
    """Train new initial weights.

    Args:
        recipe: The recipe.
        out: The run folder to make; `runs/NAME-NNN` if None.
        device: The device to train on.
        reporter: Receives messages and progress.
        trust: The code outside sfumato that the recipe may name.
    """
    _check(recipe)
    seed = recipe.training.seed
    randomness = Randomness.fresh() if seed is None else Randomness.from_seed(seed)
    prior = Prior(recipe, randomness, device, reporter, trust)
    folder = run_folder.new_run_folder(None if out is None else Path(out), recipe.name)
    with run_folder.explained(folder):
        if not randomness.seeded:
            write_whole(folder / run_folder.KEY, randomness.key, mode=0o600)
        write_whole(folder / run_folder.RECIPE, recipe.to_toml().encode())
        with Ledger.create(folder / run_folder.LEDGER, prior.header()) as ledger:
            prior.open(folder)
            prior.save()
            return _go(prior, ledger)


def resume(
    folder: Path,
    ledger: Ledger,
    recipe: Recipe,
    randomness: Randomness,
    *,
    device: torch.device,
    reporter: Reporter,
    trust: Trust,
) -> Path:
    """Resume an interrupted run."""
    state, damaged = checkpoint.latest(folder / run_folder.CHECKPOINTS)
    for path in damaged:
        reporter.say(f"Checkpoint {path.name} is damaged; an earlier one is used instead.")
    prior = Prior(recipe, randomness, device, reporter, trust)
    prior.count, prior.steps = int(ledger.header["examples"]), int(ledger.header["steps"])
    with run_folder.explained(folder):
        run_folder.sweep(folder)
        (folder / run_folder.CHECKPOINTS).mkdir(exist_ok=True)
        prior.open(folder, upto=state.step if state else 0)
        if state is not None:
            with checkpoint.explained(state, folder):
                prior.restore(state)
        reporter.say(f"Going on with {folder} after step {prior.step} of {prior.steps}.")
        return _go(prior, ledger)


def _check(recipe: Recipe) -> None:
    if recipe.privacy.enabled:
        raise UserError(
            f"The images of '{recipe.data.name}' are drawn by the program, so there is nobody to "
            f"protect: train on them with `sfumato pretrain --data {recipe.data.name}`, and on "
            "your images with `sfumato train --start RUN`."
        )
    unknown = [
        name for name in recipe.changed() if not any(_means(known, name) for known in _KNOWN)
    ]
    if unknown:
        raise UserError(
            f"Training on '{recipe.data.name}' has no use for {', '.join(sorted(unknown))}: leave "
            "it out."
        )
    check_channels(recipe.data.channels)
    if (recipe.training.batch or 2) < 2:
        raise UserError("training.batch must be at least 2 here: views are compared with others'.")


def _means(known: str, name: str) -> bool:
    return name.startswith(known) if known.endswith(".") else name == known


def _go(prior: Prior, ledger: Ledger) -> Path:
    """Take the remaining steps, then release."""
    with stop_on_signal() as stop:
        prior.run(stop)
    ledger.sync()
    folder, accuracy, seconds = prior.folder, prior.accuracy(), prior.metrics.seconds
    final = {"final": True, "step": prior.step, "test_accuracy": accuracy, "seconds": seconds}
    prior.metrics.add(final)
    title = f"{prior.recipe.model.name} on {prior.recipe.data.name}"
    curves.draw(
        prior.metrics.records, folder / run_folder.CURVES, title=title, ended="views of new images"
    )
    with prior.whole() as model:
        save_weights(folder / run_folder.WEIGHTS, model, _description(prior))
    write_whole(folder / run_folder.STATEMENT, _statement(prior, accuracy).encode())
    (folder / run_folder.KEY).unlink(missing_ok=True)
    return folder


def _description(prior: Prior) -> Description:
    seen = Exposure(prior.recipe.data.name, public=True, drawn=True)
    model, channels = prior.recipe.model, prior.channels
    return Description(
        model=model.name,
        options=dict(model.options),
        classes=CLASSES,
        channels=channels,
        size=prior.size,
        mean=(drawn.MEAN,) * channels,
        std=(drawn.STD,) * channels,
        guarantee={"private": False, "exposures": [seen.to_dict()]},
        batchnorm_to=model.batchnorm_to,
    )


def _statement(prior: Prior, accuracy: float) -> str:
    return f"""# Privacy statement

**There is nothing to protect.** This model was trained on images that the program drew at random,
and on nothing else: no image of any data set, person or place. What starts from it depends on no
data through it.

- network: {words_in_markdown(prior.recipe.model.name)}
- images: {prior.count:,} of '{prior.recipe.data.name}', {prior.side}×{prior.side} pixels
- training: {prior.steps:,} steps, each with two views of {prior.batch:,} images
- result: among {2 * prior.batch - 1:,} others the right view is found for {100 * accuracy:.1f} % of
  the views of images that were not trained on

Its head is not trained: go on with `sfumato train --start` and this folder.

sfumato {version.of()}
"""
