"""`sfumato bench`: speed and memory of whole private steps, beside training without privacy."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from sfumato.cli.terminal import Terminal, echo
from sfumato.errors import UserError

if TYPE_CHECKING:
    import torch

    from sfumato.bench.cases import Case
    from sfumato.bench.record import Record


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command()(bench)


def bench(
    models: str = typer.Option(None, help="Models to measure, with commas between."),
    views: str = typer.Option(None, help="Views per example K, with commas between."),
    rows: str = typer.Option(None, help="Rows (examples times views) at once, likewise."),
    physical: int = typer.Option(None, help="Physical batches per update; 4 if not given."),
    steps: int = typer.Option(None, min=1, help="Timed steps; 20 on a GPU, 5 or more elsewhere."),
    warmup: int = typer.Option(None, min=1, help="Steps before these; 3 on a GPU, 1 elsewhere."),
    precision: str = typer.Option(None, help="bfloat16 (on a GPU) or float32."),
    against: str = typer.Option(
        None,
        help="not-private, not-private-compiled, opacus, opacus-ghost, vmap, jax-privacy; or none.",
    ),
    device: str = typer.Option("auto", help="auto, cpu, cuda or mps."),
    out: Path = typer.Option(
        None, "--out", "-o", help="Keep the record in this new JSON file, row by row."
    ),
    resume: bool = typer.Option(
        False, "--resume", help="Go on with the record in --out, if it was cut short."
    ),
    picture: Path = typer.Option(None, help="Draw the record into this new PNG file."),
    minutes: float = typer.Option(None, min=0, help="Begin nothing new after so many minutes."),
    jobs: int = typer.Option(
        1, min=1, help="Processes that compile at once on a GPU; one at a time is timed."
    ),
    cold: bool = typer.Option(
        False, "--cold", help="Compile everything anew, for times to the first step."
    ),
    scaling: bool = typer.Option(
        False, "--scaling", help="Curves over the physical batch, K and width instead."
    ),
    foreign: bool = typer.Option(
        False, "--foreign", help="Networks from outside (on a GPU timm's) instead of our own."
    ),
    profile: str = typer.Option(
        None, metavar="MODEL", help="Show where the time of a step goes instead."
    ),
    render: bool = typer.Option(
        False, "--render", help="Write docs/performance.md from benchmarks/results/*.json."
    ),
) -> None:
    """Measure whole private steps beside training without privacy and beside other libraries.

    Gather, augmentation, forward and backward pass, clipping, noise, update, averaged weights and
    ledger are all inside. Without options: a few small cases in about two minutes on a CPU, all
    models with targets on a GPU.
    """
    if render:
        from sfumato.bench.render import render as write

        for path in write(Path()):
            echo(path)
        return
    _check_files(out, picture, resume=resume)

    from sfumato.bench import cases as known
    from sfumato.training import devices

    where = devices.pick_device(device, precision or "auto")
    kind = where.type
    names = [name.strip() for name in models.split(",")] if models else []
    asked = Asked(
        kind, precision or devices.precision("auto", where), names,
        _numbers("--views", views), _numbers("--rows", rows), physical,
    )  # fmt: skip
    if profile is not None:
        if resume:
            raise UserError("--profile has nothing to resume: leave --resume out.")
        _profile(asked.profiled(profile), where, out)
        return
    if jobs > 1 and (kind != "cuda" or cold):
        raise UserError(
            "--jobs is for GPUs, and without --cold: elsewhere contenders take turns, and times to "
            "the first step need the machine to themselves."
        )
    if cold:
        import torch._inductor.config

        torch._inductor.config.force_disable_caches = True
    if against is None:
        beside = ["not-private"] if scaling else known.default_contenders(kind)
    else:
        beside = [] if against == "none" else [name.strip() for name in against.split(",")]
    _measure(
        asked.cases(scaling=scaling, foreign=foreign), known.check_contenders(beside), where,
        steps=steps or (20 if kind == "cuda" else 5), seconds=10.0 if steps is None else 0.0,
        warmup=warmup or (3 if kind == "cuda" else 1), minutes=minutes, jobs=jobs, out=out,
        resume=resume, picture=picture,
    )  # fmt: skip


@dataclass(frozen=True)
class Asked:
    """The cases that were asked for.

    Attributes:
        kind: Kind of device.
        precision: Precision.
        names: Models; all with targets if none.
        views: Views per example.
        rows: Rows at once.
        physical: Physical batches per update.
    """

    kind: str
    precision: str
    names: list[str]
    views: list[int]
    rows: list[int]
    physical: int | None

    def cases(self, *, scaling: bool, foreign: bool) -> list[Case]:
        """The cases to measure: networks from outside, curves over sizes, or models as they are."""
        from sfumato.bench import cases as known

        if foreign and (scaling or self.rows or self.physical):
            raise UserError(
                "--foreign has cases of its own: leave --rows, --physical and --scaling out; "
                "--models and --views choose among them."
            )
        if foreign:
            return known.foreign(self.kind, self.precision, names=self.names, views=self.views)
        if not scaling:
            return known.choose(
                self.kind, precision=self.precision, names=self.names, views=self.views,
                rows=self.rows, physical=self.physical,
            )  # fmt: skip
        first = next(iter(self.names), None)
        return known.scaling(
            self.kind, model=first, rows=next(iter(self.rows), None),
            views=next(iter(self.views), None), precision=self.precision,
        )  # fmt: skip

    def profiled(self, model: str) -> Case:
        """The case whose time is split up."""
        from sfumato.bench import cases as known

        size = self.rows[0] if self.rows else (2048 if self.kind == "cuda" else 64)
        [case] = known.choose(
            self.kind, precision=self.precision, names=[model],
            views=[self.views[0] if self.views else 1], rows=[size], physical=self.physical,
        )  # fmt: skip
        return case


def _numbers(option: str, text: str | None) -> list[int]:
    try:
        found = [int(part) for part in text.split(",")] if text else []
    except ValueError:
        found = [0]
    if any(number < 1 for number in found):
        raise UserError(f"{option} {text}: give whole numbers from 1 on, with commas between.")
    return found


def _check_files(out: Path | None, picture: Path | None, *, resume: bool) -> None:
    """Refuse wrong names, and files that exist unless a record is gone on with."""
    if resume and out is None:
        raise UserError("--resume needs --out FILE.json, the record to go on with.")
    for option, path, suffix in (("--out", out, ".json"), ("--picture", picture, ".png")):
        if path is not None and path.suffix.lower() != suffix:
            raise UserError(f"{option} {path}: the name must end in {suffix}.")
        if path is not None and path.exists() and not resume:
            from sfumato.bench.record import taken

            raise UserError(f"{option} {taken(path)}")


def _measure(
    wanted: list[Case],
    beside: list[str],
    where: torch.device,
    *,
    steps: int,
    seconds: float,
    warmup: int,
    minutes: float | None,
    jobs: int,
    out: Path | None,
    resume: bool,
    picture: Path | None,
) -> None:
    from sfumato.bench.recording import run

    try:
        record = run(
            wanted,
            beside,
            device=where,
            steps=steps,
            seconds=seconds,
            warmup=warmup,
            minutes=minutes,
            jobs=jobs,
            out=out,
            resume=resume,
            say=lambda text: print(text, flush=True),
        )
    except KeyboardInterrupt:
        _say_cut(out)
        raise
    _show(record)
    if picture is not None and resume and picture.exists():
        echo(f"picture: {picture} was there already and is kept")
    elif picture is not None and (record.finished or not resume):
        _draw(record, picture)
        echo(f"picture: {picture}")
    if out is not None:
        echo(f"record: {out}")
    if not record.finished:
        _say_cut(out)


def _say_cut(out: Path | None) -> None:
    if out is not None:
        echo(f"What was measured is in {out}. Go on by the same command with --resume.")


def _show(record: Record) -> None:

    from sfumato.bench import record_tables
    from sfumato.bench.targets import verdicts

    console = Terminal(width=None if Terminal().is_terminal else 200)
    console.print()
    console.print(record.where())
    console.print(record_tables.measurements_table(record.measurements))
    for sentence in record_tables.missing(record.measurements):
        console.print(sentence)
    if found := verdicts(record):
        console.print()
        console.print(record_tables.verdicts_table(found))


def _draw(record: Record, path: Path) -> None:
    from sfumato.bench import picture

    scaled = any(m.case.scaling for m in record.measurements)
    if not (picture.curves if scaled else picture.bars)(record, path):
        raise UserError("Nothing was measured, so there is nothing to draw.")


def _profile(case: Case, where: torch.device, out: Path | None) -> None:
    from rich.table import Table

    from sfumato.bench import profiling
    from sfumato.bench.recording import profile

    _, found = profile(case, device=where, out=out)
    table = Table(box=None, pad_edge=False)
    for i, column in enumerate(profiling.COLUMNS):
        table.add_column(column, justify="right" if i else "left")
    for row in profiling.rows(found):
        table.add_row(*row)
    console = Terminal(width=None if Terminal().is_terminal else 140)
    for sentence in profiling.lines(found):
        console.print(sentence)
    console.print(table)
    if out is not None:
        echo(f"record: {out}")
