"""Runs on several ranks: the files of a run in one process, and no rank that hangs."""

from __future__ import annotations

import dataclasses
import os
import signal
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from processes import Failed, on_ranks
from safetensors.torch import load_file
from torch import nn

from sfumato import data, recipes
from sfumato.api import audit, resume, train
from sfumato.distributed.ranks import Ranks
from sfumato.privacy import ledger
from sfumato.recipe import Recipe
from sfumato.settings import Optimizer
from sfumato.training import metrics, optimizers, rank_agreement, run_folder
from sfumato.training.classifier import read_weights
from sfumato.training.loop import Loop, Stopped
from sfumato.training.reporter import Progress, Silent
from tiny_run import TINY

SAME = (run_folder.WEIGHTS, run_folder.LEDGER, run_folder.STATEMENT, run_folder.RECIPE)
SHARDED = {"optimizer.sharded": True, "optimizer.name": "adamw", "optimizer.lr": 0.01}
CASES: dict[str, dict[str, Any]] = {
    "views": {
        "training.views": 2, "augment.crop": 1, "augment.flip": True, "training.average": 0.9,
        "optimizer.name": "nadam", "privacy.clipping": "adaptive",
    },
    "early stop": {
        "data.validation": 0.1, "training.early_stop": 1.0, "optimizer.lr": 1e-9,
        "training.log_every": 1, "training.steps": 20,
    },
    "features once": {"model.name": "scatternet", "model.options": {}},
    "fewer examples than ranks": {"training.batch": 1},
    "sharded optimizer in phases": SHARDED | {
        "training.phases": [{"steps": 2, "train": ["head"], "lr": 0.1}, {}],
    },
    "units of several images": {
        "data.unit": "patient", "data.per_unit": 2, "training.physical_batch": 4,
        "training.batch": 14, "training.views": 2, "augment.crop": 1,
    },
}  # fmt: skip
"""What is peculiar to each run; most physical batches hold 16 examples."""


