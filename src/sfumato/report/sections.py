"""The sections about all runs of a report: headline, comparison, curves, front."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from sfumato.charts import svg
from sfumato.privacy.statement import upwards
from sfumato.report import learning, privacy_front
from sfumato.report.markup import Child, Safe, details, element, inline, join, table
from sfumato.report.measure import Measured, disagreement
from sfumato.report.runs import tasks, together
from sfumato.run import Run
from sfumato.text import NONE, count, duration, percent, power


def headline(run: Run, measured: Measured) -> Safe:
    """The headline of a run: network, data, accuracy and guarantee."""
    spent, p = run.spent, run.recipe.privacy
    if not run.private:
        price, under = "∞", "ε: not private"
    elif spent is None:
        price, under = "?", "ε: unknown"
    else:
        price = upwards(spent, places=2) if spent >= 0.1 else upwards(spent, 2)
        under = f"ε at δ = {power(p.delta)}" + (
            "" if run.finished or run.weights_removed else ", so far"
        )
    tiles = [
        _tile(percent(run.accuracy), "test accuracy", "good"),
        _tile(price, under, "price"),
        _tile(count(measured.parameters), "parameters"),
        _tile(duration(run.seconds), f"{run.steps} steps"),
    ]
    return element("div", {"class": "tiles"}, *tiles)


def _tile(value: str, under: str, kind: str = "") -> Safe:
    return element(
        "div",
        {"class": f"tile {kind}".strip()},
        element("div", {"class": "value"}, value),
        element("div", {"class": "under"}, under),
    )


def status(run: Run) -> Safe:
    """A word on how a run stands."""
    if not run.finished:
        words = "without weights" if run.weights_removed else "not finished"
        return element("span", {"class": "badge warn"}, words)
    if not run.private:
        return element("span", {"class": "badge warn"}, "not private")
    return element("span", {"class": "badge"}, "finished")


def comparison(runs: Sequence[Run], measured: Sequence[Measured]) -> Safe:
    """All runs side by side, and what has to be said about comparing them."""
    known = [run for run in runs if run.accuracy is not None]
    ranked = [run for run in known if run.private] or known
    best = max((run.accuracy for run in ranked if run.accuracy is not None), default=None)
    several = len(tasks(runs)) > 1
    alike = {key: len({_about(run)[key] for run in runs}) == 1 for key in ("data", "model")}
    extra = [key for key, same in alike.items() if not same]
    head = [
        "run", "test accuracy", "ε (PLD)", "ε (RDP)", "δ", "steps", "batch", "views/s", "minutes",
        "parameters", *extra,
    ]  # fmt: skip
    rows: list[list[Child]] = []
    for index, (run, found) in enumerate(zip(runs, measured, strict=True)):
        accuracy: Child = percent(run.accuracy)
        if run.accuracy is not None and run.accuracy == best and not several:
            accuracy = element("strong", None, accuracy)
        seconds = run.seconds
        rows.append(
            [
                join([swatch(index), " ", run.name, *_badge(run)]),
                accuracy,
                *(_epsilon(run, name) for name in ("pld", "rdp")),
                power(run.recipe.privacy.delta) if run.private else NONE,
                count(run.steps),
                NONE if run.batch is None else count(round(run.batch)),
                NONE if run.views_per_second is None else count(round(run.views_per_second)),
                NONE if seconds is None else f"{seconds / 60:.1f}",
                count(found.parameters),
                *(_about(run)[key] for key in extra),
            ]
        )
    return join(
        [
            table(head, rows, caption="The runs side by side", classes="numbers sortable"),
            *(element("p", {"class": "note"}, note) for note in _remarks(runs)),
        ]
    )


def _badge(run: Run) -> list[Child]:
    return [] if run.finished and run.private else [" ", status(run)]


def _about(run: Run) -> dict[str, str]:
    return {"data": run.data, "model": run.recipe.model.name}


def _remarks(runs: Sequence[Run]) -> list[Child]:
    notes: list[Child] = []
    groups = tasks(runs)
    if len(groups) > 1:
        names = ", ".join(dict.fromkeys(f"'{group[0].data}'" for group in groups))
        notes.append(
            element(
                "strong",
                None,
                f"These runs were tested on different images ({names}): their accuracies are not "
                "comparable, and there is no common front.",
            )
        )
    for group in groups:
        private = [run for run in group if run.private and run.epsilon]
        if len(private) < 2:
            continue
        total = together(group)
        cost = (
            "more than any of the numbers above (at most their sum, at the sum of their deltas, "
            "and without a bound where two have one seed),"
            if total is None
            else f"at most ε = {upwards(total, places=2)} "
            f"(PLD, δ = {power(private[0].recipe.privacy.delta)})"
        )
        notes.append(
            f"If the {len(private)} private runs on '{group[0].data}' trained on the same images, "
            f"making all of them known, or choosing among them, costs {cost} together."
        )
    if len({run.recipe.privacy.delta for run in runs if run.private}) > 1:
        notes.append("δ differs between these runs: an ε at a smaller δ is worth more.")
    return notes


def legend(runs: Sequence[Run]) -> Safe:
    """A button per run, to show it or not in every chart."""
    buttons = [
        element(
            "button",
            {"type": "button", "class": "key", "data-toggle": index, "aria-pressed": "true"},
            swatch(index),
            f"{index + 1} · {run.name}",
        )
        for index, run in enumerate(runs)
    ]
    group = {"class": "legend scripted", "role": "group", "aria-label": "Runs shown in the charts"}
    return element("div", group, *buttons)


def swatch(index: int) -> Safe:
    """A run's line and mark, small."""
    return Safe(svg.swatch(index))


