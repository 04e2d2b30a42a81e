"""The chart of attacks under the curve that a guarantee allows."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from sfumato.charts import png, svg
from sfumato.charts.trade_off import trade_off

RATES = np.array([0.0, 0.0, 0.1, 0.1, 1.0]), np.array([0.0, 0.2, 0.2, 0.6, 1.0])
ALL = np.array([0.0, 0.0, 1.0]), np.array([0.0, 1.0, 1.0])


def test_curves_are_read_off_from_the_smallest_rate_on() -> None:
    chart = trade_off({"attack": RATES}, ALL, claim="ε = 3", lowest=0.01)
    guess, allowed, attack = (dict(s.points) for s in chart.series)
    assert set(guess.items()) == {(0.01, 0.01), (1.0, 1.0)}
    assert set(allowed.values()) == {1.0}
    xs, ys = np.array(list(attack)), np.array(list(attack.values()))
    assert xs[0] == pytest.approx(0.01) and xs[-1] == pytest.approx(1.0)
    assert set(ys[xs < 0.099]) == {0.2}
    np.testing.assert_allclose(ys[xs > 0.101], 0.6 + 0.4 * (xs[xs > 0.101] - 0.1) / 0.9)
    assert chart.x.at == (0.01, 0.1, 1.0) and chart.x.names == ("1 %", "10 %", "100 %")


def test_both_renderers_draw_it(tmp_path: Path) -> None:
    chart = trade_off({"attack": RATES}, ALL, claim="ε = 3", lowest=1 / 359, title="An attack")
    png.draw([[chart]], tmp_path / "a.png", width=4, height=4)
    with Image.open(tmp_path / "a.png") as image:
        assert np.asarray(image.convert("L")).std() > 1
    drawing, data = svg.render([(chart, 200)], key="attack")
    assert "<svg" in drawing and "false positive rate" in drawing and data
