"""The report page in a real browser."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from browser import Browser, browser, find
from made_runs import make

from sfumato.report.measure import choose, measure
from sfumato.report.page import page
from sfumato.report.runs import gather

pytestmark = pytest.mark.skipif(find() is None, reason="needs Chromium or Chrome")


@pytest.fixture(scope="module")
def pages(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    root = tmp_path_factory.mktemp("pages")
    evil = "<img src=x onerror=alert(1)>"
    runs = gather(
        [
            make(root / "a", sigma=2.0, accuracy=0.8),
            make(root / "b", sigma=3.0, accuracy=0.7, changes={"optimizer.lr": 0.5}),
            make(root / evil, sigma=1.5, accuracy=0.6),
            make(root / "half", finished=False),
            make(root / "bare", private=False, accuracy=0.95),
        ]
    )
    measured = measure(runs, samples=choose(["test:4"]))
    written = {}
    for name, count in (("one", 1), ("many", 5)):
        written[name] = root / f"{name}.html"
        written[name].write_text(page(runs[:count], measured[:count]), encoding="utf-8")
    return written


@pytest.fixture(scope="module")
def chromium(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    with browser(tmp_path_factory.mktemp("profile")) as opened:
        yield opened


def shown(b: Browser, selector: str) -> int:
    return int(
        b.value(
            f"[...document.querySelectorAll({selector!r})].filter(e => e.getClientRects().length)"
            ".length"
        )
    )


@pytest.mark.parametrize("name", ["one", "many"])
def test_opens_without_complaint_or_request(
    chromium: Browser, pages: dict[str, Path], name: str
) -> None:
    chromium.size(1200, 900)
    chromium.open(pages[name])
    assert chromium.complaints() == []
    assert [url for url in chromium.requests() if not url.startswith(("file:", "data:"))] == []
    assert shown(chromium, "svg.chart") >= 6
    for part in ("#curves path.line", "#front .mark", "svg.square path", ".bar", ".sample img"):
        assert shown(chromium, part) > 0, part
    assert chromium.value("[...document.images].every(i => i.naturalWidth > 0)")
    assert chromium.value(
        "[...document.querySelectorAll('svg.chart')].every(s => s.getAttribute('aria-label')"
        " && s.getAttribute('role') === 'img' && s.querySelector('desc'))"
    )
    assert not chromium.value(
        "/NaN|undefined|Infinity/.test(document.querySelector('main').innerHTML)"
    )


@pytest.mark.parametrize("name", ["one", "many"])
@pytest.mark.parametrize("width", [360, 768, 1200])
def test_never_wider_than_the_screen(
    chromium: Browser, pages: dict[str, Path], name: str, width: int
) -> None:
    chromium.size(width, 800, phone=width < 500)
    chromium.open(pages[name])
    assert chromium.value("document.documentElement.scrollWidth") <= width
    chromium.value("document.querySelectorAll('details').forEach(d => { d.open = true; })")
    assert chromium.value("document.documentElement.scrollWidth") <= width


def test_axis_switch(chromium: Browser, pages: dict[str, Path]) -> None:
    chromium.size(1200, 900)
    chromium.open(pages["one"])
    assert (shown(chromium, "[data-x=step]"), shown(chromium, "[data-x=epsilon]")) == (3, 0)
    chromium.value("document.querySelector('[data-axis=epsilon]').focus()")
    chromium.value("document.activeElement.click()")
    assert (shown(chromium, "[data-x=step]"), shown(chromium, "[data-x=epsilon]")) == (0, 3)
    pressed = "document.querySelector('[data-axis=epsilon]').getAttribute('aria-pressed')"
    assert chromium.value(pressed) == "true"


def test_legend_hides_a_run_everywhere(chromium: Browser, pages: dict[str, Path]) -> None:
    chromium.size(1200, 900)
    chromium.open(pages["many"])
    before = shown(chromium, "[data-run='1']"), shown(chromium, "[data-run='0']")
    assert before[0] >= 4
    chromium.value("document.querySelector('[data-toggle=\"1\"]').click()")
    assert shown(chromium, "[data-run='1']") == 0
    assert shown(chromium, "[data-run='0']") == before[1]
    chromium.value("document.querySelector('[data-toggle=\"1\"]').click()")
    assert shown(chromium, "[data-run='1']") == before[0]


def test_hover_and_arrow_keys_tell_values(chromium: Browser, pages: dict[str, Path]) -> None:
    chromium.size(1200, 900)
    chromium.open(pages["many"])
    chart = "document.querySelector('[data-chart=accuracy-step]')"
    chromium.value(f"{chart}.scrollIntoView({{block: 'center'}})")
    box = chromium.value(
        f"(b => [b.left, b.top, b.width, b.height])({chart}.getBoundingClientRect())"
    )
    chromium.hover(box[0] + 0.6 * box[2], box[1] + 0.5 * box[3])
    tip = chromium.value("document.getElementById('tip').innerText")
    assert "step" in tip and "a, training batches:" in tip and "%" in tip
    assert "<img src=x" in tip
    chromium.hover(1, 1)
    assert chromium.value("document.getElementById('tip').hidden")
    chromium.value("document.querySelector('[data-chart=run0-confusion]').focus()")
    chromium.key("ArrowRight")
    chromium.key("ArrowDown")
    tip = chromium.value("document.getElementById('tip').innerText")
    assert "true: 1" in tip and "predicted: 0" in tip
    chromium.value("document.querySelector('[data-chart=front-0]').focus()")
    chromium.key("ArrowRight")
    assert "accuracy 80.0 %" in chromium.value("document.getElementById('tip').innerText")
    assert chromium.complaints() == []


def test_sorting(chromium: Browser, pages: dict[str, Path]) -> None:
    chromium.size(1200, 900)
    chromium.open(pages["many"])
    column = "[...document.querySelectorAll('#runs tbody tr')].map(r => r.cells[1].textContent)"
    first = "document.querySelectorAll('#runs thead button')[1]"
    chromium.value(f"{first}.click()")
    assert chromium.value(column) == ["60.0 %", "70.0 %", "80.0 %", "95.0 %", "–"]
    chromium.value(f"{first}.click()")
    assert chromium.value(column)[1:3] == ["95.0 %", "80.0 %"]
    head = "document.querySelectorAll('#runs thead th')[1].getAttribute('aria-sort')"
    assert chromium.value(head) == "descending"


def test_tabs_show_one_run(chromium: Browser, pages: dict[str, Path]) -> None:
    chromium.size(1200, 900)
    chromium.open(pages["many"])
    assert shown(chromium, ".run-panel") == 1 and shown(chromium, "#panel0") == 1
    chromium.value("document.getElementById('tab0').focus()")
    chromium.key("ArrowRight")
    assert shown(chromium, "#panel1") == 1 and shown(chromium, "#panel0") == 0
    assert chromium.value("document.activeElement.id") == "tab1"


def test_themes(chromium: Browser, pages: dict[str, Path]) -> None:
    chromium.size(1200, 900)
    background = "getComputedStyle(document.body).backgroundColor"
    chromium.scheme("dark")
    chromium.open(pages["one"])
    dark = chromium.value(background)
    chromium.value("document.getElementById('theme').click()")
    light = chromium.value(background)
    chromium.scheme("light")
    chromium.open(pages["one"])
    assert chromium.value(background) == light != dark


def test_prints_every_run_on_white(chromium: Browser, pages: dict[str, Path]) -> None:
    chromium.size(1200, 900)
    chromium.scheme("dark")
    chromium.open(pages["many"])
    assert len(chromium.pdf()) > 20_000
    chromium.scheme("dark", media="print")
    assert shown(chromium, ".run-panel") == 5 and shown(chromium, ".tabs") == 0
    assert chromium.value("getComputedStyle(document.body).backgroundColor") == "rgb(255, 255, 255)"
    chromium.scheme("light")


def test_works_without_script(chromium: Browser, pages: dict[str, Path]) -> None:
    chromium.size(1200, 900)
    chromium.call("Emulation.setScriptExecutionDisabled", value=True)
    try:
        chromium.open(pages["many"])
        assert shown(chromium, ".run-panel") == 5 and shown(chromium, "button.key") == 0
        assert shown(chromium, "[data-x=epsilon] svg") == 3
    finally:
        chromium.call("Emulation.setScriptExecutionDisabled", value=False)


def test_no_script_but_the_page_s_own_runs(chromium: Browser, pages: dict[str, Path]) -> None:
    chromium.size(1200, 900)
    chromium.open(pages["one"])
    chromium.value(
        "(s => { s.textContent = 'window.stranger = 1'; document.body.append(s); })"
        "(document.createElement('script'))"
    )
    chromium.value(
        "document.body.append(Object.assign(new Image(), {src: 'http://127.0.0.1:9/x'}))"
    )
    assert chromium.value("window.stranger === undefined")
    assert sum("Content Security Policy" in str(c) for c in chromium.complaints()) == 2


def test_names_of_points_do_not_cover_each_other(chromium: Browser, pages: dict[str, Path]) -> None:
    chromium.size(1200, 900)
    chromium.open(pages["many"])
    boxes = chromium.value(
        "[...document.querySelectorAll('#front .name')].map(e => e.getBoundingClientRect())"
        ".map(b => [b.left, b.top, b.right, b.bottom])"
    )
    assert len(boxes) == 3
    for k, a in enumerate(boxes):
        for b in boxes[:k]:
            assert a[0] >= b[2] or b[0] >= a[2] or a[1] >= b[3] or b[1] >= a[3]
