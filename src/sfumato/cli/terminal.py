"""Output that shows names from files without obeying what is in them."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import typer
from rich.console import Console, ConsoleOptions, RenderableType
from rich.segment import Segment

from sfumato.text import printable


class Terminal(Console):
    """A rich console that shows control characters in text as escapes.

    A class, file or recipe may have a name that clears the screen or writes over other lines.
    """

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
