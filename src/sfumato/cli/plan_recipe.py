"""The numbers that `sfumato plan` takes from a recipe and its data."""

from __future__ import annotations

from dataclasses import dataclass

from sfumato.errors import UserError


@dataclass(frozen=True)
class Known:
    """A number of examples, and what a recipe says beside it: budget, views, batches and steps.

    Batches and steps are those of the recipe with half and twice as many; empty without a recipe.
    """

    examples: int
    epsilon: float | None = None
    delta: float = 1e-5
    views: int = 1
    accountant: str = "pld"
    batches: tuple[int, ...] = ()
    steps: tuple[int, ...] = ()


def of_recipe(name: str, examples: int | None) -> Known:
    """The numbers of a recipe; its data is read for the number of examples if that is not given.

    Args:
        name: A packaged recipe or a recipe file.
        examples: The number of examples, if the user gave it.

    Raises:
        UserError: If there is no such recipe or data, or the recipe has no budget.
    """
    from sfumato import recipes
    from sfumato.training.recipe_data import dataset_of
    from sfumato.training.setup import asked_steps, expected_batch

    recipe = recipes.find(name)
    p, t = recipe.privacy, recipe.training
    if not p.enabled:
        raise UserError(f"{name} trains without privacy (privacy.enabled): there is no budget.")
    if examples is None and (name in recipes.GENERAL or not recipe.data.name):
        raise UserError(
            f"The recipe '{name}' is for images of your own: say how many there are, as in "
            "--examples 5000."
        )
    n = dataset_of(recipe.data).train.examples if examples is None else examples
    batch = expected_batch(t, n)
    steps = asked_steps(t, n, batch)
    return Known(
        examples=n,
        epsilon=p.epsilon,
        delta=p.delta,
        views=t.views,
        accountant=p.accountant,
        batches=tuple(b for b in _around(batch) if b <= n),
        steps=_around(steps),
    )


def _around(value: int) -> tuple[int, ...]:
    """Half of a number, the number and twice it."""
    return tuple(sorted({max(1, value // 2), value, 2 * value}))
