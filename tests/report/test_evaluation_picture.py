from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from matplotlib.figure import Figure
from PIL import Image

from sfumato.analysis import Evaluation, evaluate
from sfumato.charts import png
from sfumato.charts.chart import Bars, Matrix
from sfumato.report import discrimination
from sfumato.report import evaluation_picture as picture
from thinning import one_in, with_slow

pytestmark = pytest.mark.usefixtures("real_pictures")


def an_evaluation(classes: int, n: int = 500, name: str = "class {}") -> Evaluation:
    rng = np.random.default_rng(classes)
    labels = rng.integers(0, max(1, classes - 1), n)
    logits = rng.normal(size=(n, classes))
    logits[np.arange(n), labels] += 2
    powers = np.exp(logits)
    return evaluate(
        powers / powers.sum(1, keepdims=True), labels, [name.format(k) for k in range(classes)]
    )


@pytest.mark.parametrize("classes", with_slow([2, 20, 130], 20, 130))
@pytest.mark.filterwarnings("error")
def test_any_number_of_classes(tmp_path: Path, classes: int) -> None:
    picture.draw(an_evaluation(classes), tmp_path / "e.png", title="a model on data, test")
    with Image.open(tmp_path / "e.png") as image:
        assert image.format == "PNG" and image.width > image.height > 700
        assert max(image.size) <= 3600
        assert np.asarray(image.convert("L")).std() > 10


@pytest.mark.parametrize(
    "name", one_in(4, ["$^{}^$", "[b]{}", "类 {}", "a name that never seems to end {}"])
)
@pytest.mark.filterwarnings("error")
def test_any_class_name(tmp_path: Path, name: str) -> None:
    picture.draw(an_evaluation(3, name=name), tmp_path / "e.png")
    assert (tmp_path / "e.png").stat().st_size > 10_000


@pytest.mark.filterwarnings("error")
def test_one_example(tmp_path: Path) -> None:
    picture.draw(evaluate([[1.0, 0.0]], [1], ["a", "b"]), tmp_path / "e.png")
    assert (tmp_path / "e.png").exists()


def test_matrix_holds_the_counts_and_bars_the_recall() -> None:
    found = an_evaluation(5)
    axes = Figure().add_subplot()
    png.paint_matrix(axes, Matrix(found.classes, found.confusion), 4.4)
    written = {
        (round(text.get_position()[1]), round(text.get_position()[0])): int(text.get_text())
        for text in axes.texts
    }
    assert written == {index: count for index, count in np.ndenumerate(found.confusion) if count}
    chart = picture.recall(found)
    (bars,) = (item for item in chart.items if isinstance(item, Bars))
    assert [end for _, end in bars.ends] == np.nan_to_num(found.recall).tolist()
    assert bars.sides[0] == (-0.5, 0.5) and bars.words[-1] == "no images"
    assert (chart.y.low, chart.y.high) == axes.get_ylim(), "a bar is beside its row"
    assert {x for x, _ in chart.series[0].points} == {found.accuracy}


@pytest.mark.parametrize(("classes", "curves"), [(3, 2), (14, 10)])
def test_curves_are_drawn_with_their_areas(tmp_path: Path, classes: int, curves: int) -> None:
    """One class of `an_evaluation` has no images, and so no curve."""
    found = an_evaluation(classes)
    roc, both = discrimination.charts(found)
    named = [s for s in roc.series if s.label]
    assert [s.label for s in named] == [found.classes[c.index] for c in found.curves]
    assert len(named) == curves
    for s, c in zip(named, found.curves, strict=True):
        assert s.points[0] == (0.0, 0.0) and s.points[-1] == (1.0, 1.0)
        assert s.legend == f"{found.classes[c.index]} ({found.auroc[c.index]:.3f})"
        x, y = np.array(s.points).T
        assert np.trapezoid(y, x) == pytest.approx(found.auroc[c.index], abs=0.01)
    for s, c in zip(both.series, found.curves, strict=True):
        x, y = np.array(s.points).T
        area = float((np.diff(x) * y[1:]).sum())
        assert area == pytest.approx(found.average_precision[c.index], abs=0.01)
    assert ("lowest AUROC" in roc.title) == (classes == 14)
