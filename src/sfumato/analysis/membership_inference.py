"""Membership inference on a finished run: its training images against images held out.

Members are not drawn by coins, and held-out images may differ from them in other ways: what is
found here is an attack's success, not a lower bound of epsilon. `sfumato.audit` gives one.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from sfumato.analysis.classification import Array
from sfumato.analysis.inference import probabilities
from sfumato.data import ImageSet
from sfumato.discrimination import RankedScores
from sfumato.errors import UserError
from sfumato.privacy.accounting.accountants import merge
from sfumato.privacy.audit.pairs import History
from sfumato.run import Run
from sfumato.training import run_folder

RATES = (0.001, 0.01, 0.1)
"""False positive rates at which true positive rates are reported."""

_NOTHING = 1e-12
"""Probabilities below it count as this."""


@dataclass(frozen=True, eq=False)
class Membership:
    """The success of an attack by the loss, and the most that the guarantee allows.

    Attributes:
        members: Number of training images.
        others: Number of images held out.
        auroc: Area under the ROC curve.
        found: True positive rates of the attack, by false positive rate.
        allowed: The largest that any attack may have.
        rates: False and true positive rates of the attack, as curves.
        most: The same of the best attack that the guarantee allows.
        epsilon: Epsilon of the guarantee by PLD; infinite without privacy.
        delta: As in (epsilon, delta).
    """

    members: int
    others: int
    auroc: float
    found: Mapping[float, float]
    allowed: Mapping[float, float]
    rates: tuple[Array, Array]
    most: tuple[Array, Array]
    epsilon: float
    delta: float

    def to_dict(self) -> dict[str, Any]:
        """Plain values, for JSON, without the curves."""
        return {
            "members": self.members,
            "held_out": self.others,
            "auroc": self.auroc,
            "true_positive_rates": {f"{rate:g}": value for rate, value in self.found.items()},
            "allowed": {f"{rate:g}": value for rate, value in self.allowed.items()},
            "epsilon": self.epsilon if np.isfinite(self.epsilon) else None,
            "delta": self.delta,
        }


def membership(run: Run) -> Membership:
    """Attack a finished run by the loss of its weights on members and on images held out.

    Args:
        run: The run, with its data.

    Raises:
        UserError: The run has no weights or no guarantee, or nothing is held out.
    """
    if not run.finished:
        raise UserError(run_folder.without_weights(run.folder))
    g = run.guarantee
    if g is None:
        raise UserError(f"{run.folder} has no guarantee to compare with: {' '.join(run.problems)}")
    data = run.dataset
    held_out = [part for part in (data.validation, data.test) if part is not None and len(part)]
    if not held_out:
        raise UserError(f"'{data.name}' has no images that were held out to compare members with.")
    own = _scores(run, data.train)
    other = np.concatenate([_scores(run, part) for part in held_out])
    ranked = RankedScores.of(np.append(own, other), np.arange(len(own) + len(other)) < len(own))
    counts, curve = ranked.counts(), ranked.roc()
    most = (np.array([0.0, 0.0, 1.0]), np.array([0.0, 1.0, 1.0]))
    if g.private:
        most = History(merge((*g.start_steps, *g.steps))).curve
    return Membership(
        members=len(own),
        others=len(other),
        auroc=float(counts.auroc()[0]),
        found={rate: float(counts.sensitivity_at(1 - rate)[0]) for rate in RATES},
        allowed={rate: float(np.interp(rate, *most)) for rate in RATES},
        rates=(curve.x, curve.y),
        most=most,
        epsilon=g.epsilon["pld"] if g.private else float("inf"),
        delta=g.delta,
    )


def _scores(run: Run, images: ImageSet) -> Array:
    """The logarithm of the probability of each image's label."""
    found = probabilities(run.classifier, images)
    own = found[np.arange(len(images)), images.labels].astype(np.float64)
    return np.log(np.maximum(np.nan_to_num(own), _NOTHING))
