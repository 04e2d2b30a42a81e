"""`sfumato plan`: which batch and how many steps, for a privacy budget that is fixed.

Papernot et al. (2019, section 5.2) fix epsilon and compare batch sizes, as larger batches drown
less in noise but cost more views. This shows both sides for a grid, before anything is trained.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from sfumato.cli.example_count import DATA, examples_of
from sfumato.cli.plan_picture import draw, short
from sfumato.cli.terminal import Terminal, echo, print_whole
from sfumato.cli.unit_options import COLUMNS, UNIT, UNIT_PATTERN
from sfumato.distributed.step_cost import Cost
from sfumato.errors import UserError

if TYPE_CHECKING:
    from sfumato.privacy.accounting.plan_grid import Choice

STEPS = (250, 500, 1000, 2000)


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command()(plan)


def plan(
    recipe: str = typer.Argument(
        None, help="A recipe of images that can be read: its budget, batch and steps, and others."
    ),
    epsilon: float = typer.Option(None, help="Privacy budget; the recipe's if there is one."),
    delta: float = typer.Option(
        None, help="Less than 1 / number of training examples; the recipe's, or 1e-5."
    ),
    data: str = DATA,
    unit: str = UNIT,
    unit_pattern: str = UNIT_PATTERN,
    columns: str = COLUMNS,
    examples: int = typer.Option(None, help="Instead of --data: number of training examples."),
    batch: list[int] = typer.Option(
        [], help="Expected batches to compare; four powers of two if not given."
    ),
    steps: list[int] = typer.Option([], help="Numbers of steps to compare; 250 to 2000."),
    views: int = typer.Option(None, help="Views per example, for the cost; the recipe's, or 1."),
    gpus: int = typer.Option(1, help="Number of GPUs that share the work, for the minutes."),
    speed: float = typer.Option(None, help="Views per second on one GPU, as bench measures."),
    parameters: int = typer.Option(0, help="Trained parameters, which GPUs send to each other."),
    bandwidth: float = typer.Option(10.0, help="Gigabytes per second that a GPU sends."),
    accountant: str = typer.Option(
        None, help="pld (tight) or rdp (as in most papers); the recipe's, or pld."
    ),
    plot: Path = typer.Option(None, help="Draw the grid into this new PNG file."),
    json: bool = typer.Option(False, "--json", help="Print the grid as JSON."),
) -> None:
    """Compare batches and numbers of steps that spend the same privacy budget.

    For example `sfumato plan --epsilon 3 --data cifar10`, or `sfumato plan recipe.toml`. Read it
    from right to left: what can you pay in views, and which row has the largest signal-to-noise for
    it?
    """
    from sfumato.cli.budget import _accountant
    from sfumato.cli.budget_picture import check_new
    from sfumato.cli.plan_recipe import Known, of_recipe
    from sfumato.privacy.accounting.budget import check_delta, check_epsilon
    from sfumato.privacy.accounting.plan_grid import choice, default_batches

    n = None
    if recipe is None or examples or data:
        n = examples_of(examples, data, unit=unit, unit_pattern=unit_pattern, columns=columns)
    known = of_recipe(recipe, n) if recipe is not None else Known(n or 0)
    n, name = known.examples, _accountant(accountant or known.accountant)
    epsilon = known.epsilon if epsilon is None else epsilon
    delta = known.delta if delta is None else delta
    views = known.views if views is None else views
    batches = sorted(set(batch)) or known.batches or default_batches(n)
    counts = sorted(set(steps)) or known.steps or list(STEPS)
    if epsilon is None:
        raise UserError("Give the privacy budget, as in --epsilon 3, or a recipe that states it.")
    check_epsilon(epsilon)
    check_delta(delta, n)
    _check(batches, counts, views, n)
    cost = _cost(gpus, speed, parameters, bandwidth)
    if plot is not None:
        check_new(plot)
        if plot.suffix.lower() != ".png":
            raise UserError(f"--plot {plot}: the name must end in .png.")
    wanted = [(b, t) for b in batches for t in counts]
    found = [
        choice(b, t, n, epsilon=epsilon, delta=delta, views=views, accountant=name)
        for b, t in _watched(wanted)
    ]
    if cost is not None:
        found = [
            replace(c, minutes=c.steps * cost.step_seconds(c.batch * views) / 60) for c in found
        ]
    if plot is not None:
        draw(plot, found, title=f"N = {n}, ε = {epsilon:g}, δ = {delta:g}, {name.upper()}")
    if json:
        import json as writer

        rows = [{k: v for k, v in asdict(c).items() if v is not None} for c in found]
        echo(writer.dumps(rows, indent=1))
    else:
        _print_table(found, f"ε = {epsilon:g}, δ = {delta:g}, N = {n}, by {name.upper()}")
        if plot is not None:
            echo(f"Picture: {plot}")


def _check(batches: Sequence[int], counts: Sequence[int], views: int, examples: int) -> None:
    from sfumato.privacy.accounting.budget import check_steps

    for b in batches:
        if not 1 <= b <= examples:
            raise UserError(f"--batch {b} must be between 1 and the {examples} training examples.")
    for t in counts:
        check_steps(t)
    if views < 1:
        raise UserError(f"--views {views}: an example has at least one view.")


def _cost(gpus: int, speed: float | None, parameters: int, bandwidth: float) -> Cost | None:
    """The cost of a step, if the speed is given."""
    if speed is None and (gpus != 1 or parameters):
        raise UserError(
            "--gpus and --parameters need --speed for an estimate of the time: the views per "
            "second on one GPU, which `sfumato bench` measures."
        )
    return None if speed is None else Cost(gpus, speed, parameters, bandwidth)


def _watched(wanted: Sequence[tuple[int, int]]) -> Iterator[tuple[int, int]]:
    """The places of the grid, with a bar on a terminal's stderr."""
    from rich.progress import track

    console = Terminal(stderr=True)
    yield from track(
        wanted,
        description="solving for the noise",
        console=console,
        disable=not console.is_terminal,
        transient=True,
    )


def _print_table(found: Sequence[Choice], title: str) -> None:
    from rich.table import Table

    best = max(c.signal_to_noise for c in found)
    table = Table(title=title, title_justify="left", title_style="bold", box=None, pad_edge=False,
                  padding=(0, 2, 0, 0))  # fmt: skip
    timed = found[0].minutes is not None
    columns = ("batch", "steps", "epochs", "σ", "σ/B", "B/σ", "of best", "B√T/σ", "views")
    for column in (*columns, "minutes") if timed else columns:
        table.add_column(column, justify="right", no_wrap=True)
    for i, c in enumerate(found):
        minutes = [] if c.minutes is None else [f"{c.minutes:,.{0 if c.minutes >= 10 else 2}f}"]
        table.add_row(
            f"{c.batch}",
            f"{c.steps}",
            f"{c.epochs:.3g}",
            f"{c.noise_multiplier:g}",
            f"{c.effective_noise:.2e}",
            f"{c.signal_to_noise:.4g}",
            f"{100 * c.signal_to_noise / best:.0f} %",
            f"{c.signal_to_noise_run:.4g}",
            f"{short(c.views)}",
            *minutes,
            end_section=i + 1 < len(found) and found[i + 1].batch != c.batch,
        )
    print_whole(table)
    Terminal().print(
        "σ/B is the noise on the mean gradient in units of C; B/σ is the signal-to-noise of a step "
        "and B√T/σ that of all steps together, if all examples agreed. Views are what it costs.",
        soft_wrap=True,
    )
