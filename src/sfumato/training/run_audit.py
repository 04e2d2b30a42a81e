"""The audit of a run with canaries: its result, its file and its picture."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, cast

import numpy as np

from sfumato.charts import png
from sfumato.charts.chart import Chart
from sfumato.charts.trade_off import Rates, trade_off
from sfumato.discrimination import RankedScores
from sfumato.errors import UserError
from sfumato.io import json_lines
from sfumato.io.atomic import write_whole
from sfumato.privacy.accounting.accountants import AccountantName, Step, merge
from sfumato.privacy.audit.pairs import Array, History
from sfumato.privacy.audit.result import AuditResult, judge
from sfumato.privacy.statement import downwards, upwards
from sfumato.training import run_folder
from sfumato.training.canary_plan import SCORES
from sfumato.training.loop import Loop

_POINTS = 500
"""Most points of the ROC curve in the file."""


def audited(loop: Loop, steps: list[Step]) -> AuditResult | None:
    """The result of a run's audit, with its file and picture written; None without canaries.

    Args:
        loop: The run after its last step.
        steps: The steps in its ledger.
    """
    found = loop.canaries.result()
    if found is None or loop.canary_plan is None:
        return None
    scores, coins = (part.numpy() for part in found)
    p = loop.recipe.privacy
    result = judge(
        scores, coins, steps, delta=p.delta, accountant=cast(AccountantName, p.accountant),
        score=SCORES[loop.canary_plan.score],
    )  # fmt: skip
    curve = RankedScores.of(np.nan_to_num(scores), coins).roc()
    rates = _thinned(np.nan_to_num(curve.x), np.nan_to_num(curve.y))
    content = {"result": result.to_dict(), "roc": [part.tolist() for part in rates]}
    text = json.dumps(content, indent=1, ensure_ascii=False, allow_nan=False)
    write_whole(loop.folder / run_folder.AUDIT, f"{text}\n".encode())
    chart = audit_chart(result, rates, steps)
    png.draw([[chart]], loop.folder / run_folder.AUDIT_PICTURE, width=4.6, height=4.2)
    return result


def audit_chart(result: AuditResult, rates: Rates, steps: list[Step] | tuple[Step, ...]) -> Chart:
    """The picture of an audit: the ROC curve of its canaries under the one that its claim allows.

    Args:
        result: The result.
        rates: False and true positive rates of the canaries.
        steps: The steps that the claim follows from.
    """
    others = max(1, result.canaries - result.included)
    return trade_off(
        {"canaries": rates},
        History(merge(steps)).curve,
        claim=f"the claim, ε = {upwards(result.claim, 3)}",
        lowest=1 / others,
        title=f"Audit: ε at least {downwards(result.epsilon)}",
    )


def read(folder: Path) -> tuple[AuditResult, Rates] | None:
    """The result in a run folder, and the rates of its picture; None if there was no audit.

    Raises:
        UserError: It cannot be read.
    """
    path = folder / run_folder.AUDIT
    if not path.is_file():
        return None
    try:
        content: Any = json_lines.parse(path.read_bytes())
        false, true = (np.asarray(part, dtype=np.float64) for part in content["roc"])
        sound = false.ndim == 1 and false.shape == true.shape and len(false) > 1
        if not sound or not (
            0 <= min(false.min(), true.min()) <= max(false.max(), true.max()) <= 1
        ):
            raise ValueError("no rates")
        return AuditResult.from_dict(content["result"]), (false, true)
    except (OSError, ValueError, KeyError, TypeError, UserError):
        raise UserError(f"{path} cannot be read: it is damaged or was edited.") from None


def _thinned(false: Array, true: Array) -> Rates:
    """A curve with at most `_POINTS` points, most of them at small rates, the ends among them."""
    if len(false) <= _POINTS:
        return false, true
    kept = np.unique(np.geomspace(1, len(false), _POINTS).astype(int) - 1)
    return false[kept], true[kept]
