"""`sfumato models`: what networks there are, and what one is made of."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import typer

from sfumato.cli.terminal import Terminal, echo

if TYPE_CHECKING:
    from sfumato.models import ModelInfo

BATCHNORM_TO: Any = typer.Option(
    None, metavar="groupnorm", help="Put a GroupNorm in the place of every BatchNorm."
)
"""The option of every command that builds a model by its name."""


def register(app: typer.Typer) -> None:
    """Add the group `models` to the command."""
    group = typer.Typer(no_args_is_help=True, help="List and inspect the networks.")
    group.command("list")(list_models)
    group.command("show")(show)
    app.add_typer(group, name="models")


def list_models() -> None:
    """List the models with 10 classes: parameters, multiply-accumulates per image, paper."""
    import torch
    from rich.table import Table

    from sfumato import models
    from sfumato.cli.name_table import show as show_table

    torch.set_num_threads(1)
    table = Table(box=None, pad_edge=False)
    table.add_column("name", no_wrap=True)
    for heading in ("images", "parameters", "MACs", "published"):
        table.add_column(heading, justify="right", no_wrap=True)
    table.add_column("paper", overflow="fold")
    for name in models.names():
        entry = models.info(name)
        channels, *size = entry.input
        counted = models.summary_of(name, channels=channels, size=(size[0], size[1]))
        table.add_row(
            name,
            "×".join(map(str, entry.input)),
            f"{counted.parameters:,}",
            _millions(counted.macs),
            _published(entry),
            entry.paper,
        )
    show_table(table)
    echo(f"\nAlso names of the form {', '.join(models.patterns())}.")
    echo("Also timm:NAME and torchvision:NAME, where these libraries are installed.")
    echo("MACs: multiply-accumulates per image. More on one with `sfumato models show NAME`.")


def show(
    name: str = typer.Argument(
        ..., help="A model's name, timm:NAME, torchvision:NAME, or package.module:function."
    ),
    classes: int = typer.Option(10, help="Number of classes."),
    channels: int | None = typer.Option(None, help="Channels of the images."),
    size: int | None = typer.Option(None, help="Height and width of the images."),
    set_: list[str] = typer.Option([], "--set", metavar="OPTION=VALUE", help="A model's option."),
    batchnorm_to: str = BATCHNORM_TO,
) -> None:
    """Show a model: its paper, its options, its layers."""
    from rich.table import Table

    from sfumato import models

    entry = None if ":" in name else models.info(name)
    usual = entry.input if entry else (3, 32, 32)
    side = (usual[1], usual[2]) if size is None else (size, size)
    channels = usual[0] if channels is None else channels
    options = models.parse_options(name, set_)
    counted = models.summary_of(
        name, classes=classes, channels=channels, size=side, options=options,
        batchnorm_to=batchnorm_to,
    )  # fmt: skip
    console = Terminal()
    console.print(name)
    if entry:
        _describe(console.print, entry)

    table = Table(box=None, pad_edge=False)
    table.add_column("layer", no_wrap=True)
    table.add_column("kind", no_wrap=True)
    for heading in ("output", "parameters", "MACs"):
        table.add_column(heading, justify="right", no_wrap=True)
    for layer in counted.layers:
        shape = "×".join(map(str, layer.output))
        count = f"{layer.parameters:,}" if layer.parameters else ""
        macs = f"{layer.macs:,}" if layer.macs else ""
        table.add_row(layer.name, layer.kind, shape, count, macs)
    console.print(table)
    images = "×".join(map(str, (channels, *side)))
    published = f" (published: {_published(entry)})" if entry and entry.parameters else ""
    console.print(
        f"\n{images} images, {classes} classes: {counted.parameters:,} trainable parameters"
        f"{published}, {_millions(counted.macs)} multiply-accumulates per image"
    )


def _describe(say: Callable[[str], None], entry: ModelInfo) -> None:
    paragraphs = (" ".join(part.split()) for part in entry.doc.split("\n\n"))
    say("\n\n".join([f"paper: {entry.paper}", *paragraphs]) + "\n")
    if entry.preset:
        say("fixed: " + ", ".join(f"{key} = {value}" for key, value in entry.preset.items()))
    say("options (--set option=value):")
    for key, option in entry.options.items():
        say(f"  {key} = {option.default}: {option.accepts}")
    say("")


def _published(entry: ModelInfo) -> str:
    count = entry.parameters
    return "" if count is None else f"{count:,}" if isinstance(count, int) else count


def _millions(macs: int) -> str:
    return f"{macs / 1e6:,.1f}M"
