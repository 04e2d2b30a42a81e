"""What both renderers make of one description."""

from __future__ import annotations

import re
import xml.etree.ElementTree as ET
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from matplotlib.figure import Figure

from sfumato.charts import pareto, png, style, svg
from sfumato.charts.chart import RULE, SHAPES, Axis, Bars, Chart, Matrix, Series, Stop
from sfumato.charts.reliability import reliability


def a_chart(**changes: Any) -> Chart:
    items = (
        Bars(sides=((0, 1), (1, 2)), ends=((0, 2), (1, 3)), label="bars"),
        Series(points=((0, 1), (2, 3)), label="line", colour="orange", dash="dashed"),
        Series(points=((1, 2),), marker="diamond", width=0, hollow=True, spans=((1, 3),)),
        Series(points=((1.5, 0), (1.5, 4)), tag="a rule", **RULE),
    )
    whole: dict[str, Any] = {
        "x": Axis("across", 0, 2), "y": Axis("up", 0, 4), "items": items, "words": "a < b",
        "legend": "best",
    }  # fmt: skip
    return Chart(**whole | changes)


def elements(drawing: str, kind: str) -> list[ET.Element]:
    return [e for e in ET.fromstring(drawing).iter() if e.get("class", "").split()[:1] == [kind]]


def test_both_renderers_draw_everything() -> None:
    chart = a_chart()
    axes = Figure().add_subplot()
    png.paint(axes, chart)
    drawing, _ = svg.render([(chart, 100)], key="k")
    assert len(axes.patches) == len(elements(drawing, "bar")) == 2
    assert len(elements(drawing, "name")) == 1 and len(elements(drawing, "whisker")) == 1
    shown = {text.get_text() for text in axes.texts}
    assert "a rule" in shown and "a rule" in drawing
    assert [t.get_text() for t in axes.get_legend().get_texts()] == ["line", "bars"]
    assert axes.get_xlim() == (0, 2) and axes.get_ylim() == (0, 4)
    assert next(t.get_text() for t in axes.get_xticklabels()) == "0"


@pytest.mark.parametrize("sideways", [False, True])
@pytest.mark.parametrize("joined", [False, True])
def test_bars_of_every_kind_hold_their_words(sideways: bool, joined: bool) -> None:
    sides, ends = ((0, 1), (1, 2)), ((0, 3), (0, 0.5))
    bars = Bars(sides=sides, ends=ends, words=("in it", "beside"), sideways=sideways, joined=joined)
    along, across = Axis("value", 0, 4), Axis("", 2, 0, at=())
    chart = a_chart(x=along if sideways else across, y=across if sideways else along, items=(bars,))
    axes = Figure().add_subplot()
    png.paint(axes, chart)
    assert len(axes.patches) == (1 if joined else 2)
    assert [(t.get_text(), t.get_color()) for t in axes.texts] == [
        ("in it", "white"), ("beside", style.INK),
    ]  # fmt: skip
    assert [(t.xy if sideways else t.xy[::-1]) for t in axes.texts] == [(0, 0.5), (0.5, 1.5)]
    drawing, _ = svg.render([(chart, 100)], key="k")
    words = elements(drawing, "cell")
    assert [(e.text, "on-dark" in e.get("class", "")) for e in words] == [
        ("in it", True), ("beside", False),
    ]  # fmt: skip
    first, second = (
        {key: float(e.get(key, 0)) for key in ("x", "y", "width", "height")}
        for e in elements(drawing, "bar")
    )
    long, wide, place = ("width", "height", "y") if sideways else ("height", "width", "x")
    assert first[long] == pytest.approx(6 * second[long], abs=0.05)
    assert first[wide] == pytest.approx(second[wide], abs=0.01)
    assert (first[place] > second[place]) != sideways, "an axis may run the other way"


def test_the_tops_of_bars_that_lie_on_their_sides() -> None:
    bars = Bars(sides=((0, 1),), ends=((0, 2),), top_only=True, sideways=True)
    drawing, _ = svg.render([(a_chart(items=(bars,)), 100)], key="k")
    (line,) = elements(drawing, "line")
    assert line.get("x1") == line.get("x2") and line.get("y1") != line.get("y2")
    axes = Figure().add_subplot()
    png.paint(axes, a_chart(items=(bars,)))
    (drawn,) = axes.collections
    assert drawn.get_paths()[0].vertices.tolist() == [[2, 0], [2, 1]]


