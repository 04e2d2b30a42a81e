"""The functions of `import sfumato` that make and open runs."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sfumato.run import Run

if TYPE_CHECKING:
    import torch

    from sfumato.recipe import Recipe
    from sfumato.training.reporter import Reporter


def open(
    folder: str | Path,
    *,
    data: str | None = None,
    root: str | Path | None = None,
    device: str | torch.device = "cpu",
    trust_code: Iterable[str] = (),
) -> Run:
    """Open a run folder, finished or not; see `Run` for the arguments."""
    return Run(folder, data=data, root=root, device=device, trust_code=trust_code)


def train(
    recipe: Recipe,
    *,
    out: str | Path | None = None,
    root: str | Path | None = None,
    device: str = "auto",
    reporter: Reporter | None = None,
    trust_code: Iterable[str] = (),
) -> Run:
    """Train a new model; see `sfumato.training.run.train` for the arguments."""
    from sfumato.training.run import train

    trusted = tuple(trust_code)
    folder = train(recipe, out=out, root=root, device=device, reporter=reporter, trust_code=trusted)
    return Run(folder, root=root, trust_code=trusted)


def resume(
    folder: str | Path,
    *,
    changes: dict[str, Any] | None = None,
    root: str | Path | None = None,
    device: str = "auto",
    reporter: Reporter | None = None,
    trust_code: Iterable[str] = (),
) -> Run:
    """Go on with an interrupted run; see `sfumato.training.run.resume` for the arguments."""
    from sfumato.training.run import resume

    trusted = tuple(trust_code)
    resume(folder, changes=changes, root=root, device=device, reporter=reporter, trust_code=trusted)
    return Run(folder, data=(changes or {}).get("data.name"), root=root, trust_code=trusted)
