"""`sfumato train`: one command from images and a budget to a private model."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from sfumato.cli import clock
from sfumato.cli.interruption import interruptible
from sfumato.cli.models import BATCHNORM_TO
from sfumato.cli.processes import GPUS, restarted, together
from sfumato.cli.trust import TRUST_CODE, again
from sfumato.cli.trust import named as named_code
from sfumato.cli.unit_options import COLUMNS, UNIT, UNIT_PATTERN, columns_of
from sfumato.errors import UserError
from sfumato.interrupted_import import loading
from sfumato.text import QUICK, QUICK_GREY
from sfumato.training import run_folder

if TYPE_CHECKING:
    from sfumato.run import Run
    from sfumato.training.reporter import Reporter

OPTIONS = {
    "data.name": "--data",
    "data.size": "--size",
    "data.unit": "--unit",
    "data.unit_pattern": "--unit-pattern",
    "data.columns": "--columns",
    "model.name": "--model",
    "model.batchnorm_to": "--batchnorm-to",
    "privacy.epsilon": "--epsilon",
    "privacy.delta": "--delta",
    "privacy.enabled": "--no-privacy",
    "start.source": "--start",
    "start.train": "--train-only",
    "training.seed": "--seed",
    "training.physical_batch": "--physical-batch",
    "training.precision": "--precision",
}
"""The options that stand for a setting."""


_FROM_RUN = (
    "--resume RUN takes the recipe and the folder from the run: leave them away. (--data says "
    "where its images are now.)"
)


def typed(settings: Iterable[str]) -> dict[str, str]:
    """The option that stands for each of some settings, as far as there is one."""
    return {key: OPTIONS[key] for key in settings if key in OPTIONS}


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command()(train)


def train(
    recipe: str = typer.Argument(
        None,
        help="A packaged recipe, a recipe file, a folder of images, a table, shards or an .npz.",
    ),
    data: str = typer.Option(None, help="Data set, folder, table or .npz, not the recipe's."),
    size: int = typer.Option(None, help="Side to which images are scaled; see README."),
    unit: str = UNIT,
    unit_pattern: str = UNIT_PATTERN,
    columns: str = COLUMNS,
    model: str = typer.Option(None, help="Model, instead of the recipe's; also timm:NAME."),
    batchnorm_to: str = BATCHNORM_TO,
    epsilon: float = typer.Option(None, help="Privacy budget."),
    delta: float = typer.Option(None, help="Less than 1 / number of training images."),
    no_privacy: bool = typer.Option(False, "--no-privacy", help="Train without any privacy."),
    start: str = typer.Option(
        None,
        metavar="RUN",
        help="Run folder, weights file or packaged start; the head is drawn anew.",
    ),
    train_only: list[str] = typer.Option(
        [], metavar="PATTERN", help="Layers to train, such as head; the rest is frozen."
    ),
    seed: int = typer.Option(None, help="Makes the run repeatable, noise and all."),
    set_: list[str] = typer.Option(
        [], "--set", metavar="SECTION.NAME=VALUE", help="Change any setting of the recipe."
    ),
    out: Path = typer.Option(
        None, "--out", "-o", help="Run folder to make; runs/NAME-NNN if not given."
    ),
    resume: Path = typer.Option(None, help="Go on with an interrupted run."),
    device: str = typer.Option("auto", help="auto, cpu, cuda or mps."),
    data_root: Path = typer.Option(None, help="Where to look for data sets first."),
    precision: str = typer.Option(None, help="float32, or bfloat16 on a CUDA device."),
    physical_batch: int = typer.Option(None, help="Examples processed at once."),
    skip_unreadable: bool = typer.Option(
        False, "--skip-unreadable", help="Go on without images that cannot be read."
    ),
    tensorboard: bool = typer.Option(
        False, "--tensorboard", help="Stream the metrics to RUN/tensorboard as well."
    ),
    trust_code: list[str] = TRUST_CODE,
    gpus: str = GPUS,
) -> None:
    """Train an image classifier with differential privacy.

    Without arguments: a small network on 8x8 images of digits at epsilon 3, in seconds.
    """
    named = {
        "data.name": data,
        "data.size": size,
        "data.unit": unit,
        "data.unit_pattern": unit_pattern,
        "data.columns": columns_of(columns),
        "model.name": model,
        "model.batchnorm_to": batchnorm_to,
        "privacy.epsilon": epsilon,
        "privacy.delta": delta,
        "privacy.enabled": False if no_privacy else None,
        "start.source": start,
        "start.train": train_only or None,
        "training.seed": seed,
        "training.physical_batch": physical_batch,
        "training.precision": precision,
        "data.skip_unreadable": True if skip_unreadable else None,
    }
    given = {key: value for key, value in named.items() if value is not None}
    options: Any = {"root": data_root, "device": device}
    with together(gpus, device), _streamed(tensorboard):
        _train(recipe, given, set_, out, resume, trust_code, options)


def _train(
    recipe: str | None,
    given: dict[str, Any],
    set_: list[str],
    out: Path | None,
    resume: Path | None,
    trust_code: list[str],
    options: Any,
) -> None:
    """Train or resume as the options say, on this rank.

    Args:
        recipe: The argument.
        given: Settings that options stand for.
        set_: Other settings as text.
        out: The folder to make.
        resume: The run to resume.
        trust_code: Code that the user trusts.
        options: Arguments of `sfumato.train` and `sfumato.resume`.
    """
    from sfumato.recipe import parse_setting
    from sfumato.recipes.choice import choose, quick_choice

    changes = dict(parse_setting(text) for text in set_) | given
    if resume is not None and (recipe is not None or out is not None):
        raise UserError(_FROM_RUN)
    chosen, quick = None, None
    if resume is None:
        asked = recipe, given.get("data.name"), changes
        chosen = choose(*asked, options=typed(given))
        quick = quick_choice(*asked, options=typed(given))
    with loading("loading PyTorch"):
        from sfumato import api
        from sfumato.training import pipeline as pipeline
    trusted = named_code(trust_code, changes)
    if resume is None and (resume := restarted(out)) is not None:
        chosen = None
    elif out is not None:
        run_folder.check_free(out)

    def go(reporter: Reporter) -> Run:
        if resume is not None:
            moved = changes.pop("data.name", None)
            return api.resume(
                resume,
                data=moved,
                changes=changes,
                reporter=reporter,
                trust_code=trusted,
                **options,
            )
        assert chosen is not None
        return api.train_chosen(
            chosen, quick=quick, out=out, reporter=reporter, trust_code=trusted, **options
        )

    name, instead = chosen.name if chosen else "", (QUICK, QUICK_GREY) if quick else ()
    watch(go, name=name, instead=instead, out=out, resumed=resume, trusted=trusted)


def _streamed(wanted: bool) -> AbstractContextManager[None]:
    if not wanted:
        return nullcontext()
    from sfumato.training.tensorboard import streaming

    return streaming()


def watch(
    go: Callable[[Reporter], Run],
    *,
    name: str,
    instead: Sequence[str] = (),
    out: Path | None = None,
    resumed: Path | None = None,
    trusted: Sequence[str] = (),
) -> None:
    """Run a training under the eyes of the user, and say how it ended.

    Args:
        go: The training.
        name: The recipe's name.
        instead: Names of recipes that may be taken instead.
        out: The folder asked for, if any.
        resumed: The run that goes on, if it is not a new one.
        trusted: Code that this command line names, which going on needs again.
    """
    code = again(trusted)
    with interruptible((name, *instead), out, resumed, code):
        from sfumato.cli.training_progress import console, watched
        from sfumato.distributed.ranks import Ranks
        from sfumato.training.loop import Stopped

        with watched() as reporter:
            try:
                run = go(reporter)
            except Stopped as stopped:
                console.print(
                    f"Stopped after step {stopped.step}; everything is saved. Go on with:\n"
                    f"  sfumato train --resume {shlex.quote(str(stopped.folder))}{code}",
                    soft_wrap=True,
                )
                raise typer.Exit(128 + stopped.signal) from None
        if Ranks.current().leader:
            _say_result(run, clock.seconds())


def _say_result(run: Run, seconds: float) -> None:
    from rich.text import Text

    from sfumato.cli.training_progress import console
    from sfumato.privacy.statement import downwards, upwards

    g = run.guarantee
    for problem in run.problems:
        console.print(f"Note: {problem}", soft_wrap=True)
    if g is None:
        spent = "cannot be established, for the reason above"
    elif g.private:
        also = [
            f"; {upwards(value, places=3)} by {name.upper()}"
            for name, value in g.epsilon.items()
            if name != g.accountant
        ]
        spent = (
            f"epsilon {upwards(g.spent, places=3)} at delta {g.delta:g} "
            f"({g.accountant.upper()}{''.join(also)})"
        )
    elif run.drawn:
        spent = "nothing to protect: every image was drawn by the program"
    else:
        spent = "none: this model is not private"
    for name, accuracy in (
        ("views matched " if run.drawn else "test accuracy ", run.accuracy),
        ("held out      ", run.validation_accuracy),
    ):
        if accuracy is not None:
            console.print(Text.assemble(f"{name} ", (f"{100 * accuracy:.2f} %", "bold")))
    console.print(f"privacy        {spent}", soft_wrap=True)
    if g is not None and g.audit is not None:
        bound, sure = downwards(g.audit.epsilon), 100 * g.audit.confidence
        found = f"epsilon at least {bound} ({sure:g} % confidence, {g.audit.canaries} canaries)"
        console.print(f"audit          {found}", soft_wrap=True)
    console.print(f"time           {seconds:.1f} s, {run.steps} steps")
    console.print(f"files          {run.folder}", soft_wrap=True)
