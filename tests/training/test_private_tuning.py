"""Private tuning leaves the best run, its cost, and nothing of the others."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import sfumato
from sfumato import recipes
from sfumato.errors import UserError
from sfumato.privacy.accounting.accountants import epsilon, merge
from sfumato.privacy.accounting.selection import Selection
from sfumato.privacy.guarantee import Guarantee
from sfumato.privacy.ledger import read
from sfumato.privacy.numerics.randomness import Randomness
from sfumato.recipe import Recipe
from sfumato.training import private_tuning, run_score
from sfumato.training.loop import Loop
from sfumato.training.private_question import Question, ask
from sfumato.training.private_tuning import BEST, RECORD, WORK, Best, tune_privately
from sfumato.training.proposals import Choice, Range, drawn
from sfumato.training.run_score import Score
from thinning import one_in
from tiny_run import TINY

CHOICES: dict[str, Choice] = {"optimizer.lr": Range(0.5, 8.0), "privacy.clip": [0.5, 1.0]}


class Killed(BaseException):
    """The end of a process in the middle of its work."""


def tiny(**changes: Any) -> Recipe:
    return recipes.find("digits").replace({**TINY, "training.steps": 2, **changes})


def asked(mean: float = 3.0, distribution: str = "logarithmic", **changes: Any) -> Question:
    return ask(tiny(**changes), CHOICES, mean=mean, distribution=distribution)


@pytest.fixture
def runs(monkeypatch: pytest.MonkeyPatch) -> Callable[[int], None]:
    """Sets the number of runs that is drawn."""

    def fix(number: int) -> None:
        monkeypatch.setattr(Selection, "number", lambda self, uniform: number)

    return fix


@pytest.fixture
def key(monkeypatch: pytest.MonkeyPatch) -> None:
    """Makes every tuning draw the same numbers."""
    monkeypatch.setattr(Randomness, "fresh", classmethod(lambda cls: cls(bytes(32), False)))


def scored(monkeypatch: pytest.MonkeyPatch, scores: list[float]) -> list[Path]:
    """Gives runs these scores, and collects their folders."""
    seen: list[Path] = []

    def of(self: Score, folder: Path, number: int) -> float:
        seen.append(folder)
        return scores[number - 1]

    monkeypatch.setattr(Score, "of", of)
    return seen


def drawn_settings(question: Question, number: int) -> dict[str, Any]:
    stream = Randomness(bytes(32), False).stream(number, "settings")
    return drawn(question.choices, stream.uniforms(len(question.choices)))


def test_the_run_with_the_highest_score_is_left(
    tmp_path: Path, runs: Callable[[int], None], key: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    runs(3)
    seen = scored(monkeypatch, [0.2, 0.7, 0.7])
    question, out = asked(), tmp_path / "t"
    best = tune_privately(question, out=out, device="cpu")
    assert best == Best(out / BEST, drawn_settings(question, 2), 0.7) and len(seen) == 3
    recipe = sfumato.open(out / BEST).recipe
    assert recipe.optimizer.lr == best.settings["optimizer.lr"]
    assert recipe.privacy.clip == best.settings["privacy.clip"]
    assert tune_privately(question, out=out, device="cpu") == best, "the same command shows it"
    assert len(seen) == 3, "and runs nothing"


def test_nothing_of_the_other_runs_is_left(
    tmp_path: Path, runs: Callable[[int], None], key: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    runs(3)
    keys: list[bytes] = []
    others: list[float] = []
    own = tiny().optimizer.lr
    seen = scored(monkeypatch, [0.11111, 0.77777, 0.22222])
    plain = private_tuning.seal

    def sealed(folder: Path) -> None:
        others.append(sfumato.open(folder).recipe.optimizer.lr)
        keys.extend(path.read_bytes() for path in folder.rglob("secret.key"))
        plain(folder)

    monkeypatch.setattr(private_tuning, "seal", sealed)
    out = tmp_path / "t"
    best = tune_privately(asked(), out=out, device="cpu")
    assert len(seen) == 3 and len(others) == 2 and own not in others
    kept = {path.relative_to(out).as_posix() for path in out.rglob("*") if path.is_file()}
    assert kept == {
        RECORD,
        *(
            f"{BEST}/{name}"
            for name in (
                "checkpoints/step-0000000.safetensors", "checkpoints/step-0000002.safetensors",
                "curves.png", "guarantee.json", "ledger.jsonl", "metrics.jsonl",
                "model.safetensors", "recipe.toml", "statement.md",
            )
        ),
    }  # fmt: skip
    assert os.listdir(tmp_path) == ["t"], "no lock, no temporary file"
    assert best.settings["optimizer.lr"] not in others
    secrets = [b"0.11111", b"0.22222", *keys, str(seen[1].parent).encode()]
    for path in (path for path in out.rglob("*") if path.is_file()):
        content = path.read_bytes()
        assert not [secret for secret in secrets if secret in content], path
        if path.suffix not in (".png", ".safetensors"):
            numbers = re.findall(r"[0-9.]+", content.decode())
            assert not [rate for rate in others if f"{rate}" in numbers], path
    clocks = {path.stat().st_mtime_ns for path in (out, *out.rglob("*"))}
    assert len(clocks) == 1, "no clock of the runs"


def test_what_is_left_does_not_depend_on_how_many_runs_there_were(
    tmp_path: Path, runs: Callable[[int], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The best run comes first, and is followed by nothing, or by several that lose."""
    kept = []
    question = asked()
    scored(monkeypatch, [0.9, 0.1])
    fixed = classmethod(lambda cls: cls(bytes(32), False))
    for number in (1, 2):
        runs(number)
        out = tmp_path / str(number)
        monkeypatch.setattr(Randomness, "fresh", fixed)
        monkeypatch.setattr(Randomness, "shared", fixed)
        tune_privately(question, out=out, device="cpu")
        files = sorted(path for path in out.rglob("*") if path.is_file())
        names = [str(path.relative_to(out)) for path in files]
        kept.append(dict(zip(names, (path.read_bytes() for path in files), strict=True)))
    assert kept[0].keys() == kept[1].keys()
    for name in kept[0]:
        if "checkpoints" not in name:  # Their metadata have no fixed order.
            assert kept[0][name] == kept[1][name], name


