"""Runs whose unit of privacy has several images."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from sfumato import data
from sfumato.api import resume, train
from sfumato.data.imageset import Dataset
from sfumato.privacy import one_at_a_time
from sfumato.privacy.per_example import PerExample
from sfumato.recipe import Recipe
from sfumato.training.classifier import read_weights
from sfumato.training.loop import Loop, Stopped
from sfumato.training.run_folder import LEDGER, STATEMENT, WEIGHTS
from tiny_run import TINY

SETTINGS: dict[str, Any] = TINY | {
    "training.seed": 3, "training.physical_batch": 8, "privacy.noise_multiplier": 2.0,
    "training.epochs": None, "training.steps": 3, "training.batch": 20, "data.per_unit": 3,
    "data.unit": "patient", "privacy.accountant": "rdp", "privacy.epsilon": 90.0,
    "privacy.delta": 1e-4,
}  # fmt: skip


def images(sizes: list[int] | None = None) -> Dataset:
    """Digits, some of which belong to one patient."""
    whole = data.load("digits")
    units = None
    if sizes is not None:
        ids = np.repeat(np.arange(len(sizes)) * 17 % 1009, sizes).astype(np.int64)
        units = np.resize(ids, 240)
        units[len(ids) :] = 2000 + np.arange(max(0, 240 - len(ids)))
        units = units[np.random.default_rng(0).permutation(240)]
    return replace(whole, train=replace(whole.train.take(np.arange(240)), units=units))


def recipe(**changes: Any) -> Recipe:
    return Recipe(name="units").replace(SETTINGS | changes)


def weights(folder: Path) -> dict[str, Tensor]:
    return read_weights(folder / WEIGHTS)[1]


def close(a: Path, b: Path) -> None:
    for name, mine in weights(a).items():
        torch.testing.assert_close(mine, weights(b)[name], rtol=1e-5, atol=1e-6)


SIZES = [1, 7, 2, 3, 1, 5, 12, 1, 4, 2] * 5


def test_units_of_one_image_each_are_the_run_without_units(tmp_path: Path) -> None:
    plain = recipe(**{"data.unit": "image"})
    first = train(images(), recipe=plain, out=tmp_path / "a", device="cpu")
    alone = images([1] * 240)
    alone = replace(alone, train=replace(alone.train, units=np.arange(240)[::-1].copy()))
    second = train(alone, recipe=recipe(), out=tmp_path / "b", device="cpu")
    for name, mine in weights(first.folder).items():
        assert torch.equal(mine, weights(second.folder)[name])


def test_the_ledger_and_the_statement_count_units(tmp_path: Path) -> None:
    given = images(SIZES)
    run = train(given, recipe=recipe(), out=tmp_path / "a", device="cpu")
    header = json.loads((run.folder / LEDGER).read_text().splitlines()[0])
    count = len(np.unique(given.train.units))
    assert header["examples"] == count < 240 and header["rate"] == 20 / count
    assert header["relation"] == "add or remove one patient"
    assert run.guarantee is not None and run.guarantee.unit == "patient"
    text = " ".join((run.folder / STATEMENT).read_text().split())
    for words in (
        "one patient (at most 3 images each step, averaged before clipping)",
        f"training patients N | {count}",
        "leaving out one training patient",
        "views per image",
        "patients together",
    ):
        assert words in text, words
    assert "one image" not in text and "of one person" not in text
    assert run.verify()


@pytest.mark.parametrize(
    "changes",
    [
        pytest.param({"training.views": 2, "augment.crop": 1, "augment.flip": True}, id="views"),
        pytest.param({"privacy.clipping": "per-layer"}, id="per layer", marks=pytest.mark.slow),
        pytest.param(
            {"model.name": "scatternet", "model.options": {}},
            id="features once",
            marks=pytest.mark.slow,
        ),
    ],
)
def test_physical_batches_do_not_change_the_result(tmp_path: Path, changes: dict[str, Any]) -> None:
    found = []
    for size in (1, 64):
        own = recipe(**{"training.physical_batch": size, "training.steps": 2}, **changes)
        found.append(
            train(images(SIZES), recipe=own, out=tmp_path / str(size), device="cpu").folder
        )
    close(*found)


def test_a_unit_that_does_not_fit_runs_in_parts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    short = recipe(**{"training.steps": 1})
    roomy = train(images(SIZES), recipe=short, out=tmp_path / "a", device="cpu").folder
    whole = PerExample.__call__

    def cramped(self: PerExample, x: Tensor, y: Tensor) -> object:
        if len(x) > 1:
            raise torch.OutOfMemoryError("CUDA out of memory")
        return whole(self, x, y)

    monkeypatch.setattr(PerExample, "__call__", cramped)
    close(roomy, train(images(SIZES), recipe=short, out=tmp_path / "b", device="cpu").folder)


def test_resuming_changes_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = train(images(SIZES), recipe=recipe(), out=tmp_path / "a", device="cpu").folder
    step = Loop.take_step

    def stopping(self: Loop, draw: Tensor | None = None) -> object:
        if self.step == 2:
            self.save()
            raise Stopped(self.folder, 2, 2)
        return step(self, draw)

    with monkeypatch.context() as patch:
        patch.setattr(Loop, "take_step", stopping)
        with pytest.raises(Stopped):
            train(images(SIZES), recipe=recipe(), out=tmp_path / "b", device="cpu")
    resume(tmp_path / "b", data=images(SIZES), device="cpu")
    for name, mine in weights(whole).items():
        assert torch.equal(mine, weights(tmp_path / "b")[name])


def test_a_step_is_the_sum_of_clipped_means_of_units(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What the loop accumulates, against one unit at a time through autograd."""
    given, seen = images(SIZES), []
    release = Loop.take_step

    def compare(self: Loop, draw: Tensor | None = None) -> object:
        drawn = self.plan.sampler.whole_draw(self.randomness.stream(self.step + 1, "sample"))
        own = self.feed.units.of(drawn, self.step + 1)
        wanted = 0.0
        for unit in range(len(drawn)):
            some = own.images[unit][own.there[unit]]
            assert len(set(given.train.units[some.numpy()])) == 1  # type: ignore[index]
            assert len(some) == min(3, int((given.train.units == given.train.units[some[0]]).sum()))  # type: ignore[index]
            x, y = self.store.gather(some)
            found = one_at_a_time(self.model, self.store.normalise(x), y)
            mean = torch.cat([t.double().mean(0).flatten() for t in found.tensors if t is not None])
            wanted = wanted + mean * min(1.0, self.recipe.privacy.clip / float(mean.norm()))
        self.feed.accumulate(drawn, self.step + 1)
        sums = self.private._sum.totals
        assert sums is not None and self.private._sum.statistics.examples == len(drawn)
        ours = torch.cat([s.double().flatten() for s in sums.values()])
        torch.testing.assert_close(ours, wanted, rtol=1e-3, atol=1e-6)
        seen.append(len(drawn))
        self.private.discard()
        return release(self, draw)

    monkeypatch.setattr(Loop, "take_step", compare)
    train(given, recipe=recipe(), out=tmp_path / "a", device="cpu")
    assert len(seen) == 3 and max(seen) > 10


def test_units_are_never_separated() -> None:
    given = images(SIZES)
    split = replace(given, validation=None).split_validation(0.3, seed=1)
    assert split.validation is not None and split.validation.units is not None
    kept, held = set(split.train.units), set(split.validation.units)  # type: ignore[arg-type]
    assert kept and held and not kept & held
    assert len(split.train) + len(split.validation) == 240
    assert given.fingerprint() != images().fingerprint()
