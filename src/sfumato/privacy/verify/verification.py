"""Checks the engine on one very model, in more depth than training does before its first batch.

Everything runs on random inputs and on copies of the model, in float64 where the model allows it,
in its own precision, and in `channels_last`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn

from sfumato.errors import UserError
from sfumato.memory import out_of_memory
from sfumato.privacy.checks import memory_format
from sfumato.privacy.checks.isolation import (
    Mixing,
    how_examples_mix,
    look,
)
from sfumato.privacy.checks.isolation_proof import Proof, prove_isolation
from sfumato.privacy.checks.model_under_test import is_random
from sfumato.privacy.checks.perturbed_batches import Plan, alike, image_plans
from sfumato.privacy.checks.random_inputs import KINDS, image_rows
from sfumato.privacy.checks.refusals import mixing_layers
from sfumato.privacy.engines.objective import shape_complaint
from sfumato.privacy.numerics.model_state import PROBE_SEED, copied, undisturbed
from sfumato.privacy.numerics.precision import full_precision
from sfumato.privacy.per_example import Loss, Path, cross_entropy
from sfumato.privacy.verify.single_checks import (
    Trial,
    clipped_sum,
    empty_batch,
    example_apart,
    gradients_agree,
    not_finite,
    realised_norm,
    single_example,
)


@dataclass(frozen=True)
class Check:
    """One thing that must hold.

    Attributes:
        name: What was checked.
        passed: Whether it holds; None if an earlier failure kept it from being checked.
        detail: What was found.
        number: The error, ratio or count behind it, if there is one.
        fix: For a failure, what to do.
    """

    name: str
    passed: bool | None
    detail: str = ""
    number: float | None = None
    fix: str = ""


@dataclass(frozen=True)
class ParameterError:
    """The error of one parameter's per-example gradient against the reference."""

    name: str
    shape: tuple[int, ...]
    error: float


@dataclass
class Report:
    """The outcome of `verify`.

    Attributes:
        checks: What must hold.
        parameters: The error of each parameter's gradients.
        paths: Which layer takes which path.
        warnings: What a user should know besides.
        proof: Whether isolation is proved besides being tested; None if a test has failed.
    """

    checks: list[Check] = field(default_factory=list)
    parameters: list[ParameterError] = field(default_factory=list)
    paths: list[Path] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)
    proof: Proof | None = None

    @property
    def passed(self) -> bool:
        """Tell whether every check holds."""
        return all(check.passed for check in self.checks)


ISOLATED = {
    "outputs": "changing one example moves no other's output",
    "gradients": "changing one example moves no other's gradient",
    "state": "the forward pass keeps nothing of the data",
}
APART = (
    "compute nothing along the batch: normalise each example by itself (nn.GroupNorm, "
    "nn.LayerNorm), and keep no statistics of the data"
)
FAULT = "do not train this model privately with this version; please report it"
ROWS = "one row of outputs per example"
TRIALS: dict[str, Callable[[Trial], tuple[bool, str, float | None]]] = {
    "the engine keeps examples apart": example_apart,
    "the clipped sum is the reference's": clipped_sum,
    "the realised norm is at most C": realised_norm,
    "an empty batch works": empty_batch,
    "a batch of one works": single_example,
    "one NaN example adds nothing": not_finite,
}


def verify(
    model: nn.Module,
    *,
    input_shape: tuple[int, ...] | None = None,
    x: Tensor | None = None,
    y: Tensor | None = None,
    classes: int | None = None,
    loss: Loss = cross_entropy,
    batch: int = 17,
    seed: int = PROBE_SEED,
    tell: Callable[[str], None] = lambda stage: None,
) -> Report:
    """Check that private training of this model is what it claims to be.

    Args:
        model: The model; it is left as it was.
        input_shape: Shape of one example, unless `x` is given.
        x: Inputs whose shape, type and device to use; their values are not.
        y: Targets whose shape and type to use; class numbers if not given.
        classes: The number of outputs that the model must have, if any.
        loss: From outputs and targets to one loss per row.
        batch: The largest batch to try.
        seed: Seed of the model's own random numbers.
        tell: Called with what is checked next.

    Returns:
        The checks, every parameter's error, and which layer takes which path.

    Raises:
        UserError: The model does not run on such inputs, or has another number of outputs.
    """
    if batch < 2:
        raise UserError(f"A batch of at least 2 is needed to see examples mix, not {batch}.")
    like_x, like_y = _like(model, input_shape, x, y)
    report = Report()
    with undisturbed(model), full_precision(like_x.device), _training(model):
        outputs = _first_run(model, like_x)
        found = mixing_layers(model)
        detail = "; ".join(f"layer '{name}': {fix}" for name, fix in found.items())
        report.checks.append(Check("no layer that is known to mix examples", not found, detail))
        complaint = shape_complaint(outputs, 3)
        if complaint or not isinstance(outputs, Tensor):
            fix = "return a tensor whose first dimension is the batch"
            report.checks.append(Check(ROWS, False, complaint or "", fix=fix))
            return report
        _match_classes(outputs, classes)
        report.checks.append(Check(ROWS, True))
        variants = _variants(model, like_x, like_y, loss)
        tell("whether one example can reach another")
        _add_isolation(report, variants, batch, seed)
        _add_trials(report, variants, batch, tell)
        if like_x.dim() == 4 and (fault := memory_format.fault(model, like_x)):
            report.warnings.append(
                f"{fault} `sfumato train` takes the usual order; do so in a loop of your own"
            )
    return report


