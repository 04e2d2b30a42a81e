"""Tables of names: a name is never broken or cut, so that `| grep` finds it."""

from __future__ import annotations

from rich.cells import cell_len
from rich.measure import Measurement
from rich.table import Table

from sfumato.cli.terminal import Terminal

_WIDEST = 10_000


def show(table: Table) -> None:
    """Print a table whose first column holds names.

    On a terminal the other columns wrap, or are cut where there is no room; elsewhere each row is
    one line.
    """
    names = table.columns[0]
    names.no_wrap = True
    names.min_width = max((cell_len(str(name)) for name in names.cells), default=1)
    console = Terminal()
    if console.is_terminal:
        console.print(table)
        return
    options = console.options.update(width=_WIDEST)
    wide = Terminal(width=Measurement.get(console, options, table).maximum)
    with wide.capture() as captured:
        wide.print(table)
    for line in captured.get().splitlines():
        wide.out(line.rstrip(), highlight=False)