def curves(runs: Sequence[Run], *, shareable: bool) -> tuple[Safe, dict[str, Any]]:
    """Learning curves with a switch between steps and epsilon."""
    drawn, data = learning.panels(runs, shareable=shareable)
    if not drawn:
        reason = (
            "Curves of training batches were left out of this page, and there are no others."
            if shareable
            else "No metrics were recorded."
        )
        return element("p", {"class": "note"}, reason), {}
    batches = not shareable and any(learning.shows_batches(run) for run in runs)
    thin = "Thin lines are training batches, thick ones" if batches else "Lines are"
    notes: list[Child] = [f"{thin} validation images, diamonds the test set at the end."]
    if any(key.endswith("-epsilon") for key in data) and any(not run.private for run in runs):
        notes.append(" A run without privacy has no ε and is drawn against steps only.")
    if batches and any(run.private and learning.shows_batches(run) for run in runs):
        sentence = (
            " Values of training batches are exact numbers about private images: the guarantee "
            "does not cover them. Before this page leaves the house, make it again with "
        )
        flag = element("code", {"class": "whole"}, "--shareable")
        notes.append(element("strong", None, sentence, flag, "."))
    tables = [learning.records_table(run, shareable=shareable) for run in runs]
    choice = axis_switch() if any(key.endswith("-epsilon") for key in data) else None
    body = (
        element("div", {"class": "bar-of-tools"}, choice, legend(runs) if len(runs) > 1 else None),
        element("div", {"class": "panels"}, drawn),
        element("p", {"class": "note"}, *notes),
        *(tables if len(runs) < 4 else [details("The numbers as tables", *tables)]),
    )
    return join(body), data


def axis_switch() -> Safe:
    """Steps or epsilon."""
    options = [
        element(
            "button",
            {"type": "button", "data-axis": axis, "aria-pressed": "true" if on else "false"},
            words,
        )
        for axis, words, on in (("step", "steps", True), ("epsilon", "ε spent", False))
    ]
    attributes = {"class": "switch scripted", "role": "group", "aria-label": "Horizontal axis"}
    return element("div", attributes, element("span", {"class": "said"}, "against"), *options)


def front(runs: Sequence[Run], measured: Sequence[Measured]) -> tuple[Safe, dict[str, Any]]:
    """Accuracy against epsilon, one chart per task."""
    places = {id(run): index for index, run in enumerate(runs)}
    tested = {
        k: m.evaluation.n
        for k, (run, m) in enumerate(zip(runs, measured, strict=True))
        if m.evaluation is not None and not disagreement(run, m)
    }
    groups = tasks(runs)
    parts: list[Child] = []
    data: dict[str, Any] = {}
    for number, group in enumerate(groups):
        found = privacy_front.points([(places[id(run)], run) for run in group], tested)
        if not found:
            continue
        bare = [r.accuracy for r in group if not r.private and r.accuracy is not None]
        key = f"front-{number}"
        chart, data[key] = privacy_front.chart(found, key=key, baseline=max(bare, default=None))
        rows = [
            [p.name, upwards(p.epsilon, places=4), percent(p.accuracy, 2),
             f"dominated by {p.dominated}" if p.dominated else "on the front"]
            for p in found
        ]  # fmt: skip
        head = ["run", "ε (PLD)", "test accuracy", ""]
        behind = table(head, rows, caption="Accuracy against epsilon", classes="numbers")
        title = element("h3", None, group[0].data) if len(groups) > 1 else None
        unfold = details("The points as a table", behind)
        parts.append(element("figure", {"class": "panel wide"}, title, chart, unfold))
    if not parts:
        words = "There is no finished private run whose accuracy and ε are both known."
        return element("p", {"class": "note"}, words), {}
    notes = ["Bars show the 95 % interval (Wilson's) of an accuracy on so many test images."]
    if len(runs) == 1:
        notes.insert(
            0,
            "One run is one point: give several runs (`sfumato report RUN RUN ...`) to see what "
            "more or less privacy would buy.",
        )
    else:
        notes.insert(
            0,
            "The line joins the runs that no other beats in both accuracy and ε; hollow marks are "
            "dominated by another run.",
        )
    note = element("p", {"class": "note"}, inline(" ".join(notes)))
    return element("div", {"class": "panels"}, *parts, note), data


def _epsilon(run: Run, accountant: str) -> str:
    if not run.private:
        return "∞"
    return upwards(run.epsilon[accountant], places=3) if accountant in run.epsilon else "unknown"
