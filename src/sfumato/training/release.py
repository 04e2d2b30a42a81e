"""The end of a run: weights, guarantee, statement, curves, and one use of the test set."""

from __future__ import annotations

import json
import secrets
from pathlib import Path
from typing import Any

import torch

from sfumato.charts import curves
from sfumato.io.atomic import write_whole
from sfumato.privacy import statement_chapters
from sfumato.privacy.accounting.accountants import Step
from sfumato.privacy.guarantee import Guarantee
from sfumato.privacy.ledger import Ledger
from sfumato.training import run_folder
from sfumato.training.classifier import Description, save_weights, weights_digest
from sfumato.training.initial import parameters
from sfumato.training.loop import Loop
from sfumato.training.metrics import MANY, coarse
from sfumato.training.run_audit import audited
from sfumato.training.run_guarantee import guarantee_of, recipe_digest


def _check_examples(loop: Loop) -> None:
    """Check on real examples, with the weights of the last step, that none reaches another."""
    source = secrets.SystemRandom()
    examples = source.choices(range(loop.dataset.train.examples), k=loop.feed.at_once)
    generator = torch.Generator().manual_seed(secrets.randbits(63))
    drawn = loop.feed.units.of(torch.tensor(examples), loop.step + 1)
    drawn = drawn.first(loop.private.images).to(loop.device)
    parameters = loop.views.draw(drawn.images.numel(), generator).to(loop.device)
    loop.private.check(*loop.feed.fetch(drawn, parameters), there=drawn.mask)


def release(loop: Loop) -> Path:
    """Write weights, guarantee, statement and curves; use the test set once, or not at all.

    Returns:
        The run folder.

    Raises:
        UserError: The trained model mixes examples; nothing is written.
    """
    if loop.recipe.privacy.enabled:
        _check_examples(loop)
    if loop.ledger is None:
        _accuracies(loop)
    else:
        _write(loop, loop.ledger)
    loop.ranks.exchange()  # Until rank 0 has written everything.
    return loop.folder


def _accuracies(loop: Loop) -> dict[str, float]:
    """The accuracy on test images, or on held-out ones if the recipe leaves the test out."""
    held_out = loop.dataset.validation is not None
    found: dict[str, float] = {}
    if part := "test" if loop.recipe.data.test else "validation" if held_out else "":
        found[f"{part}_accuracy"] = loop.accuracy(part)
        if loop.average is not None:
            found[f"{part}_accuracy_last"] = loop.accuracy(part, averaged=False)
    return found


def _write(loop: Loop, ledger: Ledger) -> None:
    recipe, folder = loop.recipe, loop.folder
    _count_plan(loop, ledger)
    ledger.sync()
    ledger.check()
    p, seconds, guarantee = recipe.privacy, loop.seconds, _guarantee(loop, ledger)
    final: dict[str, Any] = {"final": True, "step": loop.step, **_accuracies(loop)}
    if p.enabled:
        final["epsilon"] = guarantee.spent
    if recipe.exact_metrics:
        final["seconds"] = round(seconds, 3)
    elif loop.step >= MANY:
        views = loop.step * loop.plan.sampler.batch * loop.views.total
        final["seconds"] = coarse(seconds)
        final["views_per_second"] = coarse(views / max(seconds, 1e-9))
    loop.metrics.add(final)
    curves.draw(
        loop.metrics.records,
        folder / run_folder.CURVES,
        title=f"{recipe.model.name} on {recipe.data.name}",
        budget=p.epsilon if p.enabled else None,
    )
    d = loop.dataset
    window = recipe.data.window
    description = Description(
        recipe.model.name, dict(recipe.model.options), d.classes, d.channels, d.size, d.mean, d.std,
        guarantee.summary(), recipe.training.test_views, recipe.data.bits,
        recipe.model.batchnorm_to, (window[0], window[1]) if window else None,
    )  # fmt: skip
    text = statement_chapters.statement(guarantee)
    with loop.released_weights():
        save_weights(folder / run_folder.WEIGHTS, loop.model, description, statement=text)
    content = json.dumps(guarantee.to_dict(), indent=1, ensure_ascii=False, allow_nan=False)
    write_whole(folder / run_folder.GUARANTEE, f"{content}\n".encode())
    write_whole(folder / run_folder.STATEMENT, text.encode())
    ledger.close()
    (folder / run_folder.KEY).unlink(missing_ok=True)
    if not recipe.exact_metrics:
        for path in (*folder.iterdir(), folder):
            run_folder.without_clock(path, folder)
    if loop.not_finite:
        loop.reporter.say(
            f"{loop.not_finite} times an example was left out of a step because its gradient was "
            "not finite."
        )


def _count_plan(loop: Loop, ledger: Ledger) -> None:
    """Count every planned step if results decided after which one training ended.

    The result of each step was used to decide whether to continue, and the epsilon of the steps
    taken holds only for a number of steps that is fixed beforehand.
    """
    if loop.recipe.privacy.enabled and loop.recipe.training.early_stop is not None:
        for number in range(ledger.steps + 1, loop.plan.steps + 1):
            sigma = loop.plan.noise_at(number).multiplier
            ledger.record(number, Step(loop.plan.sampler.rate, sigma))


def _rule_in_words(loop: Loop) -> str:
    """The clipping rule in words, for the statement."""
    plan, phases, unit = loop.plan, loop.phases, loop.recipe.data.unit
    decay = plan.clip_decay
    found = [
        plan.clipping_at(1, rule, phase.clip).describe(unit)
        for phase, rule in zip(phases.all, phases.rules(loop.private.clipping), strict=True)
    ]
    words = found[0]
    if len({*found}) > 1:
        words = "; ".join(
            f"{rule} in steps {phase.first} to {phase.last}"
            for phase, rule in zip(phases.all, found, strict=True)
        )
    if decay == 1:
        return words
    return f"{words} in the first step, C changing by a factor of {1 / decay:g} to the last"


def _guarantee(loop: Loop, ledger: Ledger) -> Guarantee:
    """The guarantee of this release: the ledger's, with the facts that only the run knows."""
    d, header = loop.dataset, ledger.header
    with loop.released_weights():
        digests = {"recipe": recipe_digest(header), "weights": weights_digest(loop.model)}
    private: dict[str, Any] = {}
    if loop.recipe.privacy.enabled:
        held_out = len(d.validation) if d.validation is not None else 0
        private |= {
            "audit": audited(loop, ledger.history()),
            "clipping": _rule_in_words(loop),
            "validation": held_out,
            "checked_at_end": True,
        }
    return guarantee_of(
        loop.recipe, header, ledger.history(), taken=loop.step, digests=digests,
        named=d.name, frozen=parameters.frozen(loop.model, loop.phases.every), **private,
    )  # fmt: skip
