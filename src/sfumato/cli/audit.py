"""`sfumato audit`: the privacy of a recipe or of a finished run, measured."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from sfumato.cli.models import BATCHNORM_TO
from sfumato.cli.terminal import echo
from sfumato.cli.train import typed, watch
from sfumato.cli.trust import TRUST_CODE
from sfumato.cli.trust import named as named_code
from sfumato.errors import UserError
from sfumato.interrupted_import import loading
from sfumato.io import new_file
from sfumato.training import run_folder

if TYPE_CHECKING:
    from sfumato.run import Run
    from sfumato.training.reporter import Reporter

_STEM = "membership"


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command()(audit)


def audit(
    recipe: str = typer.Argument(
        None,
        metavar="[RECIPE|RUN]",
        help="What `sfumato train` takes, to be trained with canaries; or a finished run.",
    ),
    canaries: int = typer.Option(
        None, help="Number of canaries; 5000, or a tenth of the images if that is less."
    ),
    images: str = typer.Option(
        None, metavar="random|mislabelled", help="Images as canaries, instead of gradients."
    ),
    score: str = typer.Option(
        None, metavar="weights|released", help="What to guess from, for canaries in gradients."
    ),
    data: str = typer.Option(None, help="Data set, folder or .npz, instead of the recipe's."),
    model: str = typer.Option(None, help="Model, instead of the recipe's; also timm:NAME."),
    batchnorm_to: str = BATCHNORM_TO,
    epsilon: float = typer.Option(None, help="Privacy budget."),
    delta: float = typer.Option(None, help="Less than 1 / number of training images."),
    seed: int = typer.Option(None, help="Makes the audit repeatable, noise and all."),
    set_: list[str] = typer.Option(
        [], "--set", metavar="SECTION.NAME=VALUE", help="Change any setting of the recipe."
    ),
    out: Path = typer.Option(
        None, "--out", "-o", help="Run folder to make; for a RUN, folder of the results."
    ),
    device: str = typer.Option("auto", help="auto, cpu, cuda or mps."),
    data_root: Path = typer.Option(None, help="Where to look for data sets first."),
    trust_code: list[str] = TRUST_CODE,
) -> None:
    """Audit a guarantee: bound epsilon from below by canaries, or attack a finished run.

    A RECIPE is trained once with canaries. The exit status is 1 if the bound, of 95 % confidence,
    is above the epsilon that the ledger claims.
    """
    named = {
        "data.name": data, "model.name": model, "model.batchnorm_to": batchnorm_to,
        "privacy.epsilon": epsilon, "privacy.delta": delta, "training.seed": seed,
    }  # fmt: skip
    given = {key: value for key, value in named.items() if value is not None}
    wanted = {"canaries": canaries, "images": images, "score": score}
    where: Any = {"root": data_root, "device": device}
    if recipe is not None and run_folder.is_run(Path(recipe)):
        if more := [k for k, v in (wanted | given).items() if v is not None and k != "data.name"]:
            raise UserError(
                f"{recipe} is a run that was trained already: leave {more[0]} away, or audit its "
                "recipe."
            )
        _attack(Path(recipe), out, data, where, trust_code)
        return
    _train(recipe, given, set_, out, wanted, where, trust_code)


def _train(
    recipe: str | None,
    given: dict[str, Any],
    set_: list[str],
    out: Path | None,
    wanted: dict[str, Any],
    where: Any,
    trust_code: list[str],
) -> None:
    """Train with canaries and say what was found."""
    from sfumato.recipe import parse_setting
    from sfumato.recipes.choice import choose

    changes = dict(parse_setting(text) for text in set_) | given
    chosen = choose(recipe, given.get("data.name"), changes, options=typed(given))
    trusted = named_code(trust_code, changes)
    with loading():
        from sfumato import api
    if out is not None:
        run_folder.check_free(out)
    made: list[Run] = []

    def go(reporter: Reporter) -> Run:
        made.append(
            api.audit(chosen, **wanted, out=out, reporter=reporter, trust_code=trusted, **where)
        )
        return made[0]

    watch(go, name=chosen.name, out=out, trusted=trusted)
    found = made[0].audit
    if found is not None and found.exceeds:
        echo(
            f"The bound is above the claim: at {100 * found.confidence:g} % confidence this run is "
            "less private than its ledger says.",
            err=True,
        )
        raise typer.Exit(1)


def _attack(
    folder: Path, out: Path | None, data: str | None, where: Any, trust_code: list[str]
) -> None:
    """Attack a finished run, and write what was found."""
    from sfumato import api
    from sfumato.analysis.membership_inference import membership
    from sfumato.privacy.statement import upwards
    from sfumato.report.audit import draw_membership
    from sfumato.training.devices import pick_device

    place = folder if out is None else out
    written = [place / f"{_STEM}.json", place / f"{_STEM}.png"]
    for path in written:
        new_file.check(path)
    device = pick_device(where.pop("device"))
    run = api.open(folder, data=data, device=device, trust_code=trust_code, **where)
    found = membership(run)
    with new_file.writing(written[0]) as file:
        file.write(f"{json.dumps(found.to_dict(), indent=1)}\n".encode())
    draw_membership(found, written[1], title=f"{run.recipe.model.name} on {run.data}")
    claim = "no guarantee" if found.epsilon == float("inf") else f"ε = {upwards(found.epsilon)}"
    echo(f"{found.members} training images against {found.others} held out, by their loss")
    echo(f"AUROC                        {found.auroc:.4f}  (0.5: nothing to tell them by)")
    for rate, value in found.found.items():
        allowed = f"at most {100 * found.allowed[rate]:.2f} % by {claim}"
        echo(f"found at {100 * rate:>3g} % false alarms  {100 * value:6.2f} %  ({allowed})")
    if found.others * min(found.found) < 1:
        echo(
            f"With {found.others} images held out, one false alarm is {100 / found.others:.2g} %: "
            "below that, the share found without any is shown, which may be above the limit by "
            "chance."
        )
    echo("This is one attack's success, not a lower bound of epsilon: audit the recipe for one.")
    for path in written:
        echo(f"Written: {path}")
