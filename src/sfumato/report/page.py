"""The report: one HTML file that needs nothing else, and asks nobody for anything."""

from __future__ import annotations

import base64
import hashlib
import math
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from sfumato import version
from sfumato.charts import style
from sfumato.charts.chart import SERIES
from sfumato.io import new_file
from sfumato.report import audit, detail, sections
from sfumato.report.markup import TEMPLATES, Safe
from sfumato.report.measure import Measured, measure
from sfumato.report.privacy import missing_metrics
from sfumato.run import Run


def page(
    runs: Sequence[Run],
    measured: Sequence[Measured],
    *,
    title: str = "",
    shareable: bool = False,
) -> str:
    """The report of one or many runs.

    Args:
        runs: What `gather` found.
        measured: What `measure` found, one for each.
        title: Above the page; made up from the runs if empty.
        shareable: Leave out what must not leave the house: numbers computed on training batches,
            and seeds that noise follows from.
    """
    alone = len(runs) == 1
    curves, data = sections.curves(runs, shareable=shareable)
    front, more = sections.front(runs, measured)
    data |= more
    shown = []
    for index, (run, found) in enumerate(zip(runs, measured, strict=True)):
        results, more = detail.test_results(run, found, f"run{index}")
        audited, drawn = audit.section(run, f"run{index}-audit")
        data |= more | drawn
        shown.append(
            {
                "name": run.name,
                "status": sections.status(run),
                "swatch": sections.swatch(index),
                "headline": sections.headline(run, found),
                "privacy": detail.privacy(run),
                "audit": audited,
                "results": results,
                "samples": detail.samples(found),
                "recipe": detail.recipe(run, shareable=shareable, alone=alone),
            }
        )
    css, script = (_source(name) for name in ("page.css", "script.js"))
    palette = "".join(f"--{name}:{style.COLOURS[name]};" for name in SERIES if name != "ink")
    css = css.replace("/* colours */", palette)
    return TEMPLATES.get_template("page.html").render(
        title=title or _title(runs),
        alone=alone,
        runs=shown,
        curves=curves,
        front=front,
        comparison=None if alone else sections.comparison(runs, measured),
        differences=None if alone else detail.recipe_differences(runs, shareable=shareable),
        data=_finite(data),
        css=Safe(css),
        script=Safe(script),
        policy=_policy(css, script),
        version=version.of(),
        made=datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC"),
    )


def _source(name: str) -> str:
    assert TEMPLATES.loader is not None
    return TEMPLATES.loader.get_source(TEMPLATES, name)[0]


def write(
    runs: Sequence[Run],
    path: Path,
    *,
    title: str = "",
    shareable: bool = False,
    note: Callable[[str], None] = lambda _: None,
    **options: Any,
) -> Path:
    """Measure runs and write their report as a new file.

    Args:
        runs: The runs.
        path: The file.
        title: As for `page`.
        shareable: As for `page`.
        note: Told what is wrong or missing, a sentence each.
        options: Those of `measure`.

    Raises:
        UserError: If there is such a file already, or it cannot be written.
    """
    new_file.check(path)
    measured = measure(runs, **options)
    for run, result in zip(runs, measured, strict=True):
        for remark in (*run.problems, *filter(None, [missing_metrics(run), result.missing])):
            note(f"{run.name}: {remark}")
    text = page(runs, measured, title=title, shareable=shareable)
    with new_file.writing(path) as file:
        file.write(text.encode("utf-8", errors="replace"))
    return path


def _title(runs: Sequence[Run]) -> str:
    models = list(dict.fromkeys(run.recipe.model.name for run in runs))
    sets = list(dict.fromkeys(run.data for run in runs))
    subject = f"{_listed(models)} on {_listed(sets)}"
    return subject if len(runs) == 1 else f"{len(runs)} runs: {subject}"


def _listed(names: Sequence[str]) -> str:
    shown = ", ".join(names[:3])
    return f"{shown} and {len(names) - 3} more" if len(names) > 3 else shown


def _policy(css: str, script: str) -> str:
    """Nothing may be loaded, and no script runs but the page's own."""

    def digest(text: str) -> str:
        return base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()

    return (
        "default-src 'none'; base-uri 'none'; form-action 'none'; img-src data:; "
        f"style-src 'sha256-{digest(css)}'; script-src 'sha256-{digest(script)}'"
    )


def _finite(value: Any) -> Any:
    """Values for JSON, which has no NaN, with as many digits as a chart shows."""
    if isinstance(value, float):
        return float(f"{value:.6g}") if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {str(key): _finite(item) for key, item in value.items()}
    return [_finite(item) for item in value] if isinstance(value, list | tuple) else value
