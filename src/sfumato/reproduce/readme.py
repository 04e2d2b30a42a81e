"""The README's table of accuracies, generated between two marks."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from sfumato.io.marked_block import replace_block
from sfumato.reproduce import results_file
from sfumato.reproduce.lookup import every_row
from sfumato.reproduce.results_file import Entry

BEGIN = "<!-- sfumato reproduce --render: begin -->"
END = "<!-- sfumato reproduce --render: end -->"

SHOWN = {
    "sfumato/two-networks-cifar10-eps1": "CIFAR-10, a linear layer on weights that have seen no "
    "photograph, on a CPU",
    "sfumato/leaves-cifar10-eps3": "CIFAR-10, the whole network from such weights",
    "sfumato/leaves-cifar10-eps8": "the same",
    "equivariant/eq-resnet9-d4-cifar10-eps2": "CIFAR-10, from scratch",
    "sfumato/fixed-layers-fashion-eps2.7": "Fashion-MNIST, a linear layer, on a CPU",
    "sfumato/fixed-layers-mnist-eps2.93": "MNIST, the same",
}
"""Rows that the README shows, and what it calls them."""


def update(readme: Path, entries: Sequence[Entry]) -> list[Path]:
    """Write the table between the marks of a README; do nothing if it has none.

    Returns:
        The file, if it was written.
    """
    if readme.is_file() and replace_block(readme, BEGIN, END, table(entries)):
        return [readme]
    return []


def table(entries: Sequence[Entry]) -> str:
    """Our accuracies with their privacy, as Markdown."""
    lines = ["| images | ε at δ = 10⁻⁵ | test accuracy | minutes |", "|---|--:|--:|--:|"]
    rows = every_row()
    for name, words in SHOWN.items():
        found = results_file.of_row(entries, rows[name], "best")
        if not found:
            continue
        accuracies = sorted(100 * e.accuracy for e in found)
        middle = accuracies[len(accuracies) // 2]
        spread = f" ({accuracies[0]:.1f} to {accuracies[-1]:.1f}, {len(found)} seeds)"
        minutes = sorted(e.minutes for e in found)[len(found) // 2]
        budget = rows[name].recipe_for("best").privacy.epsilon
        lines.append(
            f"| [{words}](docs/results/{rows[name].paper}.md) | {budget:g} | {middle:.1f} %"
            f"{spread if len(found) > 1 else ' (one seed)'} | {minutes:.0f} |"
        )
    return "\n".join(lines)
