"""`sfumato verify --plan`: what the compiled pass would store of each layer's gradients."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rich.table import Table
from rich.text import Text

if TYPE_CHECKING:
    from rich.console import Console
    from torch import nn


def show(
    model: nn.Module,
    shape: tuple[int, int, int],
    views: int,
    examples: int,
    memory: float | None,
    console: Console,
) -> None:
    """Print the planner's choice for filters and matrices, with the cost of each storage.

    Args:
        model: The model.
        shape: Of one image.
        views: Rows per example.
        examples: The physical batch.
        memory: GiB that kept gradients may take; as many as in training if None.
        console: Where to print.
    """
    import torch

    from sfumato.privacy.engines.objective import Objective
    from sfumato.privacy.engines.operators import Operators
    from sfumato.privacy.engines.slots import convolutions, uses_of
    from sfumato.privacy.engines.storage_plan import STORAGES, plan, room

    row = torch.zeros(1, *shape)
    objective = Objective(model, views=views)
    program = Operators(objective).program(row)
    layers = list(convolutions(program, objective).values())
    limit = room(model, row, examples * views) if memory is None else int(memory * 2**30)
    ways = plan(layers, examples, memory=limit)
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))
    table.add_column("layer")
    table.add_column("filters", justify="right")
    table.add_column("positions", justify="right")
    table.add_column("storage")
    for way in STORAGES:
        table.add_column(f"{way}\nms, MiB", justify="right")
    for layer in layers:
        cells: list[Text] = []
        for way in STORAGES:
            text = "–"
            if way in layer.possible():
                cost = layer.seconds(way, examples) * 1e3
                text = f"{cost:.2f}, {layer.bytes(way, examples) / 2**20:,.0f}"
            cells.append(Text(text, style="bold" if way == ways[layer.name] else ""))
        size = "×".join(map(str, (layer.filters, layer.channels, *layer.at.kernel)))
        table.add_row(layer.name, size, str(layer.positions), ways[layer.name], *cells)
    console.print(table)
    total = sum(layer.seconds(ways[layer.name], examples) for layer in layers) * 1e3
    kept = sum(layer.bytes(ways[layer.name], examples) for layer in layers) / 2**30
    console.print(
        f"\n{examples} examples of {views} views at once: about {total:.1f} ms and {kept:.2f} GiB "
        f"of at most {limit / 2**30:.2f} for these gradients, estimated for an H200 in "
        "bfloat16."
    )
    rest = len(uses_of(program)) - len(layers)
    if rest:
        console.print(f"Of {rest} other weights every example's gradient is stored.")
