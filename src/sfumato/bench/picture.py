"""Pictures of a record: bars per model and K, and curves for `--scaling`."""

from __future__ import annotations

import math
import textwrap
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sfumato.bench import record_tables
from sfumato.bench.cases import CONTENDERS, ORDER, Case
from sfumato.bench.measurement import Measurement
from sfumato.bench.record import Record
from sfumato.bench.targets import FOREIGN, NOT_PRIVATE, OF_NOT_PRIVATE, ratio
from sfumato.charts import style
from sfumato.charts.chart import shortened

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

COLOURS = {
    "sfumato": style.BLUE,
    "not-private": style.LIGHT,
    "not-private-compiled": "#b5b5b5",
    "opacus": style.ORANGE,
    "opacus-ghost": style.RED,
    "vmap": style.GREEN,
    "jax-privacy": style.PURPLE,
}
_WIDTH = 0.84
_LONG_NAME = 28
"""Width of a group of bars; groups are one apart."""


def bars(record: Record, path: Path) -> bool:
    """Draw a panel per model and a group of bars per K; tell whether there was anything to draw."""
    main = [m for m in record.measurements if m.case.suite in ("main", "foreign", "unusual")]
    if not any(m.times for m in main):
        return False
    models = list(dict.fromkeys((m.case.name, m.case.precision) for m in main))
    who = [name for name in ORDER if any(m.contender == name for m in _shown(main))]
    columns = min(3, len(models))
    lines = math.ceil(len(models) / columns)
    groups = max(len(_groups(main, *key)) for key in models)
    width = min(13.0, max(5.5, columns * (1.6 + 0.42 * groups * len(who))))
    with style.figure(width, 0.9 + 3.0 * lines, path) as figure:
        panels = figure.subplots(lines, columns, squeeze=False).flatten().tolist()
        for (model, precision), axes in zip(models, panels, strict=False):
            _panel(axes, main, model, precision, _WIDTH / len(who))
        for axes in panels[len(models) :]:
            axes.set_visible(False)
        _legend(figure, who, any(_wanted(m.case) for m in main))
        _headline(
            figure,
            f"{record.where()}, {record.date[:10]}",
            "Views per second of whole training steps; on the bars, the share of training without "
            "privacy",
        )
    return True


def _headline(figure: Figure, *sentences: str) -> None:
    """Write small text above the panels, wrapped to the figure's width."""
    room = int(15 * figure.get_figwidth())
    lines = [line for sentence in sentences for line in textwrap.wrap(sentence, room)]
    figure.suptitle("\n".join(lines), x=0.01, ha="left", fontsize=8.5, color=style.GREY)


def _shown(main: Sequence[Measurement]) -> list[Measurement]:
    """The measurements in the picture, without contenders that do not support a case."""
    return [m for m in main if not m.unsupported]


def _groups(main: Sequence[Measurement], model: str, precision: str) -> list[Case]:
    """The cases of a panel."""
    cases: list[Case] = []
    for m in main:
        same = m.case.name == model and m.case.precision == precision
        if same and m.case not in cases:
            cases.append(m.case)
    return sorted(cases, key=lambda c: (c.views, c.rows))


def _panel(
    axes: Axes, main: Sequence[Measurement], model: str, precision: str, width: float
) -> None:
    cases = _groups(main, model, precision)
    plain = record_tables.baselines(main)
    top = max((m.quartiles()[1] for m in main if m.case in cases), default=1.0)
    for at, case in enumerate(cases):
        shown = [m for name in ORDER for m in _shown(main) if (m.case, m.contender) == (case, name)]
        for i, m in enumerate(shown):
            x = at + (i + 0.5 - len(shown) / 2) * width
            if m.speed is None:
                words = shortened(m.reason, 26)
                _write(axes, x, 0.015 * top, words, color=style.GREY, fontsize=6.5)
                continue
            _bar(axes, m, x, width, top, plain[id(m)])
            if m.contender == "sfumato":
                _target(axes, case, plain[id(m)], x, width)
    rows = {c.rows for c in cases}
    labels = [f"K = {c.views}" + (f"\n{c.rows} rows" if len(rows) > 1 else "") for c in cases]
    axes.set_xticks(range(len(cases)), labels)
    axes.set_xlim(-0.6, len(cases) - 0.4)
    axes.set_ylim(0, 1.08 * top)
    axes.yaxis.set_major_formatter(lambda value, _: record_tables.number(value) if value else "0")
    axes.grid(False, axis="x")
    detail = f"{precision}, {cases[0].rows} rows at once" if len(rows) == 1 else precision
    axes.set_title(model, fontsize=10.0 if len(model) <= _LONG_NAME else 7.5)
    axes.set_xlabel(detail, fontsize=7.5, color=style.GREY)


def _write(axes: Axes, x: float, y: float, words: str, **look: Any) -> None:
    full: dict[str, Any] = {"va": "bottom", "fontsize": 7.5} | look
    axes.text(x, y, words, rotation=90, ha="center", **full)


