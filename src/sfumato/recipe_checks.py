"""Settings of a recipe that are possible alone but not together."""

from __future__ import annotations

from typing import TYPE_CHECKING

from sfumato.errors import UserError
from sfumato.text import check_unit

if TYPE_CHECKING:
    from sfumato.recipe import Recipe


def check_together(recipe: Recipe) -> None:
    """Refuse settings that are possible alone but not together.

    Raises:
        UserError: There are some.
    """
    if recipe.training.steps is not None and recipe.training.epochs is not None:
        raise UserError("Give training.steps or training.epochs, not both.")
    if recipe.optimizer.nesterov and not recipe.optimizer.momentum:
        raise UserError("optimizer.nesterov needs optimizer.momentum greater than 0.")
    check_unit(recipe.data.unit)
    if recipe.data.public and recipe.privacy.enabled:
        raise UserError(
            "data.public = true declares that the training images need no privacy, for a run with "
            "privacy.enabled = false (`sfumato pretrain`). Leave it out of a private run."
        )
    _check_methods(recipe)
    _check_phases(recipe)
    start = recipe.start
    about_source = start.public or start.reset is not None or start.same_data is not None
    about_source |= bool(start.beside)
    if about_source and not start.source:
        raise UserError(
            "start.beside, start.reset, start.public and start.same_data are about the weights "
            "that a run starts from: name them in start.source."
        )


def _check_methods(recipe: Recipe) -> None:
    p, t = recipe.privacy, recipe.training
    if (p.clipping == "group-wise") != bool(p.groups):
        raise UserError(
            "privacy.clipping = 'group-wise' and privacy.groups (name patterns) go together: give "
            "both, or neither."
        )
    if p.group_clips and p.clipping not in ("group-wise", "per-layer"):
        raise UserError(
            "privacy.group_clips needs privacy.clipping = 'group-wise' (with privacy.groups) or "
            "'per-layer'."
        )
    if p.clip_decay != 1 and p.clipping.startswith(("adaptive", "automatic")):
        raise UserError(
            f"privacy.clip_decay lowers C by a plan, but privacy.clipping = '{p.clipping}' "
            f"{'has no C' if p.clipping == 'automatic' else 'finds C by itself'}: choose one."
        )
    if t.views < 2 and (t.clean_view or t.self_mix):
        name = "training.clean_view" if t.clean_view else "training.self_mix"
        raise UserError(f"{name} needs training.views of at least 2.")


def _check_phases(recipe: Recipe) -> None:
    """Refuse phases that are no division of the steps, and what cannot be combined with them."""
    p, t = recipe.privacy, recipe.training
    if not t.phases:
        return
    *before, last = t.phases
    if not before:
        raise UserError(
            "training.phases has a single phase, which is the whole run: use start.train, "
            "optimizer.lr and privacy.clip instead, or give a second phase."
        )
    for number, phase in enumerate(before, 1):
        if (phase.share is None) == (phase.steps is None):
            raise UserError(
                f"Phase {number} of training.phases needs a length: give share (a part of the "
                "run's steps) or steps, and not both."
            )
    if last.share is not None or last.steps is not None:
        raise UserError(
            f"Phase {len(t.phases)} of training.phases is the last and takes the steps that the "
            "others leave: give it neither share nor steps."
        )
    if (total := sum(phase.share or 0.0 for phase in before)) >= 1:
        raise UserError(
            f"The shares in training.phases add up to {total:g} and leave nothing for the last "
            "phase: they must add up to less than 1."
        )
    watched = "optimizer.schedule = 'plateau'" if recipe.optimizer.schedule == "plateau" else ""
    watched = watched or ("training.early_stop" if t.early_stop is not None else "")
    if watched:
        raise UserError(
            f"training.phases has a plan for all steps, and {watched} changes the plan by "
            "validation results, which change with every phase: leave one of them out."
        )
    if any(phase.clip is not None for phase in t.phases):
        own = ""
        if p.clip_decay != 1:
            own = "privacy.clip_decay changes C from step to step"
        elif p.clipping == "automatic":
            own = "privacy.clipping = 'automatic' has no C"
        elif p.clipping.startswith("adaptive"):
            own = f"privacy.clipping = '{p.clipping}' finds C by itself"
        if own:
            raise UserError(f"training.phases sets a clip of its own, and {own}: choose one.")