def test_the_total_is_in_the_guarantee_with_the_cost_of_one_run(tmp_path: Path) -> None:
    question, out = asked(2.0, "geometric"), tmp_path / "t"
    best = tune_privately(question, out=out, device="cpu")
    assert best.folder == out / BEST and best.score is not None
    header, steps = read(best.folder / "ledger.jsonl")
    assert Selection.of(header) == question.selection
    g = Guarantee.from_dict(json.loads((best.folder / "guarantee.json").read_text()))
    assert g == sfumato.open(best.folder).verify()
    total = Selection(2.0, "geometric").epsilon(steps, delta=1e-5)
    assert g.epsilon == {"rdp": total} and g.spent == total <= 3.0 < 1.001 * total
    assert total == question.epsilon, "known before anything was run"
    assert g.run_epsilon == {
        name: epsilon(steps, delta=1e-5, accountant=name)  # type: ignore[arg-type]
        for name in ("pld", "rdp")
    }
    assert g.exposures[0].selected and g.exposures[0].epsilon == g.epsilon
    text = " ".join((best.folder / "statement.md").read_text().split())
    assert f"({total:.4g}" not in text or f"**({total:.4g}, 1e-05)" in text
    assert "geometric distribution, mean 2" in text and "How many there were is not known" in text
    assert "so that ε above holds for the images held out as well" in text
    assert "their cost is not in the numbers above" not in text


def test_no_exact_result_on_held_out_images_is_in_a_run(tmp_path: Path) -> None:
    best = tune_privately(asked(1.0), out=tmp_path / "t", device="cpu")
    assert best.folder is not None
    run = sfumato.open(best.folder)
    assert run.recipe.data.validation == 0.1 and run.validation_accuracy is None
    assert not [key for record in run.records for key in record if "accuracy" in key]
    assert "validation" not in (best.folder / "metrics.jsonl").read_text()


def test_a_score_is_the_count_of_right_predictions_with_its_noise(tmp_path: Path) -> None:
    question, out = asked(1.0), tmp_path / "t"
    best = tune_privately(question, out=out, device="cpu")
    assert best.folder is not None
    noise = question.selection.score_noise
    assert noise is not None
    key = Randomness(bytes(32), False)
    given: Any = {"root": None, "device": "cpu", "trust_code": ()}
    exact = Score(question.recipe, None, "", key, **given)
    images = len(exact._data.parts()["validation"])
    count = exact.of(best.folder, 1) * images
    assert count == round(count)
    noisy = Score(question.recipe, noise, "", key, **given)
    assert noisy.of(best.folder, 1) == noisy.of(best.folder, 1) != noisy.of(best.folder, 2)
    drawn = np.array([noisy._drawn(k) for k in range(1, 2001)])
    assert abs(drawn.mean()) < 0.1 * noise and drawn.std() == pytest.approx(noise, rel=0.06)
    assert np.all(drawn * run_score._GRID == np.round(drawn * run_score._GRID))
    assert (noisy.of(best.folder, 1) * images - count) == pytest.approx(drawn[0])


