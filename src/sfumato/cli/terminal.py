"""Output that shows names from files without obeying what is in them."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import typer
from rich.console import Console, ConsoleOptions, RenderableType
from rich.segment import Segment

from sfumato.text import printable


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

    def render(
        self, renderable: RenderableType, options: ConsoleOptions | None = None
    ) -> Iterable[Segment]:
        """The pieces of what is printed, their text printable."""
        for segment in super().render(renderable, options):
            if segment.control is None:
                segment = Segment(printable(segment.text), segment.style)
            yield segment


def echo(message: Any = "", *, err: bool = False, nl: bool = True) -> None:
    """Print a text, with control characters shown as escapes."""
    typer.echo(printable(str(message)), err=err, nl=nl)
