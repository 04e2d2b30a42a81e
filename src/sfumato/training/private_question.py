"""The question of a private tuning: what all runs share, what is drawn, and what it will cost.

*Guarantee:* Every run of a question is the same list of steps, whatever settings are drawn, and no
setting makes a run look at images without noise or depend on another run.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from sfumato.data.catalogue import canonical
from sfumato.data.units import IMAGE
from sfumato.distributed.ranks import Ranks
from sfumato.errors import UserError
from sfumato.privacy.accounting.accountants import Step, merge
from sfumato.privacy.accounting.exposure import steps_to_list
from sfumato.privacy.accounting.selection import Selection, covered_score_noise
from sfumato.recipe import Recipe
from sfumato.training import setup
from sfumato.training.initial import start
from sfumato.training.proposals import Choice, Range, corners
from sfumato.training.recipe_data import dataset_of
from sfumato.training.run_score import public_images
from sfumato.training.tune import checked

_OF_ALL_RUNS = ("data.", "start.")
_OF_THE_MECHANISM = {
    "training.batch", "training.steps", "training.epochs", "privacy.enabled", "privacy.epsilon",
    "privacy.delta", "privacy.accountant", "privacy.noise_multiplier", "privacy.noise_decay",
}  # fmt: skip
"""Settings that decide the steps of a run, which are the same for all."""


@dataclass(frozen=True)
class Question:
    """A private tuning that was asked for.

    Attributes:
        recipe: The settings that all runs have in common.
        choices: Values that the others are drawn from, by dotted names.
        selection: The distribution of the number of runs, and the noise of scores.
        steps: The steps of every run.
        before: Steps that the start of all runs took on the same images.
        score_data: Public images that runs are compared on; held-out ones if empty.
    """

    recipe: Recipe
    choices: Mapping[str, Choice]
    selection: Selection
    steps: tuple[Step, ...]
    before: tuple[Step, ...] = ()
    score_data: str = ""

    @property
    def epsilon(self) -> float:
        """The epsilon of the whole tuning, at the recipe's delta."""
        delta = self.recipe.privacy.delta
        return self.selection.epsilon(self.steps, delta=delta, before=self.before)

    def to_dict(self) -> dict[str, Any]:
        """Plain values, for a file."""
        content = {
            "recipe": self.recipe.to_dict(),
            "try": {
                key: asdict(choice) if isinstance(choice, Range) else list(choice)
                for key, choice in self.choices.items()
            },
            "selection": self.selection.to_dict(),
            "steps": steps_to_list(self.steps),
            "score_data": self.score_data,
        }
        return dict(json.loads(json.dumps(content)))


def ask(
    recipe: Recipe,
    choices: Mapping[str, Choice],
    *,
    mean: float,
    distribution: Any = "logarithmic",
    score_data: str = "",
    root: Path | None = None,
    trust_code: Sequence[str] = (),
) -> Question:
    """Check what is to be tuned, and solve for the noise of each run and of its score.

    Args:
        recipe: The settings that all runs have in common; its epsilon is that of the whole tuning.
        choices: Values that the others are drawn from, by dotted names.
        mean: Mean number of runs.
        distribution: Distribution of their number.
        score_data: Data set, folder or `.npz` with public images to compare runs on. Without it a
            part of the training images is held out, and scores on them have noise.
        root: First folder to search for data sets.
        trust_code: Modules outside sfumato whose models the recipe may name.

    Raises:
        UserError: If anything of it cannot be done privately.
    """
    selection = Selection(mean, distribution)
    base = checked(recipe, choices)
    if score_data:
        base = base.replace({"data.validation": 0.0})
    base = base.replace({"privacy.accountant": "rdp"})
    _refuse(base, choices)
    donor = start.open_donor(base, trust_code=trust_code)
    before = donor.origin.before if donor else ()
    dataset = dataset_of(base.data, root=root)
    if score_data:
        public_images(score_data, base, dataset, root=root)
    elif canonical(base.data.name) is None and base.data.split_rule == "stratified":
        raise UserError(
            "data.split_rule = stratified: leaving one image out would move others between those "
            "trained on and those held out to compare runs on. Use independent, or --score-data."
        )
    elif base.data.unit != IMAGE:
        raise UserError(
            f"Runs are compared by a count of images, of which one {base.data.unit} may have "
            "several: give images outside the guarantee with --score-data."
        )
    elif dataset.validation is None or not len(dataset.validation):
        raise UserError(
            f"No image of '{base.data.name}' is held out to compare runs on: raise data.validation."
        )
    plan = setup.plan(base, dataset.train.examples, before=before, selection=selection)
    steps = merge(plan.history(plan.steps))
    if not score_data:
        selection = replace(selection, score_noise=covered_score_noise(steps))
    return Question(base, choices, selection, steps, before, score_data)


def _refuse(base: Recipe, choices: Mapping[str, Choice]) -> None:
    """Refuse what would make runs dependent, different mechanisms, or dependent on exact results.

    Raises:
        UserError: With what it is and what to do.
    """
    if Ranks.current().size > 1:
        raise UserError("Private tuning runs in one process: start it without torchrun and --gpus.")
    if not base.privacy.enabled:
        raise UserError("privacy.enabled = false: only private runs can be tuned with --private.")
    fixed = [key for key in choices if key.startswith(_OF_ALL_RUNS) or key in _OF_THE_MECHANISM]
    if fixed:
        raise UserError(
            f"{' and '.join(sorted(fixed))} cannot be tried with --private: the cost of the choice "
            "is known for runs of one mechanism on the same images. Give one value with --set."
        )
    for recipe in (base, *(base.replace(settings) for settings in corners(choices))):
        t, plateau = recipe.training, recipe.optimizer.schedule == "plateau"
        if t.seed is not None:
            raise UserError(
                "training.seed cannot be set with --private: runs with one seed have the same "
                "noise, and their number could be guessed."
            )
        if t.diverged is not None or t.early_stop is not None or plateau or t.train_metrics:
            raise UserError(
                "training.diverged, training.early_stop, training.train_metrics and "
                "optimizer.schedule = 'plateau' look at images without noise, which private tuning "
                "has no budget for: leave them out."
            )