def _like(
    model: nn.Module, shape: tuple[int, ...] | None, x: Tensor | None, y: Tensor | None
) -> tuple[Tensor, Tensor]:
    if (shape is None) == (x is None):
        raise UserError("Give either the shape of one input or some inputs.")
    if x is None:
        first = next((p for p in model.parameters() if p.is_floating_point()), torch.zeros(()))
        x = torch.zeros(1, *(shape or ()), dtype=first.dtype, device=first.device)
    return x, torch.zeros(1, dtype=torch.int64, device=x.device) if y is None else y


@contextmanager
def _training(model: nn.Module) -> Iterator[None]:
    """Training mode; parts of a model in training that are set to evaluation stay in it."""
    with _modes_kept(model):
        if not model.training:
            model.train()
        yield


@contextmanager
def _modes_kept(model: nn.Module) -> Iterator[None]:
    modes = {module: module.training for module in model.modules()}
    try:
        yield
    finally:
        for module, mode in modes.items():
            module.training = mode


def _first_run(model: nn.Module, like: Tensor) -> object:
    try:
        return look(model, like.new_zeros(3, *like.shape[1:]), None).outputs
    except Exception as error:
        raise UserError(
            f"The model does not run on inputs of shape {tuple(like.shape[1:])}: "
            f"{type(error).__name__}: {str(error).strip()}. Give the shape that it expects."
        ) from error


def _match_classes(outputs: Tensor, classes: int | None) -> None:
    if classes is not None and tuple(outputs.shape[1:]) != (classes,):
        raise UserError(
            f"The model returns outputs of shape {tuple(outputs.shape[1:])} per example, not one "
            f"number for each of {classes} classes: change the model or the number of classes."
        )


def _variants(model: nn.Module, like_x: Tensor, like_y: Tensor, loss: Loss) -> list[Trial]:
    """The model in float64, in its own precision, and in channels_last, as far as it can be."""
    own = Trial(str(like_x.dtype).removeprefix("torch."), model, like_x, like_y, loss, own=True)
    made = []
    try:
        double = copied(model).double()
        wide_y = like_y.double() if like_y.is_floating_point() else like_y
        trial = Trial("float64", double, like_x.double(), wide_y, loss)
        loss(look(double, trial.like_x, None).outputs, trial.like_y)
        if trial.dtype == torch.float64:
            made.append(trial)
        else:
            own.label += " (parts of it do not run in float64)"
    except Exception:
        own.label += " (it does not run in float64)"
    if own.dtype == torch.float64:
        made.clear()
    made.append(own)
    if like_x.dim() == 4:
        try:
            last = copied(model).to(memory_format=torch.channels_last)  # type: ignore[call-overload]
            x = like_x.expand(2, *like_x.shape[1:]).contiguous(memory_format=torch.channels_last)
            made.append(Trial("channels_last", last, x, like_y, loss))
        except Exception:
            pass
    for trial in made:
        trial.confirmed = made[0].dtype == torch.float64
    return made


def _add_isolation(report: Report, variants: list[Trial], batch: int, seed: int) -> None:
    found: dict[str, tuple[Mixing, str]] = {}
    widest, own = variants[0], next(trial for trial in variants if trial.own)
    for trial, training, thorough in (
        (widest, True, True),
        (widest, False, False),
        (own, True, False),
    ):
        with _modes_kept(trial.model):
            if not training:
                trial.model.eval()
            mixing = _scan(trial, batch, seed, thorough=thorough)
        if mixing is not None and mixing.what not in found:
            found[mixing.what] = mixing, "" if training else " (in evaluation mode)"
    if not found:
        report.proof = prove_isolation(own.model, own.loss, own.like_x, own.like_y)
    for what, name in ISOLATED.items():
        if what in found:
            mixing, mode = found[what]
            amount = None if math.isnan(mixing.amount) else mixing.amount
            report.checks.append(Check(name, False, f"{mixing}{mode}", amount, APART))
        else:
            passed = None if found else True
            report.checks.append(Check(name, passed, _how_known(report.proof, what)))


