"""Private tuning: the best of a random number of runs, of which nothing else is left.

The number of runs is drawn from a distribution and kept secret, the settings of each are drawn
independently of the others and of all results, and one run after the other is trained and scored.
The run with the highest score is kept; every other one is deleted.

*Guarantee:* What `tune_privately` leaves in its folder (the best run, its settings and its score)
satisfies the epsilon of `sfumato.privacy.accounting.selection` at the recipe's delta. The number of
runs, the settings of each and the noise of its score follow from one key, which is deleted at the
end like the key of a run. So a tuning that was interrupted goes on to where it would have ended,
and spends nothing twice. Until it has ended, its folder holds the key and is as secret as the
images.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from sfumato.errors import UserError
from sfumato.io import json_lines
from sfumato.io.atomic import write_whole
from sfumato.io.locks import alone
from sfumato.privacy import ledger
from sfumato.privacy.accounting.accountants import merge
from sfumato.privacy.numerics.randomness import Randomness
from sfumato.recipe import Recipe, differences
from sfumato.training import run_folder
from sfumato.training.initial.shared_features import sharing_features
from sfumato.training.pipeline import resume, train
from sfumato.training.private_question import Question
from sfumato.training.proposals import drawn
from sfumato.training.run_score import Score

RECORD = "private-tuning.json"
"""What was asked, and at the end the settings and the score of the best run."""

BEST = "best"
WORK = "work"
STATE = "state.json"


@dataclass(frozen=True)
class Best:
    """The run that a private tuning has left.

    Attributes:
        folder: Its run folder; None if no run was drawn, as a Poisson distribution may.
        settings: The settings that were drawn for it.
        score: Its accuracy on the images that runs were compared on, with the noise of the score.
    """

    folder: Path | None
    settings: dict[str, Any]
    score: float | None


@sharing_features()
def tune_privately(
    question: Question,
    *,
    out: Path,
    root: Path | None = None,
    device: str = "auto",
    trust_code: Sequence[str] = (),
) -> Best:
    """Train and score the runs, and leave the best one; or go on where it was interrupted.

    Nothing is reported while it is at work: the number of runs is secret.

    Args:
        question: What was asked for.
        out: Folder of the tuning: new, or one of the same question.
        root: First folder to search for data sets.
        device: `auto`, `cpu`, `cuda` or `mps`.
        trust_code: Modules outside sfumato whose models the recipe may name.

    Raises:
        UserError: If the folder holds something else, or its key is gone.
        Stopped: If asked to stop.
    """
    run_folder.refuse_links(out)
    with alone(out):
        if (ended := _opened(out, question)) is not None:
            return ended
        key = Randomness((out / WORK / run_folder.KEY).read_bytes(), seeded=False)
        score = Score(
            question.recipe, question.selection.score_noise, question.score_data, key, root=root,
            device=device, trust_code=trust_code,
        )  # fmt: skip
        (uniform,) = key.stream(0, "number").uniforms(1)
        state = _State.read(out / WORK)
        state.clear(out / WORK)
        for number in range(state.following, question.selection.number(uniform) + 1):
            folder, settings = out / WORK / str(number), _settings(question, key, number)
            recipe = question.recipe.replace(settings)
            with _unless_refused(out, number):
                _train(recipe, question, folder, root, device, trust_code)
            state = state.after(number, score.of(folder, number))
            state.write(out / WORK)
        return _released(out, question, key, state)


def _settings(question: Question, key: Randomness, number: int) -> dict[str, Any]:
    """The settings of a run."""
    stream = key.stream(number, "settings")
    return drawn(question.choices, stream.uniforms(len(question.choices)))


def _train(
    recipe: Recipe,
    question: Question,
    folder: Path,
    root: Path | None,
    device: str,
    trust_code: Sequence[str],
) -> None:
    """Train or resume one run.

    Raises:
        RuntimeError: Its steps are not those that the total was computed for.
    """
    if not (folder / run_folder.LEDGER).is_file():
        shutil.rmtree(folder, ignore_errors=True)  # Killed before its first step.
        train(
            recipe, out=folder, root=root, device=device, trust_code=trust_code,
            selection=question.selection,
        )  # fmt: skip
    elif not run_folder.finished(folder):
        resume(folder, root=root, device=device, trust_code=trust_code)
    _, taken = ledger.read(folder / run_folder.LEDGER)
    if merge(taken) != question.steps:
        raise RuntimeError(f"a run took other steps ({merge(taken)}) than the total counts")


@dataclass(frozen=True)
class _State:
    """What is known between two runs: the next one, and the best so far with its score."""

    following: int = 1
    best: int = 0
    score: float = -float("inf")

    @classmethod
    def read(cls, work: Path) -> _State:
        """The state on disk, or the first one."""
        path = work / STATE
        if not path.is_file():
            return cls()
        content = json.loads(path.read_bytes())
        return cls(int(content["following"]), int(content["best"]), float(content["score"]))

    def after(self, number: int, score: float) -> _State:
        """The state after a run, which becomes the best one if its score is higher.

        Of equal scores the first stays. Runs are exchangeable: what is released has the same
        distribution by any rule that does not look at them.
        """
        if score > self.score:
            return _State(number + 1, number, score)
        return replace(self, following=number + 1)

    def write(self, work: Path) -> None:
        """Write it, whole or not at all, and then delete the run that lost."""
        write_whole(work / STATE, json.dumps(asdict(self)).encode())
        self.clear(work)

    def clear(self, work: Path) -> None:
        """Delete all runs but the best one and the next."""
        for folder in work.iterdir():
            if folder.is_dir() and folder.name not in (str(self.best), str(self.following)):
                seal(folder)


def seal(folder: Path) -> None:
    """Delete a run that is not released, its key first, with its ledger and everything else.

    *Guarantee:* No key of a ledger that is still there is left, whenever the process is killed. The
    ledger of the run that is released states the choice, which counts those of all the others.
    """
    (folder / run_folder.KEY).unlink(missing_ok=True)
    shutil.rmtree(folder)


def _opened(out: Path, question: Question) -> Best | None:
    """Begin a tuning, or open one that was begun; its result if it has ended.

    The budget is spent from here on.
    """
    asked, path = question.to_dict(), out / RECORD
    if not path.is_file():
        run_folder.check_free(out)
        (out / WORK).mkdir(parents=True)
        write_whole(out / WORK / run_folder.KEY, Randomness.fresh().key, mode=0o600)
        write_whole(path, _text({"asked": asked}))
        return None
    try:
        content = json_lines.parse(path.read_bytes())
        before, ended = content["asked"], content.get("best")
    except (ValueError, KeyError, TypeError, AttributeError) as reason:
        raise UserError(f"{path} is damaged ({reason}): choose another --out.") from None
    if changed := differences(before, asked):
        raise UserError(
            f"{out} holds a private tuning of something else: {'; '.join(changed)}. What was begun "
            "has spent its budget; go on with the same command, or choose another --out and count "
            "both."
        )
    if ended is not None:
        found = Best(
            None if ended["score"] is None else out / BEST, dict(ended["settings"]), ended["score"]
        )
        if (out / WORK).exists():  # Killed at the very end.
            shutil.rmtree(out / WORK)
            _without_clock(out, found.folder or path)
        return found
    if not (out / WORK / run_folder.KEY).is_file():
        raise UserError(
            f"{out} was begun, and its key {out / WORK / run_folder.KEY} is gone: it cannot go on, "
            "and its budget is spent. Choose another --out, and count both."
        )
    return None


def _unless_refused(out: Path, number: int) -> AbstractContextManager[None]:
    """Remove a new folder if the first run is refused before it has begun."""
    begun = out / WORK / str(number) / run_folder.LEDGER
    return run_folder.unless_refused(out, lambda: number > 1 or begun.exists())


def _released(out: Path, question: Question, key: Randomness, state: _State) -> Best:
    """Move the best run to its place, delete everything else, and write what is known of it."""
    settings = _settings(question, key, state.best) if state.best else {}
    score = state.score if state.best else None
    best = out / BEST
    if state.best and not best.is_dir():
        os.rename(out / WORK / str(state.best), best)
    _without_clock(out, out / RECORD)
    found = {"settings": settings, "score": score}
    write_whole(out / RECORD, _text({"asked": question.to_dict(), "best": found}))
    shutil.rmtree(out / WORK)
    _without_clock(out, best if state.best else out / RECORD)
    return Best(best if state.best else None, settings, score)


def _without_clock(out: Path, began: Path) -> None:
    """Give everything in a folder the modification time of one that tells when it was begun.

    *Guarantee:* Copies and archives show neither when the best run was trained nor when the last
    one was, and so not how many there were. (The file system of the original still knows.)
    """
    then = os.stat(began).st_mtime_ns
    for path in (*out.rglob("*"), out):
        os.utime(path, ns=(then, then))


def _text(content: Mapping[str, Any]) -> bytes:
    return f"{json.dumps(content, indent=1, ensure_ascii=False)}\n".encode()
