"""Audits on a page and as pictures: attacks under the curve that the guarantee allows."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from sfumato.analysis.membership_inference import Membership
from sfumato.charts import png, svg
from sfumato.charts.trade_off import trade_off
from sfumato.errors import UserError
from sfumato.privacy.statement import audit as in_words
from sfumato.privacy.statement import upwards
from sfumato.report.markup import Safe, element, join, markdown
from sfumato.run import Run
from sfumato.training import run_audit

_HEIGHT = 300.0


def section(run: Run, key: str) -> tuple[Safe | None, dict[str, Any]]:
    """The audit of a run: its result in words and its picture; None if there was none.

    Args:
        run: The run.
        key: The name of the picture on the page.
    """
    g = run.guarantee
    if g is None or g.audit is None:
        return None, {}
    text = markdown(in_words(g.audit))
    try:
        read = run_audit.read(run.folder)
    except UserError as error:
        return join([text, element("p", {"class": "note"}, str(error))]), {}
    if read is None or read[0] != g.audit:
        missing = "Its curve is not shown: audit.json is not there, or not that of this audit."
        return join([text, element("p", {"class": "note"}, missing)]), {}
    chart = run_audit.audit_chart(g.audit, read[1], run.history)
    drawing, data = svg.render([(chart, _HEIGHT)], key=key, width=400)
    reading = (
        "The curve with steps shows how well scores tell canaries that are in from those that are "
        "out. If the claim is true, no attack is expected above the smooth one; guessing is the "
        "dashed line."
    )
    caption = element("figcaption", {"class": "note"}, reading)
    figure = element("figure", {"class": "panel"}, Safe(drawing), caption)
    return join([text, element("div", {"class": "panels"}, figure)]), {key: data}


def draw_membership(found: Membership, path: Path, *, title: str) -> None:
    """Draw an attack on members as a PNG file, which is replaced if it exists."""
    limit = "ε = ∞" if found.epsilon == float("inf") else f"ε = {upwards(found.epsilon, 3)}"
    chart = trade_off(
        {"attack by the loss": found.rates},
        found.most,
        claim=limit,
        lowest=1 / found.others,
        title=title,
    )
    png.draw([[chart]], path, width=4.6, height=4.2)
