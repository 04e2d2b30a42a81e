"""The report: one HTML file that needs nothing else, and asks nobody for anything."""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Sequence
from datetime import UTC, datetime
from importlib import resources
from typing import Any

from sfumato import version
from sfumato.charts import style
from sfumato.charts.chart import SERIES
from sfumato.report import detail, sections
from sfumato.report.markup import Child, Safe, data_script, element, join
from sfumato.report.measure import Measured
from sfumato.report.runs import Run


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
    title = title or _title(runs)
    data: dict[str, Any] = {}
    each, more = _details(runs, measured, shareable=shareable)
    data |= more
    body = [_headline(runs, measured)]
    if len(runs) == 1:
        body.append(_section("Privacy", detail.privacy(runs[0]), name="privacy"))
    chart, more = sections.curves(runs, shareable=shareable)
    data |= more
    body.append(_section("Learning curves", chart, name="curves"))
    chart, more = sections.front(runs, measured)
    data |= more
    body.append(_section("Accuracy against privacy", chart, name="front"))
    body.append(each)
    if len(runs) > 1:
        differing = detail.recipe_differences(runs, shareable=shareable)
        body.append(_section("What differs between the recipes", differing, name="recipes"))
    css = _asset("page.css").replace("/* colours */", _palette())
    script = _asset("script.js")
    head = join(
        [
            element("meta", {"charset": "utf-8"}),
            element(
                "meta", {"http-equiv": "Content-Security-Policy", "content": _policy(css, script)}
            ),
            element("meta", {"name": "viewport", "content": "width=device-width, initial-scale=1"}),
            element("meta", {"name": "color-scheme", "content": "light dark"}),
            element("meta", {"name": "generator", "content": f"sfumato {version.of()}"}),
            element("meta", {"name": "referrer", "content": "no-referrer"}),
            element("title", None, title),
            element("style", None, Safe(css)),
        ]
    )
    document = element(
        "body",
        None,
        _header(runs, title),
        element("main", None, *body),
        _footer(),
        element("div", {"id": "tip", "role": "status", "aria-live": "polite", "hidden": True}),
        data_script("data", data),
        element("script", None, Safe(script)),
    )
    html = element("html", {"lang": "en"}, element("head", None, head), document)
    return f"<!doctype html>\n{html}\n"


def _title(runs: Sequence[Run]) -> str:
    models = list(dict.fromkeys(run.recipe.model.name for run in runs))
    sets = list(dict.fromkeys(run.data for run in runs))
    subject = f"{_listed(models)} on {_listed(sets)}"
    return subject if len(runs) == 1 else f"{len(runs)} runs: {subject}"


def _listed(names: Sequence[str]) -> str:
    shown = ", ".join(names[:3])
    return f"{shown} and {len(names) - 3} more" if len(names) > 3 else shown


def _header(runs: Sequence[Run], title: str) -> Safe:
    theme = element(
        "button",
        {"type": "button", "id": "theme", "class": "scripted", "aria-pressed": "false"},
        "dark",
    )
    bar = element(
        "div", {"class": "masthead"}, element("span", {"class": "word"}, "sfumato"), theme
    )
    under: list[Child] = []
    if len(runs) == 1:
        run = runs[0]
        under = [run.name, " ", sections.status(run)]
    return element(
        "header",
        None,
        bar,
        element("h1", None, title),
        element("p", {"class": "subtitle"}, *under) if under else None,
    )


def _headline(runs: Sequence[Run], measured: Sequence[Measured]) -> Safe:
    if len(runs) == 1:
        return element("section", {"class": "headline"}, sections.headline(runs[0], measured[0]))
    return _section("The runs", sections.comparison(runs, measured), name="runs")


def _details(
    runs: Sequence[Run], measured: Sequence[Measured], *, shareable: bool
) -> tuple[Safe, dict[str, Any]]:
    """Each run's guarantee, results, samples and recipe; one at a time where there are many."""
    data: dict[str, Any] = {}
    panels = []
    for index, (run, found) in enumerate(zip(runs, measured, strict=True)):
        tested, more = detail.test_results(run, found, f"run{index}")
        data |= more
        shown = detail.samples(found)
        parts: list[Child] = [
            element("h3", None, "Privacy"),
            detail.privacy(run),
            element("h3", None, "Results on the test set"),
            tested,
        ]
        if shown is not None:
            parts += [element("h3", None, "Sample predictions"), shown]
        parts += [
            element("h3", None, "Recipe"),
            detail.recipe(run, shareable=shareable, alone=len(runs) == 1),
        ]
        if len(runs) == 1:
            return join(
                [
                    _section("Results on the test set", tested, name="results"),
                    None
                    if shown is None
                    else _section("Sample predictions", shown, name="samples"),
                    _section("Recipe", detail.recipe(run, shareable=shareable), name="recipe"),
                ]
            ), data
        heading = element("h3", {"class": "run-title"}, sections.swatch(index), " ", run.name)
        tiles = sections.headline(run, found)
        panel = {"id": f"panel{index}", "class": "run-panel", "aria-labelledby": f"tab{index}"}
        panels.append(element("div", panel, heading, tiles, *parts))
    tabs = element(
        "div",
        {"class": "tabs scripted", "role": "tablist", "aria-label": "Run"},
        *(
            element(
                "button",
                {"type": "button", "role": "tab", "id": f"tab{index}",
                 "aria-controls": f"panel{index}", "aria-selected": "false"},
                sections.swatch(index), run.name,
            )
            for index, run in enumerate(runs)
        ),
    )  # fmt: skip
    return _section("Each run in detail", join([tabs, *panels]), name="detail"), data


def _section(title: str, body: Child, *, name: str) -> Safe:
    return element(
        "section", {"id": name, "aria-labelledby": f"{name}-title"},
        element("h2", {"id": f"{name}-title"}, title), body,
    )  # fmt: skip


def _footer() -> Safe:
    made = datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC")
    words = (
        f"Made by sfumato {version.of()} on {made}. ε was computed from the runs' ledgers "
        "while this page was made. The page loads nothing from anywhere."
    )
    return element("footer", None, element("p", None, words))


def _asset(name: str) -> str:
    return resources.files("sfumato.report").joinpath("assets", name).read_text(encoding="utf-8")


def _palette() -> str:
    return "".join(f"--{name}:{style.COLOURS[name]};" for name in SERIES if name != "ink")


def _policy(css: str, script: str) -> str:
    """Nothing may be loaded, and no script runs but the page's own."""

    def digest(text: str) -> str:
        return base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()

    return (
        "default-src 'none'; base-uri 'none'; form-action 'none'; img-src data:; "
        f"style-src 'sha256-{digest(css)}'; script-src 'sha256-{digest(script)}'"
    )