def test_spans_may_be_one_band() -> None:
    spans = ((0.5, 1.5), (2.5, 3.5))
    chart = a_chart(items=(Series(points=((0, 1), (2, 3)), spans=spans, band=True),))
    axes = Figure().add_subplot()
    png.paint(axes, chart)
    assert len(axes.collections) == len(axes.lines) == 1
    drawing, _ = svg.render([(chart, 100)], key="k")
    (band,) = elements(drawing, "bar")
    assert band.get("d", "").count("L") == 3 and not elements(drawing, "whisker")


@pytest.mark.parametrize("corner", ["upper left", "upper right", "lower left", "lower right"])
def test_a_tag_is_in_its_corner(corner: Any) -> None:
    chart = a_chart(items=(Series(points=((1, 2),), width=0, tag="word", corner=corner),))
    axes = Figure().add_subplot()
    png.paint(axes, chart)
    (text,) = axes.texts
    assert (text.get_va() == "top") == ("lower" in corner)
    assert (text.get_ha() == "right") == ("left" in corner)
    drawing, _ = svg.render([(chart, 100)], key="k")
    (name,), (mark,) = elements(drawing, "name"), elements(drawing, "mark")
    assert (float(name.get("y", 0)) > float(mark.get("cy", 0))) == ("lower" in corner)
    assert (float(name.get("x", 0)) < float(mark.get("cx", 0))) == ("left" in corner)


def test_names_that_read_upwards_have_room_below() -> None:
    x = Axis("layer", 0, 2, at=(0.0, 2.0), names=("a long name of a layer", "b"), upright=True)
    axes = Figure().add_subplot()
    png.paint(axes, a_chart(x=x))
    assert {t.get_rotation() for t in axes.get_xticklabels()} == {90}
    drawing, _ = svg.render([(a_chart(x=x), 100)], key="k")
    names = [e for e in elements(drawing, "tick") if "rotate" in e.get("transform", "")]
    (label,) = elements(drawing, "label")
    assert [e.text for e in names] == list(x.names)
    assert float(label.get("y", 0)) > float(names[0].get("y", 0)) + 6.5 * len(x.names[0])


def test_every_mark_without_a_line_is_drawn() -> None:
    chart = a_chart(items=(Series(points=tuple((k / 30, 1) for k in range(60)), width=0),))
    axes = Figure().add_subplot()
    png.paint(axes, replace(chart, items=(replace(chart.series[0], marker="circle"),)))
    assert axes.lines[0].get_markevery() == 1


@pytest.mark.parametrize("kind", ["png", "pdf", "svg"])
def test_rows_may_differ_in_length(tmp_path: Path, kind: str) -> None:
    path = tmp_path / f"c.{kind}"
    small = a_chart(title="small", small=True, legend="above")
    png.draw([[small, small], [a_chart()]], path, width=6, height=4, heights=(1, 2))
    head = {"png": b"\x89PNG", "pdf": b"%PDF", "svg": b"<?xml"}[kind]
    assert path.read_bytes().startswith(head)


def test_the_values_of_lines_are_given_to_the_script() -> None:
    _, data = svg.render([(a_chart(), 100)], key="k")
    (line,) = data["series"]
    assert (data["kind"], line["name"], line["points"]) == ("lines", "line", [[0, 1], [2, 3]])


def test_a_stop_is_placed_where_its_mark_is() -> None:
    chart = a_chart(
        items=(Series(points=((1, 2),), width=0),), stops=(Stop(1, 2, "title", ("said",), 4),)
    )
    drawing, data = svg.render([(chart, 100)], key="k")
    (mark,) = elements(drawing, "mark")
    (stop,) = data["stops"]
    assert stop["at"] == pytest.approx(
        [float(mark.get("cx", 0)), float(mark.get("cy", 0))], abs=0.01
    )
    assert (stop["title"], stop["lines"], stop["run"]) == ("title", ("said",), 4)


def test_names_stay_names_in_svg() -> None:
    evil = "\x1b</svg><script>alert(1)</script>\"'"
    chart = a_chart(words=evil, items=(Series(points=((1, 2),), width=0, tag=evil),))
    drawing, _ = svg.render([(chart, 100)], key="k")
    matrix, _ = svg.render_matrix(Matrix((evil, "b"), np.eye(2, dtype=int)), key="k")
    for made in (drawing, matrix):
        ET.fromstring(made)
        assert "<script" not in made and "\x1b" not in made and "\\u001b" in made


