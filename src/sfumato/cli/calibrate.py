"""`sfumato calibrate`: a temperature for a trained model, fitted on held-out images."""

from __future__ import annotations

import enum
import shlex
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from sfumato.cli.terminal import echo
from sfumato.cli.trust import TRUST_CODE
from sfumato.errors import UserError

if TYPE_CHECKING:
    from sfumato.data import Dataset, ImageSet


class Part(enum.StrEnum):
    """A part of the data to fit on."""

    validation = "validation"
    test = "test"
    all = "all"


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command()(calibrate)


def calibrate(
    run: Path = typer.Argument(..., metavar="RUN", help="A run folder or a weights file."),
    data: str | None = typer.Option(
        None, help="Data set, folder, table or .npz of images that were not trained on."
    ),
    on: Part | None = typer.Option(
        None, help="Part to fit on: validation of the run's own images, all of --data by default."
    ),
    remove: bool = typer.Option(False, "--remove", help="Remove the temperature that is kept."),
    data_root: Path | None = typer.Option(None, help="Where to look for data sets first."),
    device: str = typer.Option("auto", help="auto, cpu, cuda or mps."),
    skip_unreadable: bool = typer.Option(
        False, "--skip-unreadable", help="Go on without images that cannot be read."
    ),
    trust_code: list[str] = TRUST_CODE,
) -> None:
    """Fit a temperature on held-out images, and keep it with the weights.

    Logits are divided by it, so that probabilities are as certain as they are right; no predicted
    class changes. It is kept in temperature.json beside the weights, which stay as they are, and
    evaluate, predict, report, card and export use it from then on.
    """
    from sfumato.training import temperature as temperatures
    from sfumato.training.classifier import weights_path

    weights = weights_path(run)
    if remove:
        echo(f"Removed: {temperatures.remove(weights)}")
        return
    temperatures.check_free(weights)
    _check_other_images(run, data)

    import numpy as np

    from sfumato import analysis
    from sfumato.cli.run_images import images_for
    from sfumato.data.adapt import align_labels
    from sfumato.training.classifier import check_head, load
    from sfumato.training.devices import pick_device

    classifier = load(run, device=pick_device(device), trust_code=trust_code)
    check_head(run, classifier.description)
    dataset = images_for(run, classifier.description, data, data_root, skip_unreadable)
    parts, words = _chosen(run, dataset, on, own=data is None)
    labels = np.concatenate([part.labels for part in parts])
    found = analysis.keep_temperature(
        run,
        np.concatenate([analysis.logits(classifier, part) for part in parts]),
        align_labels(labels, dataset.classes, classifier.classes),
        fitted_on=words,
    )
    echo(f"temperature  {found.value:g}, fitted on {words}")
    for name, key, about in (
        ("NLL", "nll", "negative log-likelihood, nats"),
        ("ECE", "ece", "expected calibration error, 15 bins"),
        ("Brier", "brier", "Brier score, 0 is perfect, 2 the worst"),
    ):
        echo(f"{name:<11}  {found.before[key]:.4f} → {found.after[key]:.4f}   {about}")
    echo("These are scores on the images that it was fitted on; no predicted class changes.")
    echo(found.sentence)
    if on is Part.test and data is None:
        echo("On the test images, calibration will look a little better than it is.")
    echo(f"Written: {temperatures.place(weights)}")


def _check_other_images(run: Path, data: str | None) -> None:
    """Refuse a run's own data under another option, as training images would be among it."""
    from sfumato import recipes
    from sfumato.data.catalogue import canonical
    from sfumato.training.run_folder import RECIPE

    if data is None or not (run / RECIPE).is_file():
        return
    own = recipes.of_run(run).data.name
    names = {canonical(own) or str(Path(own).resolve())}
    if (canonical(data) or str(Path(data).resolve())) in names:
        raise UserError(
            f"--data {data} is what {run} was trained on, and a temperature fitted on training "
            "images would be a release outside its guarantee: leave --data out, or give others."
        )


def _chosen(
    run: Path, dataset: Dataset, on: Part | None, *, own: bool
) -> tuple[list[ImageSet], str]:
    """The parts to fit on, and what they are in words."""
    parts = dataset.parts()
    if own and on is Part.all:
        raise UserError(
            f"--on all has the training images of {run} among it, which its guarantee would not "
            "cover: choose validation or test."
        )
    if own and on is None and not len(parts.get("validation", ())):
        raise UserError(
            f"{run} held out no images for validation (data.validation). Give other images with "
            "--data, or fit on its test images with --on test: `sfumato calibrate "
            f"{shlex.quote(str(run))} --on test`."
        )
    part = on or (Part.validation if own else Part.all)
    if part is not Part.all and part.value not in parts:
        raise UserError(f"'{dataset.name}' has no {part.value} part: choose another with --on.")
    chosen = list(parts.values()) if part is Part.all else [parts[part.value]]
    count = sum(map(len, chosen))
    if not count:
        raise UserError(f"The {part.value} part of '{dataset.name}' is empty.")
    kind = "images" if part is Part.all else f"{part.value} images"
    return chosen, f"{count:,} {kind} of '{dataset.name}'"
