"""`sfumato recipes`: list, show and copy the packaged recipes."""

from __future__ import annotations

import shlex
from pathlib import Path

import typer

from sfumato.cli.terminal import Terminal, echo
from sfumato.io import new_file

_ROOM = 110
"""A narrower terminal shows the name and epsilon of a recipe, and its description below."""


def register(app: typer.Typer) -> None:
    """Add the command group."""
    group = typer.Typer(no_args_is_help=True, help="List, show and copy recipes.")
    group.command("list")(list_recipes)
    group.command()(show)
    group.command()(copy)
    app.add_typer(group, name="recipes")


def list_recipes() -> None:
    """A table of the packaged recipes: those for everybody, our own, then the papers'."""
    from rich.padding import Padding
    from rich.table import Table
    from rich.text import Text

    from sfumato import recipes
    from sfumato.cli.name_table import show as show_table

    console = Terminal()
    found = {name: recipes.find(name) for name in sorted(recipes.packaged(), key=_place)}
    if console.is_terminal and console.width < _ROOM:
        for name, r in found.items():
            console.print(Text(f"{name}  ε {r.privacy.epsilon:g}", style="bold"), soft_wrap=True)
            console.print(Padding(Text(r.about), (0, 0, 0, 4)))
        return
    table = Table(box=None, pad_edge=False, header_style="bold")
    for column in ("name", "data", "model", "ε"):
        table.add_column(column, no_wrap=True)
    table.add_column("about")
    for name, r in found.items():
        data = "yours" if name in recipes.GENERAL else r.data.name
        table.add_row(name, data, r.model.name, f"{r.privacy.epsilon:g}", Text(r.about))
    show_table(table)


def _place(name: str) -> tuple[bool, bool, str]:
    return "/" in name, not name.startswith("sfumato/"), name


def show(recipe: str = typer.Argument(help="A packaged recipe or a recipe file.")) -> None:
    """Print a recipe, complete, with the meaning of every setting."""
    from sfumato import recipes

    echo(recipes.find(recipe).to_toml(), nl=False)


def copy(
    recipe: str = typer.Argument(help="A packaged recipe or a recipe file."),
    to: Path = typer.Argument(help="The file to write."),
) -> None:
    """Write a recipe to a file of your own, to be changed and trained with."""
    from sfumato import recipes

    found, data = recipes.find(recipe), ""
    if recipe in recipes.GENERAL:
        found, data = found.replace({"data.name": ""}), " --data ./scans"
    text = found.to_toml()
    if to.is_dir():
        to = to / f"{recipe.replace('/', '-')}.toml"
    new_file.check(to, option="name")
    with new_file.writing(to, option="name") as file:
        file.write(text.encode())
    echo(f"Wrote {to}. Train with it: sfumato train {shlex.quote(str(to))}{data}")
