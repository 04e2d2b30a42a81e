"""`sfumato pretrain`: ordinary training on public images, to start private runs from."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import typer

from sfumato.cli.train import typed, watch
from sfumato.cli.trust import TRUST_CODE
from sfumato.cli.trust import named as named_code
from sfumato.errors import UserError
from sfumato.interrupted_import import loading
from sfumato.training import run_folder

if TYPE_CHECKING:
    from sfumato.run import Run
    from sfumato.training.reporter import Reporter


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command()(pretrain)


def pretrain(
    recipe: str = typer.Argument(
        None, help="A packaged recipe, a recipe file, a folder of images, tar shards or an .npz."
    ),
    data: str = typer.Option(None, help="Public data set, folder or .npz."),
    classes: str = typer.Option(
        None,
        help="Random classes only: min-rand-10, half-rand-50, max-100, rand-N or rand-N/GROUPS.",
    ),
    size: int = typer.Option(None, help="Side to which images are scaled; see README."),
    model: str = typer.Option(None, help="Model, instead of the recipe's; also timm:NAME."),
    start: str = typer.Option(
        None, metavar="RUN", help="Run folder or weights file to start from, its head drawn anew."
    ),
    seed: int = typer.Option(None, help="Makes the run repeatable."),
    set_: list[str] = typer.Option(
        [], "--set", metavar="SECTION.NAME=VALUE", help="Change any setting of the recipe."
    ),
    out: Path = typer.Option(
        None, "--out", "-o", help="Run folder to make; runs/NAME-NNN if not given."
    ),
    device: str = typer.Option("auto", help="auto, cpu, cuda or mps."),
    data_root: Path = typer.Option(None, help="Where to look for data sets first."),
    physical_batch: int = typer.Option(None, help="Examples processed at once."),
    skip_unreadable: bool = typer.Option(
        False, "--skip-unreadable", help="Go on without images that cannot be read."
    ),
    trust_code: list[str] = TRUST_CODE,
) -> None:
    """Train without privacy on images that you declare public, to start private runs from.

    `sfumato train --start RUN --train-only head` goes on from the result, on private images.
    Without a recipe the optimizer is NAdam at 1e-3: learning rates made for clipped gradients are
    too high without clipping.
    """
    from sfumato.recipe import parse_setting
    from sfumato.recipes import ORDINARY
    from sfumato.recipes.choice import choose

    if recipe is None and data is None:
        raise UserError(
            "Name the public images to train on: `sfumato pretrain --data cifar100`, or a recipe."
        )
    changes = dict(parse_setting(text) for text in set_)
    named = {
        "data.name": data,
        "data.size": size,
        "data.subset": classes,
        "model.name": model,
        "start.source": start,
        "training.seed": seed,
        "training.physical_batch": physical_batch,
        "data.skip_unreadable": True if skip_unreadable else None,
    }
    given = {key: value for key, value in named.items() if value is not None}
    changes |= given
    if changes.get("privacy.enabled"):
        raise UserError("`sfumato pretrain` trains without privacy; `sfumato train` is private.")
    changes |= {"privacy.enabled": False, "data.public": True}
    if recipe is None:
        changes = ORDINARY | changes
    chosen = choose(recipe, data, changes, options=typed(given))
    chosen = chosen.replace({"name": f"pretrain-{Path(chosen.data.name).stem}"})

    if out is not None:
        run_folder.check_free(out)
    trusted = named_code(trust_code, changes)

    with loading():
        from sfumato.api import train

    def go(reporter: Reporter) -> Run:
        return train(
            chosen, out=out, root=data_root, device=device, reporter=reporter,
            trust_code=trusted,
        )  # fmt: skip

    watch(go, name=chosen.name, out=out, trusted=trusted)
