"""Output that shows names from files without obeying what is in them."""

from __future__ import annotations

import shutil
import sys
import textwrap
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

import typer
from rich.console import Console, ConsoleOptions, RenderableType
from rich.segment import Segment

from sfumato.text import printable

if TYPE_CHECKING:
    from rich.table import Table

_COMMAND = "sfumato "
"""Begins a command in a sentence."""

_WIDEST = 1000
"""Columns of a table that is measured without regard to the terminal."""


class Terminal(Console):
    """A rich console that shows text as it is, and control characters in it as escapes.

    A class, file or recipe may have a name that clears the screen, writes over other lines, or is
    markup to rich, such as `[red]` and `:abc:`. So a string is never markup, in tables neither:
    what is to be coloured or bold is a `rich.text.Text`.
    """

    def __init__(
        self, *, stderr: bool = False, soft_wrap: bool = False, width: int | None = None
    ) -> None:
        super().__init__(
            stderr=stderr, soft_wrap=soft_wrap, width=width, markup=False, emoji=False,
            highlight=False,
        )  # fmt: skip

    def print(self, *objects: Any, soft_wrap: bool | None = None, **more: Any) -> None:
        """Print as rich does; with `soft_wrap`, a terminal breaks lines between words.

        Elsewhere a line stays one, and everywhere one with a command, to be copied.
        """
        soft = self.soft_wrap if soft_wrap is None else soft_wrap
        if soft and self.is_terminal:
            soft = any(_COMMAND in str(shown) for shown in objects)
        super().print(*objects, soft_wrap=soft, **more)

    def render(
        self, renderable: RenderableType, options: ConsoleOptions | None = None
    ) -> Iterable[Segment]:
        """The pieces of what is printed, their text printable."""
        for segment in super().render(renderable, options):
            if segment.control is None:
                segment = Segment(printable(segment.text), segment.style)
            yield segment


def print_whole(table: Table) -> None:
    """Print a table of numbers, none of them cut.

    On a terminal that is too narrow, columns move together, and then lines become longer than it.
    """
    console, unbounded = Terminal(), Terminal(width=_WIDEST)
    if unbounded.measure(table).maximum > console.width:
        table.padding = (0, 1, 0, 0)
    Terminal(width=max(console.width, unbounded.measure(table).maximum)).print(table)


def echo(message: Any = "", *, err: bool = False, nl: bool = True) -> None:
    """Print a text, with control characters shown as escapes, and no word cut on a terminal."""
    text, stream = printable(str(message)), sys.stderr if err else sys.stdout
    if stream.isatty():
        text = wrapped(text, shutil.get_terminal_size().columns)
    typer.echo(text, err=err, nl=nl)


def wrapped(text: str, columns: int) -> str:
    """The text with the sentences on lines of at most so many columns, if words are no longer.

    Indented lines and lines with a command stay as they are, to be copied.
    """
    lines = text.split("\n")
    for number, line in enumerate(lines):
        if len(line) > columns and not line.startswith(" ") and _COMMAND not in line:
            lines[number] = textwrap.fill(
                line, columns, break_long_words=False, break_on_hyphens=False
            )
    return "\n".join(lines)
