"""`sfumato data`: what image sets there are, what one holds, and how to get one."""

from __future__ import annotations

import shlex
from pathlib import Path

import typer

from sfumato.cli.terminal import echo
from sfumato.cli.unit_options import COLUMNS, UNIT, UNIT_PATTERN, columns_of

_ROOT = typer.Option(None, "--data-root", help="Look here first for a named data set.")


def register(app: typer.Typer) -> None:
    """Add the group `data` to the command."""
    group = typer.Typer(no_args_is_help=True, help="List, inspect and download image data.")
    group.command("list")(list_sets)
    group.command("show")(show)
    group.command("get")(get)
    group.command("forget")(forget)
    app.add_typer(group, name="data")


def list_sets(data_root: Path | None = _ROOT) -> None:
    """List the data sets known by name and where they were found."""
    from rich.table import Table

    from sfumato.cli.name_table import show as show_table
    from sfumato.data import locate
    from sfumato.data.catalogue import CATALOGUE, DRAWN

    table = Table(box=None, pad_edge=False)
    table.add_column("name", no_wrap=True)
    for heading in ("images", "classes", "size"):
        table.add_column(heading, justify="right", no_wrap=True)
    table.add_column("where", overflow="fold")
    for entry in CATALOGUE.values():
        place = "in sfumato itself" if entry.name == "digits" else locate.find(entry, data_root)
        table.add_row(
            entry.name,
            f"{entry.train + entry.test:,}",
            str(entry.classes),
            f"{entry.channels}×{entry.size[0]}×{entry.size[1]}",
            str(place or "not found"),
        )
    show_table(table)
    searched = ", ".join(str(place) for place in locate.places(data_root))
    echo(f"\nSearched: {searched}")
    echo("Get one with `sfumato data get NAME`. Folders of images, tar shards and .npz work too.")
    for name in DRAWN:
        echo(f"{name}: images drawn at random, to begin with; `sfumato data show {name}`.")


def show(
    data: str = typer.Argument(
        ..., metavar="NAME|PATH", help="A name, folder, table, .tar or .npz."
    ),
    data_root: Path | None = _ROOT,
    size: int | None = typer.Option(None, help="Side of the images; their own by default."),
    channels: int | None = typer.Option(None, help="1 (grey) or 3 (colour)."),
    bits: int = typer.Option(16, help="Bits that count in 16-bit images, such as 12."),
    validation: float = typer.Option(0.0, help="Fraction of train to set aside for validation."),
    test_fraction: float = typer.Option(0.2, help="Fraction to set aside if there is no test set."),
    split_seed: int = typer.Option(0, help="Decides which images are set aside."),
    unit: str = UNIT,
    unit_pattern: str = UNIT_PATTERN,
    columns: str = COLUMNS,
    skip_unreadable: bool = typer.Option(
        False, "--skip-unreadable", help="Leave damaged images out instead of refusing them."
    ),
    cache: bool = typer.Option(True, help="Keep decoded images in the user's cache."),
    picture: Path | None = typer.Option(None, help="Write a sheet of samples to this new .png."),
) -> None:
    """Show what a data set holds: images per class, size, fingerprint, a sheet of samples."""
    from sfumato.cli.describe_data import describe
    from sfumato.data import load
    from sfumato.data.catalogue import DRAWN
    from sfumato.data.sample_sheet import check_new_png, save_sheet
    from sfumato.data.units import IMAGE, with_unit
    from sfumato.text import check_unit

    if picture is not None:
        check_new_png(picture)
    if data in DRAWN:
        _show_drawn(data, channels or 3, picture)
        return
    unit = unit or IMAGE
    check_unit(unit)
    whole = load(
        data,
        root=data_root,
        size=size,
        channels=channels,
        bits=bits,
        validation=validation,
        test_fraction=test_fraction,
        split_seed=split_seed,
        unit=unit,
        unit_pattern=unit_pattern or "",
        columns=columns_of(columns) or (),
        skip_unreadable=skip_unreadable,
        cache=cache,
    )
    dataset = with_unit(whole, unit)
    describe(dataset, unit)
    if picture is not None:
        save_sheet(dataset, picture)
        echo(f"Samples: {picture}")


def _show_drawn(name: str, channels: int, picture: Path | None) -> None:
    from sfumato.data.catalogue import check_channels
    from sfumato.data.contrastive_views import samples
    from sfumato.data.sample_sheet import save_sheet

    check_channels(channels)
    echo(
        f"{name}: images that the program draws at random, to start private training from where "
        f"there are no public images. `sfumato pretrain --data {name}` trains on them."
    )
    if picture is not None:
        save_sheet(samples(name, channels=channels), picture)
        echo(f"Samples: {picture}")


def forget() -> None:
    """Remove the decoded images of folders from your cache, where they make a second start fast.

    They are copies, readable by you alone; `data.cache = false` in a recipe keeps none.
    """
    from sfumato.data import cache, locate

    freed = cache.forget(locate.cache_folder())
    echo(f"Removed {freed / 2**20:,.1f} MiB of decoded images.")


def get(
    name: str = typer.Argument(..., help="The data set; see `sfumato data list`."),
    to: Path | None = typer.Option(
        None, "--to", help="The data folder; the user's cache by default."
    ),
) -> None:
    """Download a data set, check it and unpack it where it will be found."""
    from sfumato.data import download

    folder = download.get(name, to=to, say=typer.echo)
    echo(f"{name} is ready in {folder}.")
    if to is not None:
        place = shlex.quote(str(to))
        echo(f"Use it with --data-root {place} or SFUMATO_DATA={place}.")