@pytest.fixture(scope="module")
def few(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A file with a few images."""
    path = tmp_path_factory.mktemp("data") / "few.npz"
    whole = data.load("digits").train
    units = np.arange(240) // 3
    np.savez(path, images=whole.images[:240, 0], labels=whole.labels[:240], units=units)
    return path


def tiny(few: Path, **changes: Any) -> Recipe:
    """Four steps on a few digits."""
    settings = TINY | {
        "training.seed": 3, "training.physical_batch": 16, "privacy.noise_multiplier": 2.0,
        "training.epochs": None, "training.checkpoint_every": 2, "privacy.accountant": "rdp",
        "data.name": str(few), "privacy.epsilon": 50.0, "privacy.delta": 1e-4,
    }  # fmt: skip
    return recipes.find("digits").replace(settings | changes)


def run_cases(names: list[str], folder: Path, few: Path) -> None:
    for name in names:
        train(tiny(few, **CASES[name]), out=folder / name, device="cpu")


def weights(folder: Path) -> torch.Tensor:
    return torch.cat([t.flatten() for t in read_weights(folder / run_folder.WEIGHTS)[1].values()])


QUICK = ["views", "sharded optimizer in phases", "units of several images"]
OTHERS = [name for name in CASES if name not in QUICK]


@pytest.mark.parametrize(
    ("names", "sizes"),
    [(QUICK, (1, 4)), pytest.param(OTHERS, (1, 2, 4), marks=pytest.mark.slow)],
    ids=["quick", "others"],
)
def test_a_run_leaves_the_same_files_on_any_number_of_ranks(
    names: list[str], sizes: tuple[int, ...], tmp_path: Path, few: Path
) -> None:
    for size in sizes:
        found = on_ranks(size, run_cases, names, tmp_path / str(size), few)
        assert found == [None] * size
        for name in names:
            one, other = tmp_path / "1" / name, tmp_path / str(size) / name
            assert {path.name for path in one.iterdir()} == {p.name for p in other.iterdir()}
            for file in SAME:
                assert (one / file).read_bytes() == (other / file).read_bytes(), (other, file)
            mine, theirs = (
                {path.name: path for path in (folder / run_folder.CHECKPOINTS).iterdir()}
                for folder in (one, other)
            )
            # After a step that takes long there is a checkpoint more, and an earlier one less.
            assert max(mine) == max(theirs)
            for file in mine.keys() & theirs.keys():
                ours, other_ones = load_file(mine[file]), load_file(theirs[file])
                assert ours.keys() == other_ones.keys(), theirs[file]
                assert all(torch.equal(t, other_ones[n]) for n, t in ours.items()), theirs[file]
    if "early stop" in names:
        assert metrics.read(tmp_path / "4" / "early stop" / run_folder.METRICS)[-1]["step"] < 20


def with_a_key(folder: Path, few: Path) -> str:
    """A run whose key rank 0 draws; the device that was chosen for it."""
    return str(train(tiny(few, **{"training.seed": None}), out=folder, device="auto").folder)


def test_a_key_from_the_operating_system_is_known_to_all_ranks(tmp_path: Path, few: Path) -> None:
    assert on_ranks(2, with_a_key, tmp_path / "run", few) == [str(tmp_path / "run")] * 2
    assert not (tmp_path / "run" / run_folder.KEY).exists()
    assert len(ledger.read(tmp_path / "run" / run_folder.LEDGER)[1]) == 4


def unlike(kind: str, folder: Path, few: Path) -> None:
    """A run in which rank 1 is not like rank 0."""
    recipe, other = tiny(few), Ranks.current().rank == 1
    if other and kind == "recipe":
        recipe = tiny(few, **{"optimizer.lr": 0.5})
    if other and kind == "versions":
        rank_agreement.current_versions = lambda: {"sfumato": "0.0.1"}  # type: ignore[attr-defined]
    if other and kind == "device":
        rank_agreement._kind = lambda _: "NVIDIA A100"  # type: ignore[assignment]
    if kind == "data":
        drawn = torch.Generator().manual_seed(0)
        images = torch.randint(256, (400, 1, 8, 8), dtype=torch.uint8, generator=drawn)
        labels = (torch.arange(400) + other) % 2
        train((images, labels), recipe=tiny(few), out=folder, device="cpu")
    if kind == "unreadable":
        os.chdir(folder.parent if other else few.parent)
        recipe = tiny(Path("./few.npz"))
    if other and kind == "bug":
        Loop.take_step = lambda *_: 1 / 0  # type: ignore[assignment,method-assign]
    if other and kind == "later":
        step = Loop.take_step

        def changed(loop: Loop) -> Any:
            loop.common = {**loop.common, "training set": "another"}
            return step(loop)

        Loop.take_step = changed  # type: ignore[assignment,method-assign]
    train(recipe, out=folder, device="cpu")


@pytest.mark.parametrize(
    ("kind", "sentence"),
    [
        ("recipe", "Rank 1 of 2 has another recipe than rank 0: they differ in optimizer.lr. "),
        ("versions", "Rank 1 of 2 has another version of sfumato than rank 0 (0.0.1 instead of"),
        ("device", "Rank 1 of 2 has another device than rank 0 (NVIDIA A100 instead of cpu)"),
        ("data", "Rank 1 of 2 has another training set than rank 0"),
        ("unreadable", "Rank 1 of 2: There is no data set and no file"),
        ("bug", "Rank 1 of 2: ZeroDivisionError: division by zero"),
        ("later", "Rank 1 of 2 has another training set than rank 0 (another instead of"),
    ],
)
def test_ranks_that_differ_are_refused_on_all(
    tmp_path: Path, few: Path, kind: str, sentence: str
) -> None:
    began = time.monotonic()
    leader, other = on_ranks(2, unlike, kind, tmp_path / "run", few)
    assert isinstance(leader, Failed) and leader.split(": ", 1)[1].startswith(sentence)
    assert isinstance(other, Failed)
    assert time.monotonic() - began < 30
    # Rank 0 has recorded the step that another rank then failed in.
    assert (tmp_path / "run").exists() == (kind in ("bug", "later"))


def order_of_reading(folder: Path) -> list[float]:
    """When this rank began to read and when it had read."""
    began: list[float] = []

    def read() -> Any:
        began.append(time.monotonic())
        time.sleep(0.2)
        return data.load("digits")

    rank_agreement.load_in_turns(Ranks.current(), read)
    return [*began, time.monotonic()]


def test_one_rank_of_a_machine_reads_before_the_others(tmp_path: Path) -> None:
    first, second, third = on_ranks(3, order_of_reading, tmp_path)
    assert [len(times) for times in (first, second, third)] == [2, 2, 2]
    assert first[0] + 0.2 <= min(second[0], third[0])


class AfterStep(Silent):
    """Does something on one rank after a step; rank 0 alone reports steps."""

    def __init__(self, step: int, number: int) -> None:
        self._step, self._number = step, number

    def show(self, progress: Progress) -> None:
        if progress.step == self._step:
            os.kill(os.getpid(), self._number)


def stopped_by(number: int, folder: Path, few: Path, changes: dict[str, Any]) -> None:
    reporter = AfterStep(2, number) if number else None
    train(tiny(few, **changes), out=folder, device="cpu", reporter=reporter)


def resumed(folder: Path) -> None:
    resume(folder, device="cpu")


@pytest.mark.parametrize(
    "changes",
    [
        pytest.param({}, id="replicated"),
        pytest.param(SHARDED, id="sharded", marks=pytest.mark.slow),
    ],
)
def test_a_signal_to_one_rank_stops_all_after_one_step(
    tmp_path: Path, few: Path, changes: dict[str, Any]
) -> None:
    found = on_ranks(2, stopped_by, signal.SIGTERM, tmp_path / "run", few, changes)
    assert found == ["Stopped: stopped after step 3"] * 2
    assert on_ranks(3, resumed, tmp_path / "run") == [None] * 3
    assert on_ranks(1, stopped_by, 0, tmp_path / "whole", few, changes) == [None]
    for file in SAME:
        assert (tmp_path / "run" / file).read_bytes() == (tmp_path / "whole" / file).read_bytes()


def states_of_own(settings: Optimizer) -> tuple[int, bool]:
    """The parameters that this rank has an optimizer's state of, and whether weights are equal."""
    torch.manual_seed(1)
    sharded, plain = (nn.Sequential(nn.Linear(3, 4), nn.Linear(4, 2)) for _ in range(2))
    plain.load_state_dict(sharded.state_dict())
    ours = optimizers.build(settings, sharded.parameters())
    theirs = optimizers.build(dataclasses.replace(settings, sharded=False), plain.parameters())
    for rate in (0.1, 0.03):
        for p, q in zip(sharded.parameters(), plain.parameters(), strict=True):
            p.grad = torch.randn_like(p)
            q.grad = p.grad.clone()
        for optimizer in (ours, theirs):
            optimizer.param_groups[0]["lr"] = rate
            optimizer.step()
    pairs = zip(sharded.parameters(), plain.parameters(), strict=True)
    return len(getattr(ours, "optim", ours).state), all(torch.equal(p, q) for p, q in pairs)


def states_of_all() -> list[tuple[int, bool]]:
    names = ("sgd", "adam", "nadam", "rmsprop")
    return [states_of_own(Optimizer(name=n, momentum=0.9, sharded=True)) for n in names]


def test_ranks_have_optimizer_states_of_different_parameters() -> None:
    for of_one, of_other in zip(*on_ranks(2, states_of_all), strict=True):
        (one, equal), (other, also) = of_one, of_other
        assert one + other == 4 and min(one, other) > 0 and equal and also


def on_another_machine(folder: Path, few: Path) -> list[str]:
    """Half a run and the rest of it, where rank 0 alone sees the folder; files that ranks leave."""
    here = folder / str(Ranks.current().rank)
    here.mkdir(parents=True)
    os.chdir(here)
    with pytest.raises(Stopped):
        train(tiny(few), out="run", device="cpu", reporter=AfterStep(2, signal.SIGTERM))
    assert str(resume("run", device="cpu").folder) == "run"
    return [path.name for path in here.iterdir()]


def test_other_ranks_need_not_see_the_run_folder(tmp_path: Path, few: Path) -> None:
    assert on_ranks(2, on_another_machine, tmp_path, few) == [["run"], []]


def killed(victim: int, folder: Path, few: Path, seconds: float, steps: int) -> None:
    """A run of which one rank is killed after a time; begun or resumed."""
    if Ranks.current().rank == victim:
        timer = threading.Timer(seconds, os.kill, (os.getpid(), signal.SIGKILL))
        timer.daemon = True
        timer.start()
    if (folder / run_folder.LEDGER).exists():
        resume(folder, device="cpu")
    else:
        train(tiny(few, **{"training.steps": steps}), out=folder, device="cpu")


@pytest.mark.parametrize("kills", [2, pytest.param(20, marks=pytest.mark.slow)])
def test_killed_at_random_moments_and_resumed_on_other_ranks(
    tmp_path: Path, few: Path, kills: int
) -> None:
    drawn = torch.Generator().manual_seed(kills)
    took_place, steps = 0, 15 * kills
    for number in range(kills):
        size = 2 + number % 3
        victim = int(torch.randint(size, (), generator=drawn))
        seconds = 0.2 + 1.5 * float(torch.rand((), generator=drawn))
        began = time.monotonic()
        found = on_ranks(size, killed, victim, tmp_path / "run", few, seconds, steps)
        assert time.monotonic() - began < 60
        if found[victim] != "killed":
            break
        took_place += 1
        others = [text for rank, text in enumerate(found) if rank != victim]
        assert all("Another process of this run has ended" in text for text in others), others
        if run_folder.finished(tmp_path / "run"):
            break
    assert took_place >= 0.8 * kills
    if not run_folder.finished(tmp_path / "run"):
        assert on_ranks(2, killed, -1, tmp_path / "run", few, 0.0, steps) == [None] * 2
    assert on_ranks(1, killed, -1, tmp_path / "whole", few, 0.0, steps) == [None]
    for file in SAME:
        assert (tmp_path / "run" / file).read_bytes() == (tmp_path / "whole" / file).read_bytes()


def uneven(folder: Path, few: Path) -> None:
    """A run whose physical batch is larger than a rank's share."""
    recipe = tiny(few, **{"training.physical_batch": 64})
    train(recipe, out=folder, device="cpu")


def test_shares_smaller_than_a_physical_batch_keep_all_ranks_busy(
    tmp_path: Path, few: Path
) -> None:
    assert on_ranks(1, uneven, tmp_path / "1", few) == [None]
    assert on_ranks(4, uneven, tmp_path / "4", few) == [None] * 4
    assert (weights(tmp_path / "1") - weights(tmp_path / "4")).abs().max() < 1e-6
    for file in (run_folder.LEDGER, run_folder.RECIPE):
        assert (tmp_path / "1" / file).read_bytes() == (tmp_path / "4" / file).read_bytes()
    assert dataclasses.replace(Ranks(), size=4).share(70, 20).tolist() == [*range(20)]


def audited(score: str, folder: Path, few: Path) -> None:
    audit(tiny(few), canaries=19, score=score, out=folder, device="cpu")


@pytest.mark.parametrize("score", ["released", pytest.param("weights", marks=pytest.mark.slow)])
def test_an_audit_finds_the_same_on_any_number_of_ranks(
    score: str, tmp_path: Path, few: Path
) -> None:
    one, two = tmp_path / "1", tmp_path / "2"
    assert on_ranks(1, audited, score, one, few) == [None]
    assert on_ranks(2, audited, score, two, few) == [None] * 2
    for file in (run_folder.LEDGER, run_folder.STATEMENT, run_folder.AUDIT):
        assert (one / file).read_bytes() == (two / file).read_bytes()
