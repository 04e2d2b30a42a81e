"""A whole run: from a recipe to a folder with weights, ledger, statement and curves."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

from sfumato.data import Dataset
from sfumato.data.adapt import adapt
from sfumato.distributed.ranks import OtherRankError, Ranks, sharing_errors
from sfumato.errors import UserError
from sfumato.io.atomic import write_whole
from sfumato.models import Code, Trust
from sfumato.privacy.accounting.selection import Selection
from sfumato.privacy.ledger import Ledger
from sfumato.privacy.numerics.randomness import Randomness
from sfumato.recipe import Recipe
from sfumato.text import GIVEN
from sfumato.training import checkpoint, devices, run_folder, setup, snapshots, time_estimate
from sfumato.training.canary_plan import AuditSettings, CanaryPlan
from sfumato.training.classifier import weights_digest
from sfumato.training.drawn_images import images_at_once
from sfumato.training.initial import parameters, prior, start
from sfumato.training.instead import Instead, better_with_few
from sfumato.training.interrupt import GRACE, Stopped, stop_on_signal
from sfumato.training.ledger_header import ledger_header
from sfumato.training.loop import Loop
from sfumato.training.metrics import Metrics
from sfumato.training.physical import ROWS, memory_budget, physical_batch
from sfumato.training.rank_agreement import (
    check_alike,
    check_data,
    checkpoint_from_leader,
    load_in_turns,
    randomness_from_leader,
)
from sfumato.training.recipe_data import dataset_of
from sfumato.training.release import release
from sfumato.training.reporter import Reporter, Silent, WithoutRepeats
from sfumato.training.same_run import (
    check_repeats,
    noise_from,
    refuse_changes,
    same_randomness,
    same_recipe,
)

_GREY = (
    "The images are grey, and are shown in three equal channels as the start is for colour ones."
)


@sharing_errors()
def train(
    recipe: Recipe,
    *,
    data: object = None,
    out: str | Path | None = None,
    root: str | Path | None = None,
    device: str = "auto",
    reporter: Reporter | None = None,
    trust_code: Iterable[Code] = (),
    selection: Selection | None = None,
    audit: AuditSettings | None = None,
    quick: Instead | None = None,
) -> Path:
    """Train a new model.

    Args:
        recipe: What to do.
        data: The data itself, if the recipe names none that can be read.
        out: The run folder to make; `runs/NAME-NNN` if None.
        root: First folder to search for data sets.
        device: `auto`, `cpu`, `cuda` or `mps`.
        reporter: Receives messages and progress.
        trust_code: Modules outside sfumato whose models the recipe, or the weights that it starts
            from, may name, or the model itself; no other code is imported, except installed timm
            and torchvision.
        selection: The choice among runs of which this is one; the budget is that of the choice.
        audit: The canaries to train with, for an audit; None for a model to use.
        quick: The quick recipe for the same data, if nobody asked for `recipe` by name: it is taken
            where it is to be expected more accurate, and on a CPU for what would take hours.

    Returns:
        The run folder.
    """
    ranks = Ranks.current()
    # Data that is read again for a quick recipe has the same notes.
    reporter = WithoutRepeats(reporter if reporter and ranks.leader else Silent())
    trust = run_folder.trust(trust_code)
    if out is not None and ranks.leader:
        run_folder.check_free(Path(out))
    where = devices.pick_device(device, recipe.training.precision)
    check_alike(ranks, recipe, where)
    if prior.concerns(recipe):
        if audit is not None:
            raise UserError("Images that the program draws show nobody: there is nothing to audit.")
        _refuse_ranks(ranks)
        return prior.train(recipe, out=out, device=where, reporter=reporter, trust=trust)
    donor = start.open_donor(recipe, trust_code=trust.code)
    origin = donor.origin if donor else start.Origin()
    dataset = _load(recipe, data, origin, root, reporter, selection)
    if instead := better_with_few(recipe, dataset, reporter, quick):
        return train(
            instead, data=data, out=out, root=root, device=device, reporter=reporter,
            trust_code=trust_code, selection=selection, audit=audit,
        )  # fmt: skip
    grey = dataset.channels == 1
    if donor and _grey_after_colour(recipe, donor, dataset):
        recipe = recipe.replace({"data.channels": donor.description.channels})
        dataset = origin.normalised(adapt(dataset, size=None, channels=recipe.data.channels))
        reporter.say(_GREY)
    plan = setup.plan(recipe, dataset.train.examples, before=origin.before, selection=selection)
    seed = recipe.training.seed
    randomness = Randomness.shared() if seed is None else origin.seeded_randomness(seed)
    model = setup.build_model(recipe, dataset, randomness, donor, trust=trust)
    if donor:
        words = parameters.describe(model, donor, recipe.start, classes=len(dataset.classes))
        origin = replace(origin, words=words)
    canaries, own_data = None, dataset
    if audit is not None:
        trained = sum(p.numel() for p in model.parameters() if p.requires_grad)
        canaries = audit.plan(recipe, dataset, trained, randomness)
        dataset = canaries.extended(dataset)
        plan = setup.plan(recipe, canaries.examples(dataset), before=origin.before)
    remarks = setup.check_methods(recipe, plan, dataset, model)
    # Ranks would have to agree, and measure different times.
    if (where.type, ranks.size) == ("cpu", 1) and (
        instead := time_estimate.in_time(recipe, plan, dataset, model, reporter, quick, grey=grey)
    ):
        return train(
            instead, data=data, out=out, root=root, device=device, reporter=reporter,
            trust_code=trust_code, selection=selection, audit=audit,
        )  # fmt: skip
    scored = audit.remarks(recipe) if audit else ()
    for remark in (*remarks, *parameters.remarks(recipe, origin, model), *scored):
        reporter.say(remark)
    views = recipe.training.views + recipe.training.self_mix
    views *= images_at_once(dataset.train, recipe.data.per_unit)
    physical = recipe.training.physical_batch or physical_batch(
        model, plan.sampler, dataset, views, memory_budget(where),
        rows=ROWS if where.type == "cuda" else None,
    )  # fmt: skip
    physical = ranks.from_leader(physical)
    header = ledger_header(recipe, plan, own_data, randomness, physical, origin, canaries)
    common = check_data(ranks, recipe, header["data"], model)
    header |= {"noise": noise_from(where)}
    if recipe.model.name.startswith(GIVEN):
        header |= {"initial": weights_digest(model)}
    wanted = None if out is None else Path(out)
    own = run_folder.new_run_folder(wanted, recipe.name) if ranks.leader else None
    folder = Path(ranks.from_leader(str(own)))
    loop: Loop | None = None
    with (
        run_folder.explained(folder),
        _new_ledger(own, recipe, randomness, header, lambda: loop.step if loop else 0) as ledger,
    ):
        loop = Loop(
            recipe, plan, dataset, model, where, randomness, ledger,
            Metrics(own and own / run_folder.METRICS, clock=recipe.exact_metrics),
            folder, physical, reporter, canaries, common,
        )  # fmt: skip
        return _go(loop)


@contextmanager
def _new_ledger(
    folder: Path | None,
    recipe: Recipe,
    randomness: Randomness,
    header: dict[str, Any],
    taken: Callable[[], int],
) -> Iterator[Ledger | None]:
    """The ledger of a new run, after its key and recipe are written; None if it has no folder.

    The folder is removed if the run is refused before anything is taken or recorded.
    """
    if folder is None:
        yield None
        return
    if not randomness.seeded:
        write_whole(folder / run_folder.KEY, randomness.key, mode=0o600)
    write_whole(folder / run_folder.RECIPE, recipe.to_toml().encode())
    with (
        Ledger.create(folder / run_folder.LEDGER, header) as ledger,
        run_folder.unless_refused(folder, lambda: ledger.steps + taken() > 0),
    ):
        yield ledger


def _refuse_ranks(ranks: Ranks) -> None:
    if ranks.size > 1:
        raise UserError(
            "Initial weights are trained on images that the program draws, and in one process: "
            "start it without torchrun and --gpus."
        )


@sharing_errors()
def resume(
    folder: str | Path,
    *,
    data: object = None,
    changes: dict[str, Any] | None = None,
    root: str | Path | None = None,
    device: str = "auto",
    reporter: Reporter | None = None,
    trust_code: Iterable[Code] = (),
) -> Path:
    """Resume an interrupted run, with the same result as if it had not been interrupted.

    Guarantee: The recipe, the training data, sigma, C and the sampling rate must be those of the
    ledger's first line; whatever differs is named and the run refused. Steps are repeated only with
    the noise that they had, and files of the first attempt at them are removed. Nothing outside the
    run folder is written or deleted.

    Args:
        folder: The run.
        data: The run's images, if they were given in Python, or where they are now.
        changes: Settings to compare with the run's.
        root: Where to look for data sets first.
        device: Where to train.
        reporter: Told about progress.
        trust_code: Modules outside sfumato whose models the run may name, or the model itself; no
            other code is imported, and none from the run folder.

    Returns:
        The run folder.
    """
    ranks, folder = Ranks.current(), Path(folder)
    reporter = reporter if reporter and ranks.leader else Silent()
    with ExitStack() as held:
        ledger = None
        if ranks.leader:
            if not (folder / run_folder.LEDGER).is_file():
                raise UserError(f"{folder} is not a run folder: it has no {run_folder.LEDGER}.")
            run_folder.refuse_links(folder)
            ledger = held.enter_context(Ledger.open(folder / run_folder.LEDGER))
        trust = run_folder.trust(trust_code, folder)
        return _resume(folder, ledger, data, changes or {}, root, device, reporter, trust)


def _resume(
    folder: Path,
    ledger: Ledger | None,
    data: object,
    changes: dict[str, Any],
    root: str | Path | None,
    device: str,
    reporter: Reporter,
    trust: Trust,
) -> Path:
    ranks = Ranks.current()
    header = ranks.from_leader(ledger.header if ledger else None)
    recipe = same_recipe(folder, header, changes)
    where = devices.pick_device(device, recipe.training.precision)
    check_alike(ranks, recipe, where)
    if ledger and run_folder.finished(folder):
        (folder / run_folder.KEY).unlink(missing_ok=True)
        raise UserError(
            f"{folder} is finished: there is nothing to resume. See "
            f"{folder / run_folder.STATEMENT}."
        )
    if ledger and run_folder.weights_removed(folder):
        raise UserError(run_folder.without_weights(folder))
    origin, selection = start.Origin.of(header), Selection.of(header)
    own = same_randomness(folder, recipe, origin) if ledger else None
    randomness = randomness_from_leader(ranks, own)
    if prior.concerns(recipe):
        _refuse_ranks(ranks)
    if prior.concerns(recipe) and ledger:
        return prior.resume(
            folder, ledger, recipe, randomness, device=where, reporter=reporter, trust=trust
        )
    try:
        dataset = _load(recipe, data, origin, root, reporter, selection)
        if data is not None:
            dataset = replace(dataset, name=start.known_as(recipe.data.name))
    except UserError as error:
        if recipe.data.name.startswith(GIVEN) or isinstance(error, OtherRankError):
            raise
        raise UserError(
            f"{error} (The run was trained on '{recipe.data.name}'; --data says where it is now.)"
        ) from None
    canaries, own_data = CanaryPlan.of(header), dataset
    dataset = canaries.extended(dataset) if canaries else dataset
    examples = canaries.examples(dataset) if canaries else dataset.train.examples
    plan = setup.plan(recipe, examples, before=origin.before, selection=selection)
    physical = int(header.get("physical_batch", 0))
    expected = ledger_header(recipe, plan, own_data, randomness, physical, origin, canaries)
    refuse_changes(folder, header, expected, recipe)
    state: checkpoint.Checkpoint | None = None
    if ledger:
        state, damaged = checkpoint.latest(folder / run_folder.CHECKPOINTS)
        for path in damaged:
            at = f"step {state.step}" if state else "the start"
            reporter.say(f"Checkpoint {path.name} is damaged; going on from {at} instead.")
        check_repeats(folder, ledger, state.step if state else 0, where)
    state = checkpoint_from_leader(ranks, state)
    done = state.step if state else 0
    with run_folder.explained(folder):
        if ledger:
            run_folder.sweep(folder)
            snapshots.forget(folder, after=done)
            (folder / run_folder.CHECKPOINTS).mkdir(exist_ok=True)
        donor = None
        if state is None:
            donor = start.open_donor(recipe, unchanged=origin, trust_code=trust.code)
        model = setup.build_model(recipe, dataset, randomness, donor, trust=trust)
        if state is None and header.get("initial") not in (None, weights_digest(model)):
            raise UserError(
                f"The model given has other initial weights than {folder} began with, and no "
                "checkpoint was written yet. Give it as it was, or start a new run."
            )
        common = check_data(ranks, recipe, expected["data"], model)
        if state is not None:
            physical = int(state.number("physical_batch"))
        file = folder / run_folder.METRICS if ledger else None
        loop = Loop(
            recipe, plan, dataset, model, where, randomness, ledger,
            Metrics(file, upto=done, clock=recipe.exact_metrics), folder, physical, reporter,
            canaries, common,
        )  # fmt: skip
        if state is not None:
            with checkpoint.explained(state, folder):
                loop.restore(state)
        reporter.say(f"Going on with {folder} after step {loop.step} of {plan.steps}.")
        return _go(loop)


def _go(loop: Loop) -> Path:
    """Take the remaining steps, then release.

    Guarantee: A step that is abandoned because the run is asked to stop counts as one of a process
    that was killed: its event is in the ledger if anything of it was released, and it is repeated
    from the last checkpoint with the noise that it had.
    """
    plan, recipe = loop.plan, loop.recipe
    if plan.steps < plan.asked:
        loop.reporter.say(
            f"The budget of epsilon {recipe.privacy.epsilon:g} ends after {plan.steps} of the "
            f"{plan.asked} steps asked for; the run stops there."
        )
    if loop.step == 0:
        loop.save()
        loop.keep_snapshot()
    # Ranks stop together, after a step.
    with stop_on_signal(GRACE if loop.ranks.size == 1 else None) as stop:
        try:
            loop.run(stop)
        except KeyboardInterrupt:
            if not stop.late or stop.signal is None:
                raise
            raise Stopped(loop.folder, loop.saved, stop.signal) from None
    return release(loop)


def _load(
    recipe: Recipe,
    data: object,
    origin: start.Origin,
    root: str | Path | None,
    reporter: Reporter,
    selection: Selection | None,
) -> Dataset:
    dataset = origin.normalised(
        load_in_turns(Ranks.current(), lambda: dataset_of(recipe.data, given=data, root=root))
    )
    if selection is not None:
        # Exact results on images held out for a noisy score would be left in the run's files.
        dataset = replace(dataset, validation=None)
    for note in dataset.notes:
        reporter.say(note)
    if dataset.skipped:
        few = ", ".join(dataset.skipped[:5]) + (", ..." if len(dataset.skipped) > 5 else "")
        reporter.say(f"Skipped {len(dataset.skipped)} unreadable images: {few}")
    return dataset


def _grey_after_colour(recipe: Recipe, donor: start.Donor, dataset: Dataset) -> bool:
    """Tell whether images need the channels that transferred layers were trained with."""
    free = recipe.start.how == "transfer" and recipe.data.channels is None
    return free and (dataset.channels, donor.description.channels) == (1, 3)