@pytest.mark.parametrize("shape", SHAPES)
def test_every_shape_can_be_drawn(shape: str) -> None:
    chart = a_chart(items=(Series(points=((1, 2),), width=0, marker=shape),))
    assert len(elements(svg.render([(chart, 100)], key="k")[0], "mark")) == 1
    png.paint(Figure().add_subplot(), chart)


@pytest.mark.parametrize("high", [1, 25, 1000, 123456])
def test_tick_labels_do_not_overlap(high: int, tmp_path: Path) -> None:
    chart = a_chart(x=Axis("step", 0, high, whole=True), y=Axis("", 0, 1e6), items=())
    drawing, _ = svg.render([(chart, 174)], key="k")
    places = [
        (float(e.get("x", 0)), len(e.text or ""))
        for e in elements(drawing, "tick")
        if "middle" in e.get("class", "")
    ]
    assert len(places) > 1
    for (x, n), (after, m) in pairwise(places):
        assert after - x > 6.5 * (n + m) / 2, "characters are at most so wide"
    left = min(float(e.get("x", 0)) - 6.5 * len(e.text or "") for e in elements(drawing, "tick"))
    assert left > 0
    with style.figure(4.6, 3.2, tmp_path / "c.png") as figure:
        axes = figure.add_subplot()
        png.paint(axes, chart)
        figure.draw_without_rendering()
        boxes = [label.get_window_extent() for label in axes.get_xticklabels()]
    assert all(a.x1 < b.x0 for a, b in pairwise(boxes))


def test_axes_that_are_equal_are_labelled_once(tmp_path: Path) -> None:
    seen: list[Any] = []
    inner = png.headline

    def watch(figure: Any, title: str) -> None:
        seen.extend(figure.axes)
        inner(figure, title)

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(png, "headline", watch)
        png.draw([[a_chart(), a_chart()]] * 2, tmp_path / "c.png", width=6, height=4)
    assert [axes.get_xlabel() for axes in seen] == ["", "", "across", "across"]
    assert [axes.get_ylabel() for axes in seen] == ["up", "", "up", ""]


def test_reliability_shows_which_bins_are_overconfident() -> None:
    diagram, sizes = reliability(
        np.array([0, 0.5, 1.0]), np.array([1, 3]), np.array([0.6, 0.5]), np.array([0.4, 0.9]),
        ece=0.1,
    )  # fmt: skip
    bars = {bar.label: bar for bar in diagram.items if isinstance(bar, Bars)}
    assert bars["overconfident"].sides == ((0.5, 1.0),)
    assert bars["overconfident"].ends == ((0.5, 0.9),)
    assert bars["underconfident"].ends == ((0.4, 0.6),)
    (counts,) = sizes.items
    assert isinstance(counts, Bars) and counts.ends == ((0.0, 0.25), (0.0, 0.75))
    drawing, data = svg.render([(diagram, 190), (sizes, 52)], key="k")
    assert data["stops"][1]["lines"] == ("3 images", "mean confidence 90.0 %", "accuracy 50.0 %")
    heights = [float(e.get("y", 0)) + float(e.get("height", 0)) for e in elements(drawing, "bar")]
    assert max(heights) == pytest.approx(data["across"][1], abs=0.01)


def test_empty_bins_are_no_trouble() -> None:
    diagram, sizes = reliability(
        np.array([0, 0.5, 1.0]), np.array([0, 3]), np.array([np.nan, 1]), np.array([np.nan, 1]),
        ece=0.0,
    )  # fmt: skip
    drawing, _ = svg.render([(diagram, 190), (sizes, 52)], key="k")
    assert not re.search("nan", drawing)
    for chart in (diagram, sizes):
        png.paint(Figure().add_subplot(), chart)


def test_a_front_is_flat_up_to_the_next_point() -> None:
    stairs = pareto.staircase(((3, 0.9), (1, 0.5), (2, 0.7)))
    assert stairs.points == ((1, 0.5), (2, 0.5), (2, 0.7), (3, 0.7), (3, 0.9))


@pytest.mark.parametrize(("epsilons", "log"), [((1, 3), False), ((1, 8), True)])
def test_epsilons_far_apart_are_on_a_logarithmic_scale(
    epsilons: tuple[float, float], log: bool
) -> None:
    series = Series(points=tuple((e, 0.5) for e in epsilons), spans=((0.4, 0.6), (0.3, 0.6)))
    chart = pareto.chart([series], x_label="ε", baseline=0.9)
    assert chart.x.log == log and chart.x.low < epsilons[0] and epsilons[1] < chart.x.high
    assert chart.y.low <= 0.3 and chart.y.high >= 0.9