def test_public_images_are_scored_exactly_and_nothing_is_held_out(tmp_path: Path) -> None:
    random = np.random.default_rng(0)
    public = tmp_path / "public.npz"
    images, labels = random.integers(0, 256, (40, 8, 8), np.uint8), np.arange(40) % 10
    np.savez(public, x_train=images[:20], y_train=labels[:20], x_test=images[20:],
             y_test=labels[20:], classes=np.array([str(k) for k in range(10)]))  # fmt: skip
    question = ask(tiny(), CHOICES, mean=1.0, score_data=str(public))
    assert question.selection.score_noise is None and question.recipe.data.validation == 0
    best = tune_privately(question, out=tmp_path / "t", device="cpu")
    assert best.score is not None and round(40 * best.score, 9) == round(40 * best.score)
    text = " ".join((tmp_path / "t" / BEST / "statement.md").read_text().split())
    assert "which the user declared to be public" in text
    with pytest.raises(UserError, match="images of the runs themselves"):
        ask(tiny(), CHOICES, mean=1.0, score_data="digits")
    wrong = tmp_path / "wrong.npz"
    np.savez(wrong, x_train=images[:20], y_train=labels[:20] % 2, x_test=images[20:],
             y_test=labels[20:] % 2)  # fmt: skip
    with pytest.raises(UserError, match="has other classes"):
        ask(tiny(), CHOICES, mean=1.0, score_data=str(wrong))


def test_no_run_may_be_drawn(tmp_path: Path, runs: Callable[[int], None]) -> None:
    runs(0)
    question, out = asked(3.0, "poisson"), tmp_path / "t"
    best = tune_privately(question, out=out, device="cpu")
    assert best == Best(None, {}, None)
    assert [path.name for path in out.rglob("*")] == [RECORD]
    assert tune_privately(question, out=out, device="cpu") == best


@pytest.mark.parametrize(
    "moment", one_in(4, ["in a step", "after a run", "before a deletion", "at the end"])
)
def test_a_killed_tuning_ends_as_if_it_had_not_been(
    moment: str,
    tmp_path: Path,
    runs: Callable[[int], None],
    key: None,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    runs(2)
    question, out = asked(), tmp_path / "t"
    fixed = iter([bytes([k]) * 32 for k in range(1, 20)])
    shared = classmethod(lambda cls: cls(next(fixed), False))
    monkeypatch.setattr(Randomness, "shared", shared)
    whole = tune_privately(question, out=tmp_path / "whole", device="cpu")
    fixed = iter([bytes([k]) * 32 for k in range(1, 20)])
    calls = 0

    def kill(*_: Any, **__: Any) -> None:
        nonlocal calls
        calls += 1
        if calls == {"in a step": 4, "after a run": 2}.get(moment, 1):
            raise Killed

    with monkeypatch.context() as patch:
        if moment == "in a step":
            step = Loop.take_step
            patch.setattr(Loop, "take_step", lambda self: (kill(), step(self))[1])
        elif moment == "after a run":
            write = private_tuning._State.write
            patch.setattr(private_tuning._State, "write", lambda s, w: (kill(), write(s, w))[1])
        elif moment == "before a deletion":
            seal = private_tuning.seal
            patch.setattr(private_tuning, "seal", lambda folder: (kill(), seal(folder))[1])
        else:
            patch.setattr(private_tuning, "_without_clock", kill)
        with pytest.raises(Killed):
            tune_privately(question, out=out, device="cpu")
    assert (out / RECORD).is_file(), "the budget is spent"
    best = tune_privately(question, out=out, device="cpu")
    assert replace(best, folder=None) == replace(whole, folder=None)
    assert not (out / WORK).exists()
    files = [path for path in out.rglob("*") if path.is_file()]
    assert files and not [path for path in files if path.name == "secret.key"]
    assert (out / BEST / "ledger.jsonl").read_bytes() == (
        tmp_path / "whole" / BEST / "ledger.jsonl"
    ).read_bytes(), "the same run, with the same noise"


def test_a_tuning_without_its_key_cannot_go_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    question, out = asked(), tmp_path / "t"
    with monkeypatch.context() as patch:
        patch.setattr(private_tuning, "_train", lambda *_: (_ for _ in ()).throw(Killed))
        with pytest.raises(Killed):
            tune_privately(question, out=out, device="cpu")
    assert (out / WORK / "secret.key").stat().st_mode & 0o777 == 0o600
    (out / WORK / "secret.key").unlink()
    with pytest.raises(UserError, match="its budget is spent"):
        tune_privately(question, out=out, device="cpu")
    other = replace(question, recipe=question.recipe.replace({"optimizer.momentum": 0.5}))
    with pytest.raises(UserError, match=re.escape("optimizer.momentum")):
        tune_privately(other, out=out, device="cpu")


def test_a_first_run_that_is_refused_spends_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: Any, **__: Any) -> None:
        raise UserError("no")

    monkeypatch.setattr(private_tuning, "train", refuse)
    with pytest.raises(UserError, match="no"):
        tune_privately(asked(), out=tmp_path / "t", device="cpu")
    assert not (tmp_path / "t").exists()


