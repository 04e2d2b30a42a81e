"""The tables of `sfumato analyze`: a column for each run, a table for each part."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

if TYPE_CHECKING:
    from sfumato.analysis.overview import Analysis

Row = tuple[str, Callable[["Analysis"], str]]


def tables(found: Sequence[Analysis], parts: Sequence[str]) -> Iterator[RenderableType]:
    """Everything that was measured, as things that rich prints."""
    if not found:
        return
    first = found[0]
    yield Text(f"{first.run.dataset.name}: {_on(found)}", style="bold")
    yield _columns("", found, [("model", _model), ("weights", _weights)])
    for part in parts:
        shown = [one for one in found if _has(one, part)]
        if shown:
            yield Text()
            yield from _BLOCKS[part](shown)


def _on(found: Sequence[Analysis]) -> str:
    parts = list(dict.fromkeys(one.on for one in found))
    words = " and ".join(f"the {part} images" for part in parts)
    return f"{words} (held out)" if "train" not in parts else f"{words} (NOT covered by epsilon)"


def _has(one: Analysis, part: str) -> bool:
    return getattr(one, "spectrum" if part == "curvature" else part) is not None


def _model(one: Analysis) -> str:
    return one.run.recipe.model.name


def _weights(one: Analysis) -> str:
    return one.run.weights


def _columns(title: str, found: Sequence[Analysis], rows: Sequence[Row]) -> Table:
    """A row for each quantity and a column for each run."""
    table = Table(title=title or None, title_justify="left", title_style="bold", box=None,
                  pad_edge=False)  # fmt: skip
    table.add_column("", no_wrap=True)
    for one in found:
        table.add_column(Text(one.run.folder.name), justify="right", overflow="fold")
    for name, value in rows:
        table.add_row(Text(name), *(Text(value(one)) for one in found))
    return table


def _calibration(found: Sequence[Analysis]) -> Iterator[RenderableType]:
    def of(get: Callable[[Any], str]) -> Callable[[Analysis], str]:
        return lambda one: get(one.calibration)

    yield _columns("Calibration", found, [
        ("images", of(lambda c: str(c.scores.n))),
        ("accuracy", of(lambda c: f"{100 * c.scores.accuracy:.2f} %")),
        ("mean confidence", of(lambda c: f"{100 * c.scores.confidence:.2f} %")),
        ("Brier score", of(lambda c: f"{c.scores.brier:.4f} ± {c.scores.brier_error:.4f}")),
        ("negative log-likelihood", of(lambda c: f"{c.scores.nll:.4f}")),
        ("ECE, equal width", of(lambda c: f"{c.scores.ece:.4f}")),
        ("ECE, equal counts", of(lambda c: f"{c.scores.adaptive_ece:.4f}")),
        ("temperature", of(lambda c: f"{c.temperature:.3f}")),
        ("ECE before → after it",
         of(lambda c: f"{c.before.ece:.4f} → {c.after.ece:.4f}")),
        ("Brier before → after it",
         of(lambda c: f"{c.before.brier:.4f} → {c.after.brier:.4f}")),
    ])  # fmt: skip
    for words in dict.fromkeys(c.fitted_on for one in found if (c := one.calibration)):
        yield Text(f"Temperature fitted on {words}.", style="dim")


def _curvature(found: Sequence[Analysis]) -> Iterator[RenderableType]:
    def of(get: Callable[[Any], str]) -> Callable[[Analysis], str]:
        return lambda one: get(one.spectrum)

    rows: list[Row] = [
        ("parameters", of(lambda s: f"{s.size:,}".replace(",", " "))),
        ("mean loss", lambda one: _number(one.loss)),
        ("trace", lambda one: _pm(one.trace)),
        ("largest eigenvalue", of(lambda s: _number(s.top[0]))),
    ]
    rows += [
        (f"eigenvalue {k + 1}", of(lambda s, k=k: _number(s.top[k]) if k < len(s.top) else "–"))  # type: ignore[misc]
        for k in range(1, 5)
    ]
    rows += [
        ("negative eigenvalues", of(lambda s: f"{s.negative_found} of {s.found}")),
        ("share clearly negative", of(lambda s: f"{100 * s.negative_mass:.2f} %")),
        ("share close to zero", of(lambda s: f"{100 * s.zero_mass:.2f} %")),
        ("condition number", of(lambda s: _number(s.condition))),
    ]
    yield _columns("Curvature of the mean loss", found, rows)
    exact = all(one.spectrum.exact for one in found if one.spectrum)
    said = "All eigenvalues were computed." if exact else (
        "Eigenvalues are Lanczos estimates; a thousandth of the largest is close to zero. The "
        "condition number grows with --iterations: compare it at equal ones."
    )  # fmt: skip
    yield Text(said, style="dim")


def _activations(found: Sequence[Analysis]) -> Iterator[RenderableType]:
    for one in found:
        assert one.activations is not None
        rows = [d for paths in one.activations.residuals.values() for d in paths.values()]
        chosen = rows or list(one.activations.layers)
        table = _layer_table(
            f"Activations of {one.run.folder.name}",
            ("mean", "std", "skewness", "zero", "l2 norm"),
        )
        for d in _few(chosen):
            if d is None:
                table.add_row("…")
                continue
            table.add_row(
                Text(d.name), _number(d.mean), _number(d.std), _number(d.skewness),
                f"{100 * d.zeros:.1f} %", _number(d.norm),
            )  # fmt: skip
        yield table
        if rows:
            yield Text(
                "V_R: residual (skip) path, V_F: convolutional path, V_A: their sum, V_A^S: after "
                "ScaleNorm.",
                style="dim",
            )


def _sparsity(found: Sequence[Analysis]) -> Iterator[RenderableType]:
    first = found[0].sparsity
    assert first is not None
    rows: list[Row] = []
    for kind in ("parameters", "gradients"):
        for k, eps in enumerate(first.thresholds):
            rows.append(
                (
                    f"{kind} with size ≤ {eps:g}",
                    lambda one, k=k, kind=kind: f"{100 * getattr(one.sparsity, kind)[k]:.2f} %",  # type: ignore[misc]
                )
            )
    yield _columns("Sparsity: entries close to zero", found, rows)


def _gradients(found: Sequence[Analysis]) -> Iterator[RenderableType]:
    def of(get: Callable[[Any], str]) -> Callable[[Analysis], str]:
        return lambda one: get(one.gradients)

    yield _columns("Per-example gradients", found, [
        ("images", of(lambda g: str(g.examples))),
        ("norm, median", of(lambda g: _number(g.quantiles[2]))),
        ("norm, 5 to 95 %",
         of(lambda g: f"{_number(g.quantiles[0])} to {_number(g.quantiles[4])}")),
        ("clipped", of(lambda g: f"{100 * g.clipped:.1f} %")),
        ("signal of the whole", of(lambda g: _number(g.whole.signal))),
        ("noise of the whole", of(lambda g: _number(g.whole.noise))),
        ("signal to noise", of(lambda g: _snr(g.whole))),
    ])  # fmt: skip
    for one in found:
        assert one.gradients is not None
        table = _layer_table(
            f"Layers of {one.run.folder.name}",
            ("parameters", "norm", "clipped norm", "signal", "noise", "signal/noise"),
        )
        for layer in _few(list(one.gradients.layers)):
            if layer is None:
                table.add_row("…")
                continue
            table.add_row(
                Text(layer.name or "(model)"), str(layer.size), _number(layer.norm),
                _number(layer.clipped_norm), _number(layer.signal), _number(layer.noise),
                _snr(layer),
            )  # fmt: skip
        yield Text()
        yield table


def _cost(found: Sequence[Analysis]) -> Iterator[RenderableType]:
    def of(get: Callable[[Any], str]) -> Callable[[Analysis], str]:
        return lambda one: get(one.cost)

    rows: list[Row] = [
        ("trainable parameters", of(lambda c: _whole(c.parameters))),
        ("multiply-accumulates per image", of(lambda c: _whole(c.macs))),
    ]
    if any(one.cost and one.cost.once for one in found):
        rows.append(("and once per batch", of(lambda c: _whole(c.once))))
    yield _columns("Cost", found, rows)
    for one in found:
        assert one.cost is not None
        table = _layer_table(
            f"Layers of {one.run.folder.name}", ("kind", "output", "parameters", "MACs")
        )
        for layer in _few([w for w in one.cost.layers if w.parameters or w.macs]):
            if layer is None:
                table.add_row("…")
                continue
            table.add_row(
                Text(layer.name or "(model)"), layer.kind, "×".join(map(str, layer.output)),
                _whole(layer.parameters), _whole(layer.macs),
            )  # fmt: skip
        yield Text()
        yield table


_BLOCKS: dict[str, Callable[[Sequence[Analysis]], Iterator[RenderableType]]] = {
    "calibration": _calibration,
    "curvature": _curvature,
    "activations": _activations,
    "sparsity": _sparsity,
    "gradients": _gradients,
    "cost": _cost,
}


def _layer_table(title: str, headings: Sequence[str]) -> Table:
    table = Table(title=title, title_justify="left", title_style="bold", box=None, pad_edge=False)
    table.add_column("layer", overflow="fold")
    for heading in headings:
        table.add_column(heading, justify="right", no_wrap=True)
    return table


def _few(rows: Sequence[Any], most: int = 24) -> list[Any]:
    """The first and the last rows, with None where some are left out."""
    if len(rows) <= most:
        return list(rows)
    half = most // 2
    return [*rows[:half], None, *rows[-half:]]


def _number(value: float | None) -> str:
    if value is None or math.isnan(value):
        return "–"
    return "∞" if math.isinf(value) else f"{value:.4g}"


def _pm(trace: Any) -> str:
    return "–" if trace is None else f"{trace.value:.4g} ± {trace.error:.2g}"


def _snr(layer: Any) -> str:
    return _number(layer.snr) if layer.noise else "no noise"


def _whole(value: int) -> str:
    return f"{value:,}".replace(",", " ")
