"""The sections about one run: its guarantee, its results, sample predictions, its recipe."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from sfumato.privacy import statement_chapters
from sfumato.privacy.guarantee import Guarantee
from sfumato.privacy.statement import upwards
from sfumato.recipe import Recipe, flat
from sfumato.report import discrimination, result_charts
from sfumato.report import privacy as told
from sfumato.report.markup import Child, Safe, details, element, inline, join, markdown, table
from sfumato.report.measure import Measured, disagreement
from sfumato.run import Run
from sfumato.text import NONE, count, percent


def privacy(run: Run) -> Safe:
    """The guarantee: words, meter, numbers, and what is not covered."""
    cautions = [element("li", None, inline(line)) for line in told.warnings(run)]
    g = run.guarantee
    parts: list[Child] = [
        element("ul", {"class": "cautions"}, *cautions) if cautions else None,
        element("p", {"class": "lead"}, *_raised(told.lead(run))),
    ]
    if g is not None and g.private:
        numbers = [(name, inline(value)) for name, value in statement_chapters.rows(g)]
        parts += [
            _meter(g),
            table([], numbers, caption="The guarantee in numbers", classes="facts"),
        ]
    for title, text in (
        statement_chapters.quoted(g, ended=run.finished) if g is not None else {}
    ).items():
        parts += [element("h4", None, title), markdown(text)]
    return join(parts)


def _raised(text: str) -> list[Child]:
    """The same words with exponents where they belong."""
    first, *rest = text.split("e^ε")
    return [first, *(part for after in rest for part in (Safe("e<sup>ε</sup>"), after))]


def _meter(g: Guarantee) -> Safe:
    """Epsilon spent of the budget, as a bar."""
    budget = g.budget or g.spent
    share = min(1.0, g.spent / budget) if budget else 0.0
    words = f"ε {upwards(g.spent, places=3)} of {budget:g} spent"
    bar = element(
        "svg",
        {
            "viewBox": "0 0 400 10",
            "preserveAspectRatio": "none",
            "role": "img",
            "aria-label": words,
        },
        element("rect", {"width": 400, "height": 10, "class": "left"}),
        element("rect", {"width": 400 * share, "height": 10, "class": "used"}),
    )
    return element("div", {"class": "meter"}, bar, element("span", None, words))


def test_results(run: Run, measured: Measured, key: str) -> tuple[Safe, dict[str, Any]]:
    """Confusion matrix, reliability, curves and each class on the test set."""
    e = measured.evaluation
    if e is None:
        return element("p", {"class": "note"}, measured.missing), {}
    matrix, matrix_data = result_charts.confusion(e, f"{key}-confusion")
    sure, sure_data = result_charts.reliability(e, f"{key}-reliability")
    curves, curve_data = result_charts.curves(e, key)
    note = None
    if words := disagreement(run, measured):
        note = element("ul", {"class": "cautions"}, element("li", None, words))
    elif measured.data:
        words = f"On the test set of '{measured.data}', which was named in place of the run's data."
        note = element("p", {"class": "note"}, words)
    numbers = (
        ("accuracy", discrimination.overall(e, "accuracy")),
        ("balanced accuracy", discrimination.overall(e, "balanced_accuracy")),
        *discrimination.rows(e),
        ("ECE", f"{e.ece:.4f}"),
        ("Brier score", f"{e.brier:.4f}"),
        ("NLL", f"{e.nll:.4f}"),
        ("images", count(e.n)),
    )
    strip = (
        element("div", None, element("dt", None, name), element("dd", None, value))
        for name, value in numbers
    )
    reading = (
        f"Expected calibration error {e.ece:.3f} in {len(e.reliability.counts)} bins, Brier score "
        f"{e.brier:.3f} (0 is perfect, 2 the worst). A bar below its mark was too sure of itself, "
        "one above it not sure enough; below, how many images have that confidence."
    )
    panels = (
        element("figure", {"class": "panel wide"}, element("h4", None, "Confusion matrix"), matrix),
        element("figure", {"class": "panel"}, element("h4", None, "Reliability"), sure,
                element("figcaption", {"class": "note"}, reading)),
        *curves,
    )  # fmt: skip
    rows = [
        [name, percent(e.precision[k]), percent(e.recall[k]), percent(e.f1[k]),
         str(int(e.support[k]))]
        for k, name in enumerate(e.classes)
    ]  # fmt: skip
    head = ["class", "precision", "recall", "F1", "support"]
    classes = table(head, rows, caption="Results by class", classes="numbers sortable classes")
    ranked = result_charts.against_the_rest(e)
    by_class = (
        join([element("h4", None, "By class"), classes, ranked])
        if len(rows) <= 30
        else details(f"By class: {len(rows)} classes", classes, ranked)
    )
    said = f"AUROC, average precision and sensitivity: {discrimination.meaning(e)}."
    sentences = (said, *discrimination.notes(e), *filter(None, [measured.temperature]))
    remarks = element("p", {"class": "note"}, " ".join(sentences))
    body = join(
        [note, element("dl", {"class": "strip"}, *strip), remarks,
         element("div", {"class": "panels"}, *panels), by_class]
    )  # fmt: skip
    data = {f"{key}-reliability": sure_data} | curve_data
    return body, data | ({f"{key}-confusion": matrix_data} if matrix_data else {})


def samples(measured: Measured) -> Safe | None:
    """Sample predictions, right and wrong ones labelled as such."""
    if not measured.samples:
        return None
    words = {True: "✓ correct", False: "✗ wrong", None: "class not known"}
    kinds = {True: "right", False: "wrong", None: "open"}
    cards = []
    for s in measured.samples:
        was = f"predicted {s.predicted}" + (f", is {s.true}" if s.true is not None else "")
        cards.append(
            element(
                "figure",
                {"class": f"sample {kinds[s.right]}"},
                element("img", {"src": s.image, "alt": f"{s.name}: {was}", "width": 96,
                                "height": 96}),
                element("figcaption", None, element("strong", None, words[s.right]),
                        f"predicted {s.predicted}, {100 * s.confidence:.0f} %",
                        element("span", {"class": "was"}, f"is {s.true}")
                        if s.right is False else None),
            )
        )  # fmt: skip
    note = (
        "These images are in this page exactly as they are: whoever has the page has them. They "
        "were chosen by whoever made it."
    )
    grid = element("div", {"class": "samples"}, *cards)
    return join([grid, element("p", {"class": "note"}, note)])


def without_seed(run: Run) -> Recipe:
    """The recipe without the seed from which a private run's noise follows."""
    if run.private and run.seeded:
        return run.recipe.replace({"training.seed": None})
    return run.recipe


def recipe(run: Run, *, shareable: bool = False, alone: bool = True) -> Safe:
    """The recipe as a file; it is printed too where the run is shown alone."""
    shown = without_seed(run) if shareable else run.recipe
    code = element("pre", {"tabindex": "0"}, element("code", None, shown.to_toml()))
    return details("The recipe, complete, as TOML", code, classes="print" if alone else "")


def recipe_differences(runs: Sequence[Run], *, shareable: bool = False) -> Safe:
    """Only the settings in which the runs differ."""
    shown = [without_seed(run) if shareable else run.recipe for run in runs]
    each = [flat(recipe.to_dict()) for recipe in shown]
    names = list(dict.fromkeys(name for settings in each for name in settings))
    rows = []
    for name in names:
        values = [settings.get(name, NONE) for settings in each]
        if name not in ("name", "about") and any(value != values[0] for value in values):
            rows.append([element("code", None, name), *map(_value, values)])
    if not rows:
        return element("p", {"class": "note"}, "The recipes of these runs are the same.")
    return table(["setting", *(run.name for run in runs)], rows, caption="Settings that differ")


def _value(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)
