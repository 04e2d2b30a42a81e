"""The end of a run: weights, statement and curves, and the one look at the test set, if any."""

from __future__ import annotations

import secrets
from contextlib import nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from sfumato.charts import curves
from sfumato.privacy.accounting import accountants
from sfumato.privacy.accounting.accountants import Step, merge
from sfumato.privacy.accounting.composition import Exposure
from sfumato.privacy.run_statement import Facts, statement
from sfumato.text import words_in_markdown
from sfumato.training import files, schedules
from sfumato.training.classifier import Description, save_weights
from sfumato.training.initial import parameters, start
from sfumato.training.loop import Loop
from sfumato.training.metrics import MANY, coarse
from sfumato.training.recipe_data import split_in_words


@dataclass(frozen=True)
class Result:
    """What a finished run achieved.

    Attributes:
        folder: The run folder.
        test_accuracy: Accuracy of the released weights on the test set, used this once; None if the
            recipe leaves it alone.
        validation_accuracy: On validation images then, if there are any.
        epsilon: Spent, by accountant; empty without privacy.
        delta: As in (epsilon, delta).
        accountant: The one that calibrated the run.
        steps: Steps taken.
        seconds: Training time.
        not_finite: How often an example was left out because its gradient was not finite.
        drawn: Whether all images were drawn by the program, so that there is nothing to protect.
    """

    folder: Path
    test_accuracy: float | None
    validation_accuracy: float | None
    epsilon: dict[str, float]
    delta: float
    accountant: str
    steps: int
    seconds: float
    not_finite: int
    drawn: bool = False


def _check_examples(loop: Loop) -> None:
    """Check on real examples, with the weights of the last step, that none reaches another."""
    source = secrets.SystemRandom()
    indices = source.choices(range(len(loop.dataset.train)), k=loop.physical_batch)
    generator = torch.Generator().manual_seed(secrets.randbits(63))
    parameters = loop.views.draw(len(indices), generator).to(loop.device)
    x, y = loop.fetch(torch.tensor(indices, device=loop.device), parameters)
    loop.private.check(x, y)


def release(loop: Loop) -> Result:
    """Write the weights, the statement and the curves; use the test set once, or not at all.

    Raises:
        UserError: The trained model mixes examples; nothing is written.
    """
    recipe, folder, ledger = loop.recipe, loop.folder, loop.ledger
    if recipe.privacy.enabled:
        _check_examples(loop)
    _count_plan(loop)
    ledger.sync()
    ledger.check()
    p = recipe.privacy
    history = [*loop.plan.before, *ledger.history()] if p.enabled else []
    spent = {
        name: accountants.epsilon(history, delta=p.delta, accountant=name)
        for name in ("pld", "rdp")
        if p.enabled
    }
    seconds = loop.seconds
    final: dict[str, Any] = {"final": True, "step": loop.step}
    held_out = loop.dataset.validation is not None
    if part := "test" if recipe.data.test else "validation" if held_out else "":
        final[f"{part}_accuracy"] = loop.accuracy(part)
        if loop.average is not None:
            final[f"{part}_accuracy_last"] = loop.accuracy(part, averaged=False)
    if p.enabled:
        final["epsilon"] = spent[p.accountant]
    if recipe.exact_metrics:
        final["seconds"] = round(seconds, 3)
    elif loop.step >= MANY:
        views = loop.step * loop.plan.sampler.batch * loop.views.total
        final["seconds"] = coarse(seconds)
        final["views_per_second"] = coarse(views / max(seconds, 1e-9))
    loop.metrics.add(final)
    curves.draw(
        loop.metrics.records,
        folder / files.CURVES,
        title=f"{recipe.model.name} on {recipe.data.name}",
        budget=p.epsilon if p.enabled else None,
    )
    guarantee: dict[str, Any] = {"private": False}
    if p.enabled:
        guarantee = {"private": True, "epsilon": spent, "delta": p.delta, "unit": "one image"}
    d = loop.dataset
    origin = start.Origin.of(ledger.header)
    seeded = loop.randomness.seeded or origin.seeded
    own = Exposure(
        d.name, recipe.data.public, merge(history), spent, p.delta, seeded, also=origin.also,
        looked=(*schedules.looks(recipe), *origin.looked) if p.enabled else (),
    )  # fmt: skip
    guarantee["exposures"] = [e.to_dict() for e in (own, *origin.exposures)]
    description = Description(
        recipe.model.name, dict(recipe.model.options), d.classes, d.channels, d.size, d.mean, d.std,
        guarantee, recipe.training.test_views, recipe.data.bits,
    )  # fmt: skip
    text = statement(_facts(loop, spent, origin))
    with loop.average.applied(loop.model) if loop.average is not None else nullcontext():
        save_weights(folder / files.WEIGHTS, loop.model, description, statement=text)
    files.write_whole(folder / files.STATEMENT, text.encode())
    ledger.close()
    (folder / files.KEY).unlink(missing_ok=True)
    if not recipe.exact_metrics:
        for path in (*folder.iterdir(), folder):
            files.without_clock(path, folder)
    return Result(
        folder,
        final.get("test_accuracy"),
        final.get("validation_accuracy"),
        spent,
        p.delta,
        p.accountant,
        loop.step,
        seconds,
        loop.not_finite,
    )


def _count_plan(loop: Loop) -> None:
    """Count every step of the plan where results decided after which one training ended.

    What was released after each step was looked at to decide whether to go on, and the epsilon of
    the steps taken holds only for a number of steps that is fixed beforehand.
    """
    if loop.recipe.privacy.enabled and loop.recipe.training.early_stop is not None:
        for number in range(loop.ledger.steps + 1, loop.plan.steps + 1):
            sigma = loop.plan.noise_at(number).multiplier
            loop.ledger.record(number, Step(loop.plan.sampler.rate, sigma))


def _facts(loop: Loop, spent: dict[str, float], origin: start.Origin) -> Facts:
    recipe, plan = loop.recipe, loop.plan
    p, d = recipe.privacy, loop.dataset
    return Facts(
        private=p.enabled,
        epsilon=spent,
        budget=p.epsilon,
        delta=p.delta,
        accountant=p.accountant,
        examples=len(d.train),
        batch=plan.sampler.batch,
        rate=plan.sampler.rate,
        steps=loop.ledger.steps,
        taken=loop.step,
        noise_multiplier=plan.noise.multiplier,
        rule=words_in_markdown(loop.rule_in_words()),
        views=loop.views.total,
        averaged=loop.average is not None,
        seeded=loop.randomness.seeded,
        train_metrics=recipe.training.train_metrics,
        validation=len(d.validation) if d.validation is not None else 0,
        data=words_in_markdown(recipe.data.name),
        public=recipe.data.public,
        start=words_in_markdown(" ".join([origin.words, parameters.frozen(loop.model)])),
        exposures=tuple(replace(e, data=words_in_markdown(e.data)) for e in origin.exposures),
        before=origin.before,
        before_epsilon=start.spent(recipe, origin),
        before_seeded=origin.seeded,
        before_names=tuple(map(words_in_markdown, origin.also)),
        before_looked=tuple(map(words_in_markdown, origin.looked)),
        schedule=plan.history(loop.ledger.steps) if plan.schedule else (),
        looked=schedules.looks(recipe),
        rates_looked=recipe.optimizer.schedule == "plateau",
        tuned=words_in_markdown(p.tuned),
        split=split_in_words(recipe.data),
    )