def test_other_files_are_left_alone(tmp_path: Path) -> None:
    out = tmp_path / "t"
    out.mkdir()
    (out / "mine.txt").write_text("mine")
    with pytest.raises(UserError, match="already exists"):
        tune_privately(asked(), out=out, device="cpu")
    assert (out / "mine.txt").read_text() == "mine" and len(list(out.iterdir())) == 1


def test_runs_whose_steps_are_others_than_those_counted_are_not_released(tmp_path: Path) -> None:
    question = asked(1.0)
    wrong = replace(question, steps=merge([replace(question.steps[0], count=1)]))
    with pytest.raises(RuntimeError, match="other steps"):
        tune_privately(wrong, out=tmp_path / "t", device="cpu")
    assert not (tmp_path / "t" / BEST).exists()


def test_weights_beyond_all_bounds_are_a_bad_run_and_no_error(tmp_path: Path) -> None:
    question = ask(tiny(), {"optimizer.lr": [1e30]}, mean=1.0)
    best = tune_privately(question, out=tmp_path / "t", device="cpu")
    assert best.score is not None and best.score < 0.5


def test_no_run_starts_from_one_that_was_chosen_on_its_images(tmp_path: Path) -> None:
    tune_privately(asked(1.0), out=tmp_path / "t", device="cpu")
    chosen = {"start.source": str(tmp_path / "t" / BEST), "start.same_data": True}
    with pytest.raises(UserError, match="the best of several runs on this run's images"):
        sfumato.train(tiny(**chosen), out=tmp_path / "next", device="cpu")


@pytest.mark.parametrize(
    ("changes", "choices", "words"),
    [
        ({}, {}, "Say what to try"),
        ({}, {"optimizer.lr": []}, "names no value"),
        ({"privacy.enabled": False}, CHOICES, "only private runs"),
        ({"training.seed": 3}, CHOICES, "training.seed"),
        ({"training.diverged": 10.0}, CHOICES, "look at images without noise"),
        ({"training.early_stop": 1.0}, CHOICES, "look at images without noise"),
        ({"training.train_metrics": True}, CHOICES, "look at images without noise"),
        ({}, {"optimizer.schedule": ["constant", "plateau"]}, "look at images without noise"),
        ({}, {"training.batch": [32, 64]}, "training.batch cannot be tried with --private"),
        ({}, {"training.steps": Range(1, 5)}, "runs of one mechanism"),
        ({}, {"privacy.epsilon": [1.0, 2.0]}, "runs of one mechanism"),
        ({}, {"data.size": [8, 16]}, "runs of one mechanism"),
        ({}, {"data.validation": [0.1, 0.2]}, "the same held-out"),
        ({"privacy.epsilon": 0.002}, CHOICES, "best of several runs costs epsilon"),
    ],
)
def test_what_cannot_be_tuned_privately(
    changes: dict[str, Any], choices: dict[str, Choice], words: str
) -> None:
    with pytest.raises(UserError, match=words):
        ask(tiny(**changes), choices, mean=3.0)


def test_images_that_move_others_are_not_held_out(tmp_path: Path) -> None:
    random, own = np.random.default_rng(0), tmp_path / "own.npz"
    np.savez(own, images=random.integers(0, 256, (400, 8, 8), np.uint8), labels=np.arange(400) % 2)
    moving = {"data.name": str(own), "data.split_rule": "stratified", "privacy.delta": 1e-4}
    with pytest.raises(UserError, match="would move others"):
        ask(tiny(**moving), CHOICES, mean=3.0)
    ask(tiny(**{**moving, "data.split_rule": "independent"}), CHOICES, mean=3.0)


def test_settings_are_drawn_from_the_whole_space() -> None:
    choices: dict[str, Choice] = {
        "a": Range(1.0, 100.0), "b": Range(1, 3), "c": ["x", "y"], "d": Range(-1.0, 1.0),
    }  # fmt: skip
    ends = drawn(choices, [0.0] * 4), drawn(choices, [1 - 2**-53] * 4)
    assert ends[0] == {"a": 1.0, "b": 1, "c": "x", "d": -1.0}
    assert ends[1] == {"a": 100.0, "b": 3, "c": "y", "d": 1.0}
    assert drawn(choices, [0.5] * 4) == {"a": 10.0, "b": 2, "c": "y", "d": 0.0}