def _bar(
    axes: Axes, m: Measurement, x: float, width: float, top: float, plain: Measurement | None
) -> None:
    """Draw a bar with its quartiles; its share of `plain` inside, or above if there is no room."""
    speed = m.speed or 0.0
    low, high = m.quartiles()
    axes.bar(x, speed, 0.92 * width, color=COLOURS[m.contender])
    axes.errorbar(
        x, speed, [[max(0.0, speed - low)], [max(0.0, high - speed)]],
        color=style.INK, linewidth=0.8, capsize=1.5,
    )  # fmt: skip
    share = ratio(m, plain)
    if share is None or m is plain:
        return
    words = f"{share:.2f}" if share >= 0.1 else f"{share:.3f}"
    bold = "bold" if m.contender == "sfumato" else "normal"
    if speed > 0.3 * top:
        _write(axes, x, 0.04 * top, words, color="white", fontweight=bold, fontsize=8.5)
    else:
        _write(axes, x, max(high, speed) + 0.02 * top, words, fontweight=bold)


def _target(axes: Axes, case: Case, plain: Measurement | None, x: float, width: float) -> None:
    """Draw a short line at the target of sfumato's bar."""
    wanted = _wanted(case)
    if wanted is not None and plain is not None and plain.speed:
        level = wanted * plain.speed
        ends = [x - 0.6 * width, x + 0.6 * width]
        axes.plot(ends, [level, level], color=style.INK, linewidth=1.2)


def _wanted(case: Case) -> float | None:
    if case.precision != "bfloat16":
        return None
    wanted = FOREIGN if case.suite == "foreign" else OF_NOT_PRIVATE.get(case.model, {})
    return wanted.get(case.views)


def _legend(figure: Any, who: Sequence[str], targets: bool) -> None:
    from matplotlib.lines import Line2D
    from matplotlib.patches import Patch

    handles: list[Any] = [Patch(color=COLOURS[name], label=CONTENDERS[name]) for name in who]
    if targets:
        handles.append(Line2D([], [], color=style.INK, linewidth=1.2, label="target"))
    figure.legend(handles=handles, loc="outside lower left", ncols=min(8, len(handles)))


_AXES = {
    "rows": ("Physical batch", "rows at once"),
    "views": ("Views per example", "K"),
    "width": ("Width of the network", "width factor"),
}


def curves(record: Record, path: Path) -> bool:
    """Plot views per second against physical batch, K and width; tell if there were any."""
    suites = [s for s in _AXES if any(m.case.suite == s and m.times for m in record.measurements)]
    if not suites:
        return False
    with style.figure(1.4 + 3.6 * len(suites), 3.7, path) as figure:
        panels = figure.subplots(1, len(suites), squeeze=False).flatten().tolist()
        for suite, axes in zip(suites, panels, strict=True):
            _curve(axes, [m for m in record.measurements if m.case.suite == suite], suite)
        panels[0].set_ylabel("views per second")
        panels[0].legend(loc="lower right")
        _headline(figure, f"{record.where()}, {record.date[:10]}")
    return True


def _position(case: Case) -> int:
    if case.suite == "width":
        return int(case.model.rpartition("-")[2])
    return case.views if case.suite == "views" else case.rows


def _curve(axes: Axes, measured: Sequence[Measurement], suite: str) -> None:
    markers = dict(zip(ORDER, "sso^vDP", strict=True))
    ticks = sorted({_position(m.case) for m in measured})
    for name in ORDER:
        own = sorted((m for m in measured if m.contender == name and m.times), key=_key)
        if not own:
            continue
        x = [_position(m.case) for m in own]
        colour = style.GREY if name in NOT_PRIVATE else COLOURS[name]
        axes.plot(
            x, [m.speed or 0.0 for m in own], color=colour, marker=markers[name], markersize=4.5,
            linestyle="--" if name in NOT_PRIVATE else "-", label=CONTENDERS[name],
        )  # fmt: skip
        low, high = zip(*(m.quartiles() for m in own), strict=True)
        axes.fill_between(x, low, high, color=colour, alpha=0.15, linewidth=0)
    title, label = _AXES[suite]
    case = measured[0].case
    fixed = {
        "rows": f"{case.model}, K = {case.views}",
        "views": f"{case.model}, {case.rows:,} rows",
        "width": f"{case.model.rpartition('-')[0]}, K = {case.views}, {case.rows:,} rows",
    }
    axes.set(xscale="log", xlabel=f"{label}   ({fixed[suite]})")
    axes.set_xticks(ticks, [str(t) for t in ticks])
    axes.minorticks_off()
    axes.set_ylim(bottom=0)
    axes.yaxis.set_major_formatter(lambda value, _: record_tables.number(value) if value else "0")
    axes.set_title(title)


def _key(m: Measurement) -> int:
    return _position(m.case)