def _how_known(proof: Proof | None, what: str) -> str:
    """Evidence for isolation: the whole sentence for outputs, a word for all else."""
    if proof is None:
        return "not reached"
    if what == "outputs":
        return str(proof)
    return "proved" if proof.proved else "tested"


def _scan(trial: Trial, batch: int, seed: int, *, thorough: bool) -> Mixing | None:
    """Change examples in batches of several sizes, into several things, from several states."""
    model, draws = trial.model, trial.draws
    last = batch - 1
    plans = [
        (3, [{j: KINDS[j]} for j in range(3)], seed),
        (batch, [{batch // 2: "other"}, {last: "not finite"}], seed),
    ]
    if thorough:
        plans = [
            (2, [{j: kind} for j in range(2) for kind in KINDS], seed),
            (3, [{j: KINDS[(j + k) % len(KINDS)]} for j in range(3) for k in (0, 2)], seed),
            (8, [{j: "other"} for j in range(8)] + [{3: "not finite"}], seed),
            (batch, [{0: "large"}, {batch // 2: "other"}, {last: "opposite"}], seed),
            *plans[1:],
        ]
    if thorough and is_random(model, draws.x(3)):
        plans += [(8, [{k % 8: "other"}], seed + k) for k in range(1, 17)]
    for size, changes, at in plans:
        losses = _losses(trial, draws.y(size))
        found = how_examples_mix(model, draws.x(size), changes=changes, losses=losses, at=at)
        if found is not None:
            return found
    return _scan_images(trial, batch, seed)


def _scan_images(trial: Trial, batch: int, seed: int) -> Mixing | None:
    """Change examples among images instead of random inputs, if the model takes images."""
    images = alike(image_rows(trial.like_x, batch))
    plans = [*image_plans(trial.like_x), Plan(images, [{0: "darker"}, {batch - 1: "opposite"}])]
    for plan in plans:
        losses = _losses(trial, trial.draws.y(len(plan.x)))
        try:
            found = how_examples_mix(
                trial.model, plan.x, changes=plan.changes, losses=losses, at=seed
            )
        except Exception as error:
            if out_of_memory(error):
                raise
            continue  # A model may refuse what its real inputs cannot be.
        if found is not None:
            return found
    return None


def _losses(trial: Trial, y: Tensor) -> Callable[[Tensor], Tensor]:
    return lambda out: trial.loss(out, y)


def _add_trials(
    report: Report, variants: list[Trial], batch: int, tell: Callable[[str], None]
) -> None:
    """Compare the engine with the reference, in every variant, with one view and with two."""
    own = next(trial for trial in variants if trial.own)
    reached = all(check.passed for check in report.checks)
    if reached:
        tell("which method fits")
        try:
            engine = own.per_example
            engine.settle(*own.batch(batch))
        except UserError as error:
            report.checks.append(Check("the engine takes the model", False, str(error)))
            reached = False
        else:
            report.paths = engine.paths()
            for passed_over, reason in engine.passed_over.items():
                report.warnings.append(f"'{passed_over}' does not fit this model: {reason}")
            for trial in variants:
                trial.chosen = engine.engine
    for trial in variants:
        for views in (1, 2) if trial is variants[0] else (1,):
            name = f"per-example gradients: {trial.label}" + (f", {views} views" * (views > 1))
            if not reached:
                report.checks.append(Check(name, None, "not reached"))
                continue
            tell(name)
            passed, detail, worst, table = gradients_agree(trial, views, batch)
            report.checks.append(Check(name, passed, detail, worst, "" if passed else FAULT))
            if trial is variants[0] and views == 1:
                shapes = {n: tuple(p.shape) for n, p in trial.per_example.trainable.items()}
                report.parameters = [ParameterError(n, shapes[n], e) for n, e in table.items()]
                report.warnings += trial.unused()
    for name, check in TRIALS.items():
        if not reached:
            report.checks.append(Check(name, None, "not reached"))
            continue
        tell(name)
        some = variants if check is realised_norm else variants[:2]
        report.checks.append(_outcome(name, check, some))


def _outcome(
    name: str, check: Callable[[Trial], tuple[bool, str, float | None]], variants: list[Trial]
) -> Check:
    """One check over all variants: the first that fails, or the largest number."""
    outcomes = []
    for trial in variants:
        try:
            passed, detail, number = check(trial)
        except Exception as error:
            detail = f"{trial.label}: {type(error).__name__}: {error}"
            return Check(name, False, detail, fix=FAULT)
        if not passed:
            return Check(name, False, f"{trial.label}: {detail}", number, FAULT)
        outcomes.append((detail, number))
    numbers = [number for _, number in outcomes if number is not None]
    return Check(name, True, outcomes[0][0], max(numbers) if numbers else None)
