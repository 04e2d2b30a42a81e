"""Published results of the papers, row by row, and the recipe that reproduces each.

Numbers are top-1 accuracies in per cent as printed. None stands where the paper shows only a curve,
states only a conclusion, or its table is missing from the text that we have.
"""

from __future__ import annotations

from sfumato.reproduce.papers import (
    equivariant,
    optimizer_report,
    own,
    scale_norm,
    shoe_fit,
    smoothnets,
)
from sfumato.reproduce.row import Paper

PAPERS: tuple[Paper, ...] = tuple(
    module.paper()
    for module in (smoothnets, scale_norm, shoe_fit, optimizer_report, equivariant, own)
)
