"""A run folder, opened: recipe, guarantee, metrics, weights and data, each read when asked for.

    run = sfumato.open("runs/digits-001")
    run.guarantee.epsilon, run.accuracy, run.classifier.predict(images)

*Guarantee:* Opening a run writes nothing. Its guarantee follows from the ledger, with the steps
that the run's start took on the same images; there is none if the ledger is missing or damaged, or
if a file of the run states another.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import cached_property
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any

from sfumato import recipes
from sfumato.data.adapt import renumbered
from sfumato.data.catalogue import DRAWN, canonical
from sfumato.errors import UserError
from sfumato.io.json_lines import number
from sfumato.privacy.accounting.accountants import Step, merge
from sfumato.privacy.guarantee import Guarantee
from sfumato.privacy.ledger import read as read_ledger
from sfumato.recipe import Recipe, differences, from_record
from sfumato.text import GIVEN
from sfumato.training import (
    metrics,
    newest_weights,
    phases,
    recipe_data,
    run_folder,
    run_guarantee,
    snapshots,
)
from sfumato.training.initial.start import Origin

if TYPE_CHECKING:
    import torch
    from torch import nn

    from sfumato.data import Dataset
    from sfumato.models import Code, GivenModel
    from sfumato.privacy.audit.result import AuditResult
    from sfumato.training.classifier import Classifier, Description
    from sfumato.training.reporter import Reporter


class Run:
    """A run as its folder tells it, finished or not.

    Attributes:
        folder: The run folder.
        name: The name to show; that of the folder.
        notes: Remarks for a reader on the weights and data, as far as they were read.
    """

    def __init__(
        self,
        folder: str | Path,
        *,
        data: object = None,
        model: GivenModel | None = None,
        root: str | Path | None = None,
        device: str | torch.device = "cpu",
        trust_code: Iterable[Code] = (),
        _check: bool = True,
    ) -> None:
        """Open a run folder; the arguments are those of `sfumato.open`."""
        self.folder = Path(folder)
        self.name = self.folder.resolve().name
        self.notes: list[str] = []
        self._data, self._model, self._root, self._device = data, model, root, device
        self._trust = (*trust_code, *([] if model is None else [model]))
        if _check:
            run_folder.check_run(self.folder)

    def __repr__(self) -> str:
        state = "finished" if self.finished else f"stopped at step {self.steps}"
        accuracy = "" if self.accuracy is None else f", accuracy {self.accuracy:.4f}"
        cost = "not private"
        if self.private:
            cost = "epsilon unknown" if self.spent is None else f"epsilon {self.spent:.4g}"
        model = self.recipe.model.name
        return f"<Run {self.folder}: {model} on {self.data}, {state}{accuracy}, {cost}>"

    @cached_property
    def _read(self) -> tuple[Mapping[str, Any], tuple[Step, ...], str]:
        """The ledger's first line, its steps, and why it cannot be read."""
        try:
            header, steps = read_ledger(self.folder / run_folder.LEDGER)
            return header, tuple(steps), ""
        except UserError as error:
            return {}, (), str(error)

    @property
    def ledger(self) -> tuple[Step, ...]:
        """Every step in the ledger, in order; empty if it cannot be read."""
        return self._read[1]

    @property
    def header(self) -> Mapping[str, Any]:
        """The first line of the ledger; empty if it cannot be read."""
        return self._read[0]

    @cached_property
    def history(self) -> tuple[Step, ...]:
        """The steps in the ledger, equal ones counted together."""
        return merge(self.ledger)

    @cached_property
    def origin(self) -> Origin:
        """The origin of the initial weights."""
        return Origin.of(self.header)

    @cached_property
    def recipe(self) -> Recipe:
        """The recipe that the ledger states, or the file's where there is no ledger."""
        written = (self.folder / run_folder.RECIPE).is_file()
        if "recipe" not in self.header:
            if not written:
                raise UserError(f"{self.folder} does not say how it was trained: {self._read[2]}")
            return recipes.of_run(self.folder)
        stated = from_record(self.header["recipe"], where=str(self.folder / run_folder.LEDGER))
        now = recipes.of_run(self.folder) if written else stated
        if changed := differences(stated.to_dict(), now.to_dict()):
            self.notes.append(
                f"{run_folder.RECIPE} was changed after the run began; the ledger's recipe is "
                f"shown instead ({'; '.join(changed[:3])}{' ...' if len(changed) > 3 else ''})."
            )
        return stated

    @cached_property
    def metrics(self) -> list[dict[str, Any]]:
        """The records of metrics.jsonl, the last line among them."""
        return metrics.read(self.folder / run_folder.METRICS)

    @cached_property
    def records(self) -> tuple[dict[str, Any], ...]:
        """The records without the last line of a finished run."""
        return tuple(record for record in self.metrics if not record.get("final"))

    @cached_property
    def final(self) -> Mapping[str, Any]:
        """The last line of a finished run: accuracy on the test set; empty before."""
        return next((r for r in reversed(self.metrics) if r.get("final")), {})

    @cached_property
    def statement(self) -> str:
        """The privacy statement; empty if the run has not ended."""
        try:
            return (self.folder / run_folder.STATEMENT).read_text(
                encoding="utf-8", errors="replace"
            )
        except OSError:
            return ""

    @property
    def finished(self) -> bool:
        """Tell whether the run came to its end: weights and statement are there."""
        return bool(self.statement) and (self.folder / run_folder.WEIGHTS).is_file()

    @property
    def weights_removed(self) -> bool:
        """Tell whether its weights are gone, though it came to its end."""
        return run_folder.weights_removed(self.folder)

    @property
    def private(self) -> bool:
        """Tell whether it was trained with noise."""
        return self.recipe.privacy.enabled

    @property
    def seeded(self) -> bool:
        """Tell whether its noise follows from a seed that somebody may know."""
        return self.recipe.training.seed is not None

    @property
    def drawn(self) -> bool:
        """Tell whether the program drew all images, so that there is nothing to protect."""
        return self.recipe.data.name in DRAWN

    @cached_property
    def _judged(self) -> tuple[Guarantee | None, tuple[str, ...]]:
        """The guarantee, and what is wrong with the folder."""
        guarantee, wrong = run_guarantee.judged(
            self.folder, self.recipe, self.header, self.history, final=self.final,
            statement=self.statement,
        )  # fmt: skip
        edited = [note for note in self.notes if note.startswith(run_folder.RECIPE)]
        return guarantee, (*filter(None, [self._read[2]]), *edited, *wrong)

    @property
    def guarantee(self) -> Guarantee | None:
        """The privacy guarantee, so far if the run goes on; None if it cannot be established."""
        return self._judged[0]

    @property
    def audit(self) -> AuditResult | None:
        """The result of the audit that the run was made for, if it was."""
        return self.guarantee.audit if self.guarantee else None

    @property
    def problems(self) -> tuple[str, ...]:
        """Inconsistencies and damage in the folder, a sentence each."""
        return self._judged[1]

    @property
    def epsilon(self) -> Mapping[str, float]:
        """Spent, by accountant; empty without privacy, or if it cannot be established."""
        return self.guarantee.epsilon if self.guarantee else {}

    @property
    def spent(self) -> float | None:
        """Epsilon by the accountant that calibrated the run, if it is known."""
        return self.epsilon.get(self.recipe.privacy.accountant)

    @property
    def accuracy(self) -> float | None:
        """Accuracy of the released weights on the test set; None if it was not used."""
        return number(self.final, "test_accuracy")

    test_accuracy = accuracy

    @property
    def validation_accuracy(self) -> float | None:
        """Their accuracy on validation images, where those were used instead."""
        return number(self.final, "validation_accuracy")

    @property
    def steps(self) -> int:
        """Steps taken."""
        if (ended := number(self.final, "step")) is not None:
            return int(ended)
        return len(self.ledger) or (int(self.records[-1]["step"]) if self.records else 0)

    @property
    def planned(self) -> int | None:
        """Steps that were to be taken."""
        return int(self.header["steps"]) if "steps" in self.header else None

    @property
    def examples(self) -> int | None:
        """Training images."""
        return int(self.header["examples"]) if "examples" in self.header else None

    @property
    def batch(self) -> float | None:
        """Expected batch."""
        if self.examples is None or "rate" not in self.header:
            return self.recipe.training.batch
        return self.examples * float(self.header["rate"])

    @property
    def seconds(self) -> float | None:
        """Training time, as far as files tell it."""
        times = [number(record, "seconds") for record in self.metrics]
        return max((t for t in times if t is not None), default=None)

    @property
    def views_per_second(self) -> float | None:
        """The median over the run's records, as the first hold the start-up, or the whole run's."""
        speeds = [number(record, "views_per_second") for record in self.records]
        found = [speed for speed in speeds if speed]
        return median(found) if found else number(self.final, "views_per_second")

    @property
    def data(self) -> str:
        """The data set in a few words."""
        d = self.recipe.data
        name = canonical(d.name) or Path(d.name).name.removeprefix(GIVEN) or d.name
        return f"{name} ({d.subset})" if d.subset else name

    @cached_property
    def _final(self) -> Classifier | None:
        """The classifier of the final weights, if there are any that can be used."""
        name = self.recipe.model.name
        if self._model is not None and not name.startswith(GIVEN):
            raise UserError(f"{self.folder} has the registered model '{name}': leave model= out.")
        return newest_weights.final(self.folder, self._device, self._trust, self.notes)

    @cached_property
    def dataset(self) -> Dataset:
        """The run's own data or what was given instead, labels as the model numbers them.

        Raises:
            UserError: If it cannot be read, or is not what it was.
        """
        known = self._final.description if self._final else None
        shape = (known.channels, *known.size) if known else None
        try:
            found = recipe_data.images_of(
                self.recipe, data=self._data, root=self._root, shape=shape
            )
        except UserError as error:
            raise UserError(f"The data of {self.folder} cannot be read: {error}") from None
        found = self.origin.normalised(found)
        now = (found.channels, *found.size)
        if shape not in (None, now):
            raise UserError(
                f"{self.folder} was trained on images of {'x'.join(map(str, shape or ()))} "
                f"(channels, height, width), but '{found.name}' now has {'x'.join(map(str, now))}: "
                "it is not the run's data."
            )
        self.notes += recipe_data.changed(self.folder, self.recipe, self.header, found)
        return found if known is None else renumbered(found, known.classes)

    @cached_property
    def _weights(self) -> tuple[Classifier, str, int | None]:
        """The newest weights: the final ones, or those of a checkpoint or snapshot."""
        if self._final is not None:
            ended = number(self.final, "step")
            return self._final, "final weights", None if ended is None else int(ended)
        trust = run_folder.trust(self._trust, self.folder)
        found = newest_weights.newest(self.folder, self.recipe, self.dataset, trust, self.notes)
        found[0].network.to(self._device)
        return found

    @property
    def classifier(self) -> Classifier:
        """The trained classifier; of the newest checkpoint if the run has not finished."""
        return self._weights[0]

    @property
    def weights(self) -> str:
        """The weights of `classifier` in words, such as `final weights`."""
        return self._weights[1]

    @property
    def step(self) -> int | None:
        """The step of these weights, if it is known."""
        return self._weights[2]

    @cached_property
    def network(self) -> nn.Module:
        """The classifier's network, in eval mode; what no step trained is frozen."""
        phases.freeze(self.classifier.network, self.recipe)
        return self.classifier.network.eval()

    @property
    def description(self) -> Description:
        """Classes, image shape and normalisation of the classifier."""
        return self.classifier.description

    @property
    def device(self) -> torch.device:
        """The device of the network."""
        return next(self.network.parameters()).device

    @cached_property
    def snapshots(self) -> list[tuple[int, Path]]:
        """Steps and files of the weights that were kept on the way."""
        return snapshots.read(self.folder)

    def verify(self, *, key: str | Path | None = None) -> Guarantee:
        """Check that ledger, guarantee, statement, recipe and weights are consistent.

        Args:
            key: The public key of whoever must have signed the run, if anybody.

        Returns:
            The guarantee.

        Raises:
            UserError: If they are not, with all that is wrong.
        """
        if key is not None:
            from sfumato.training import signature

            signature.check(self.folder, Path(key))
        if self.problems or self.guarantee is None:
            raise UserError(" ".join(self.problems))
        return self.guarantee

    def report(self, path: str | Path) -> Path:
        """Write a new HTML page about the run, as `sfumato report` does."""
        from sfumato.report.page import write

        return write([self], Path(path), data=self._data, root=self._root, device=self._device,
                     trust_code=self._trust)  # fmt: skip

    def resume(
        self,
        *,
        data: object = None,
        model: GivenModel | None = None,
        device: str = "auto",
        reporter: Reporter | None = None,
    ) -> Run:
        """Go on with the run if it was interrupted, to the end; see `sfumato.resume`."""
        from sfumato.training.pipeline import resume

        data = self._data if data is None else data
        trust = self._trust if model is None else (*self._trust, model)
        resume(self.folder, data=data, root=self._root, device=device, reporter=reporter,
               trust_code=trust)  # fmt: skip
        return Run(self.folder, data=data, root=self._root, device=self._device, trust_code=trust)
