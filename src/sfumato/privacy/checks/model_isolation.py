"""The check of a model by itself: change one example, and compare the others."""

from __future__ import annotations

from sfumato.errors import UserError
from sfumato.memory import out_of_memory
from sfumato.privacy.checks.isolation import Change, how_examples_mix
from sfumato.privacy.checks.model_under_test import Draws
from sfumato.privacy.checks.perturbed_batches import Plan, alike, image_plans
from sfumato.privacy.checks.random_inputs import KINDS, image_rows
from sfumato.privacy.engines.objective import Loss, Objective
from sfumato.privacy.numerics.model_state import PROBE_SEED, Snapshot

_SMALL = 5
"""Number of rows up to which gradients are compared too."""

_SETS = ((0, 2, 4), (0, 3), (1, 2), (1, 3, 4))
"""Rows of five to change at once: of each two rows, each is once changed without the other."""


def refuse_mixing_model(
    objective: Objective, draws: Draws, rows: int, *, random: bool, gradients: bool = True
) -> None:
    """Change examples in small batches, and one in a batch of full size; compare the others.

    Args:
        objective: The model and its loss.
        draws: Random inputs and targets.
        rows: The full size, or 0 for batches of three and five rows only.
        random: Whether the model draws random numbers, so that one seed may hide something.
        gradients: Compare gradients too, in small batches of random rows; outputs alone if not.

    Raises:
        UserError: One example moves another's output or gradient, or the state of the model.
    """
    five, before = draws.x(5), Snapshot(objective.model)
    plans = [Plan(five, [{j: KINDS[(j + k) % 5] for j in rows} for k, rows in enumerate(_SETS)])]
    if rows:
        plans = [Plan(draws.x(2), [{0: "large"}, {1: "other"}]), *plans]
    loss = draws.loss if gradients else None
    for plan in plans:
        _refuse(objective, draws, plan, before, loss)
    if random:
        for k in range(1, 9):
            _refuse(objective, draws, Plan(five, [{2: "other"}]), before, loss, at=PROBE_SEED + k)
    for plan in image_plans(draws.like_x):
        try:
            _refuse(objective, draws, plan, before, None)
        except UserError:
            raise
        except Exception as error:
            if out_of_memory(error):
                raise
            # A model may refuse values that its real inputs never have.
    if rows > _SMALL:
        refuse_mixing_at(objective, draws, rows)


def refuse_mixing_at(objective: Objective, draws: Draws, rows: int) -> None:
    """Check a batch of one size, of normally distributed rows and of images that are alike.

    The first and the last example are changed, because a model that goes by the order of a batch
    may let examples reach only later or only earlier ones.

    Raises:
        UserError: As `refuse_mixing_model`.
    """
    plan = Plan(draws.x(rows), [{rows - 1: "other"}, {0: "other"}])
    _refuse(objective, draws, plan, Snapshot(objective.model), _loss_for(draws, rows))
    refuse_mixing_alike(objective, draws, rows)


def refuse_mixing_alike(objective: Objective, draws: Draws, rows: int) -> None:
    """Check a batch of images that are much alike: they compete where a model limits their number.

    The first is replaced, and then the last and a few others, each in another way: what goes by the
    order of a batch may reach only later or only earlier examples.

    Raises:
        UserError: As `refuse_mixing_model`.
    """
    others = dict(zip(range(1, rows - 2), ("darker", "large", "other"), strict=False))
    changes: list[Change] = [{0: "opposite"}, {rows - 1: "opposite", **others}]
    plan = Plan(alike(image_rows(draws.like_x, rows)), changes)
    _refuse(objective, draws, plan, Snapshot(objective.model), _loss_for(draws, rows))


def _loss_for(draws: Draws, rows: int) -> Loss | None:
    """The loss of a small batch; in a large one, outputs are compared and no gradients.

    The engine's own gradients are compared later.
    """
    return draws.loss if rows <= _SMALL else None


def _refuse(
    objective: Objective,
    draws: Draws,
    plan: Plan,
    before: Snapshot,
    loss: Loss | None,
    *,
    at: int = PROBE_SEED,
) -> None:
    y = draws.targets(len(plan.x))
    losses = (lambda out: loss(out, y)) if loss is not None else None
    found = how_examples_mix(
        objective.model, plan.x, changes=plan.changes, losses=losses, at=at, before=before
    )
    if found is not None:
        raise UserError(
            f"This model cannot be trained with differential privacy: {found}. What belongs to "
            "an example must depend on that example alone; look for statistics, sorts or rolls "
            "along the batch (`sfumato verify` shows the details)."
        )
