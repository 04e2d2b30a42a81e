"""Runs that are missing are made, interrupted ones go on, and each is written down once."""

from __future__ import annotations

import contextlib
import dataclasses
import importlib.metadata
import json
import signal
from collections.abc import Iterable
from pathlib import Path

import pytest
from tiny_rows import entry, lines, row

from sfumato import environment, version
from sfumato.errors import UserError
from sfumato.io.locks import alone
from sfumato.reproduce import results_file
from sfumato.reproduce.job import Job
from sfumato.reproduce.minutes import Estimator
from sfumato.reproduce.results_file import Entry
from sfumato.reproduce.row import Row
from sfumato.reproduce.runner import Clock, Runner
from sfumato.training import checkpoint
from sfumato.training.loop import Stopped
from sfumato.training.reporter import Progress, Silent


def tiny(folder: Path, clock: Clock | None = None) -> Runner:
    return Runner(
        results=folder / "results", runs=folder / "runs", device="cpu", clock=clock or Clock(None)
    )


def plain(name: str, changes: dict[str, object] | None = None) -> Row:
    """A row without privacy, where it is not the subject: it takes a quarter of the time."""
    return row(name, changes={"privacy.enabled": False} | (changes or {}))


def ignore(_: Entry) -> None: ...


class Soon(Clock):
    """Over as soon as a run has shown its progress so often."""

    def __init__(self, shows: int) -> None:
        super().__init__(None)
        self.shows = shows

    @property
    def over(self) -> bool:
        return self.shows <= 0

    def check(self) -> None:
        self.shows -= 1
        super().check()


def test_a_run_is_made_written_down_and_not_made_again(tmp_path: Path) -> None:
    made, seen = tiny(tmp_path), []
    subject = row("a", 12.0)
    jobs = made.missing([subject], seeds=2, settings=())
    assert [(j.setting, j.seed) for j in jobs] == [("published", 0), ("published", 1)]
    outcome = made.run(jobs[:1], after=seen.append)
    assert outcome.done == seen and len(seen) == 1
    result = seen[0]
    assert result == results_file.read(tmp_path / "results")[0]
    assert 0 <= result.accuracy <= 1 and result.accuracy_averaged is None
    assert result.accuracy_last == result.accuracy
    assert 0 < result.epsilon["pld"] < result.epsilon["rdp"] <= 3.0
    assert (result.steps, result.accountant, result.seed) == (6, "rdp", 0)
    assert result.curve["step"] == [2, 4, 6] and len(result.curve["accuracy"]) == 3
    assert result.views_per_second > 0 and result.sigma > 0
    assert result.overrides["training.steps"] == 6
    assert [j.seed for j in made.missing([subject], seeds=2, settings=())] == [1]


def test_best_noise_is_another_run_and_changes_only_the_accountant(tmp_path: Path) -> None:
    made, subject = tiny(tmp_path), row("a")
    jobs = made.missing([subject], seeds=1, settings=("published", "best"))
    assert [j.setting for j in jobs] == ["published", "best"]
    assert jobs[0].folder != jobs[1].folder
    outcome = made.run(jobs, after=ignore)
    published, best = outcome.done
    assert best.sigma < published.sigma
    assert best.epsilon["pld"] == pytest.approx(3.0, abs=0.02)
    assert best.overrides["privacy.accountant"] == "pld"


def test_the_time_limit_interrupts_a_run_and_the_next_call_goes_on(tmp_path: Path) -> None:
    subject = plain("a", {"training.checkpoint_every": 100})
    handler = signal.getsignal(signal.SIGTERM)
    made = tiny(tmp_path, Soon(3))
    jobs = made.missing([subject], seeds=2, settings=())
    outcome = made.run(jobs, after=ignore)
    assert outcome.interrupted == jobs[0] and outcome.left == [jobs[1]]
    assert not outcome.done and not results_file.read(tmp_path / "results")
    assert signal.getsignal(signal.SIGTERM) == handler
    assert list((tmp_path / "runs" / jobs[0].folder / "checkpoints").glob("step-0000004*"))

    straight = tiny(tmp_path / "straight").run(jobs[:1], after=ignore).done[0]
    resumed = tiny(tmp_path).run(jobs[:1], after=ignore).done[0]
    assert resumed.accuracy == straight.accuracy
    assert resumed.curve["accuracy"] == straight.curve["accuracy"]


def test_a_run_that_is_cut_twice_ends_as_if_it_had_not_been(tmp_path: Path) -> None:
    subject = plain("a", {"training.checkpoint_every": 100, "training.log_every": 1})
    cut = []
    for _ in range(2):
        made = tiny(tmp_path, Soon(1))
        jobs = made.missing([subject], seeds=1, settings=())
        assert made.run(jobs, after=ignore).interrupted == jobs[0] and made.begun(jobs[0])
        cut.append(checkpoint.newest_step(made.folder(jobs[0]) / "checkpoints"))
    assert 0 < cut[0] < cut[1] < 6
    resumed = tiny(tmp_path).run(jobs, after=ignore).done[0]
    straight = tiny(tmp_path / "straight").run(jobs, after=ignore).done[0]
    assert not made.begun(jobs[0])
    assert (resumed.accuracy, resumed.curve) == (straight.accuracy, straight.curve)
    assert resumed.steps == straight.steps == 6


class Minutes(Clock):
    """So many minutes are left, as a test says."""

    def __init__(self, left: float) -> None:
        super().__init__(None)
        self.now = left

    @property
    def left(self) -> float:
        return self.now


def estimated(folder: Path, clock: Clock, **minutes: float) -> tuple[Runner, list[Job]]:
    """A runner that knows the minutes of rows, and their jobs."""
    rows = [plain(name, {"training.batch": 50 + n}) for n, name in enumerate(minutes)]
    known = [
        dataclasses.replace(entry(r, 0.5), minutes=m, hardware="This, 2 threads")
        for r, m in zip(rows, minutes.values(), strict=True)
    ]
    estimator = Estimator(rows, known, device="cpu")
    made = dataclasses.replace(tiny(folder, clock), estimator=estimator)
    return made, made.missing(rows, seeds=1, settings=())


def names(jobs: Iterable[Job]) -> list[str]:
    return [job.row.name for job in jobs]


def test_what_fits_into_the_time_that_is_left_is_run_first(tmp_path: Path) -> None:
    clock = Minutes(5)
    made, jobs = estimated(tmp_path, clock, long=9, short=4, longer=20)
    assert names(made.ordered(jobs)) == ["short", "long", "longer"]
    done: list[str] = []

    def after(result: Entry) -> None:
        done.append(result.row)
        clock.now = 1  # Nothing fits any more, and the first is begun.

    made.run(jobs, after=after)
    assert done == ["tiny/short", "tiny/long", "tiny/longer"]


def test_an_interrupted_run_is_first_and_takes_what_is_left_of_it(tmp_path: Path) -> None:
    made, jobs = estimated(tmp_path, Soon(1), long=9, short=4)
    made.run(jobs[:1], after=ignore)
    step = checkpoint.newest_step(made.folder(jobs[0]) / "checkpoints")
    assert 0 < step < 6 and made.minutes(jobs[0]) == pytest.approx(9 * (1 - step / 6))
    assert made.minutes(jobs[1]) == 4
    assert names(made.ordered(jobs)) == ["long", "short"]


def test_a_run_takes_the_minutes_of_its_start_too_until_that_is_there(tmp_path: Path) -> None:
    source = plain("source")
    after = plain("after", {"model.options.filters": 4})
    after = dataclasses.replace(after, needs=source, one_start=True)
    known = [
        dataclasses.replace(entry(r, 0.5), minutes=m, hardware="This, 2 threads")
        for r, m in ((source, 3.0), (after, 4.0))
    ]
    made = dataclasses.replace(
        tiny(tmp_path), estimator=Estimator([source, after], known, device="cpu")
    )
    job = Job(after, "published", 1)
    assert job.start == Job(source, "published", 0)
    assert made.minutes(job) == 7
    made.run([Job(source, "published", 0)], after=ignore)
    assert made.minutes(job) == 4


def test_without_an_estimator_jobs_stay_in_their_order(tmp_path: Path) -> None:
    made = tiny(tmp_path)
    jobs = made.missing([row("b"), row("a", 5.0)], seeds=2, settings=())
    assert made.ordered(jobs) == jobs


def test_no_time_starts_nothing(tmp_path: Path) -> None:
    made = tiny(tmp_path, Clock(0.0))
    jobs = made.missing([row("a")], seeds=1, settings=())
    outcome = made.run(jobs, after=ignore)
    assert outcome.left == jobs and outcome.interrupted is None
    assert not (tmp_path / "runs").exists()


def test_the_users_own_interrupt_is_not_taken_for_the_time_limit(tmp_path: Path) -> None:
    class Impatient(Silent):
        def show(self, progress: Progress) -> None:
            if progress.step == 2:
                signal.raise_signal(signal.SIGINT)

    from contextlib import nullcontext

    made = dataclasses.replace(tiny(tmp_path), watch=lambda: nullcontext(Impatient()))
    with pytest.raises(Stopped):
        made.run(made.missing([plain("a")], seeds=1, settings=()), after=ignore)


def test_a_finished_folder_without_a_line_is_written_down_without_training(tmp_path: Path) -> None:
    made, subject = tiny(tmp_path), plain("a")
    jobs = made.missing([subject], seeds=1, settings=())
    first = made.run(jobs, after=ignore).done[0]
    (tmp_path / "results" / "tiny.jsonl").unlink()
    weights = tmp_path / "runs" / jobs[0].folder / "model.safetensors"
    before = weights.stat().st_mtime_ns
    again = made.run(jobs, after=ignore).done[0]
    assert weights.stat().st_mtime_ns == before
    assert dataclasses.replace(again, date="", commit="") == dataclasses.replace(
        first, date="", commit=""
    )


def test_runs_and_results_of_version_0_1_count_under_the_papers_present_name(
    tmp_path: Path,
) -> None:
    made, subject = tiny(tmp_path), dataclasses.replace(plain("a"), paper="equivariant")
    jobs = made.missing([subject], seeds=1, settings=())
    made.run(jobs, after=ignore)
    (tmp_path / "runs" / "equivariant").rename(tmp_path / "runs" / "004")
    present, former = (tmp_path / "results" / f"{name}.jsonl" for name in ("equivariant", "004"))
    former.write_text(present.read_text().replace('"equivariant/a"', '"004/a"'))
    present.unlink()
    assert made.missing([subject], seeds=1, settings=()) == []
    former.unlink()
    assert len(made.run(jobs, after=ignore).done) == 1, "harvested, not trained again"
    assert not (tmp_path / "runs" / "equivariant").exists() and present.exists()


def test_a_row_that_starts_from_another_runs_that_first(tmp_path: Path) -> None:
    source = row("source", changes={"privacy.epsilon": 1.0})
    after = row("after", needs=source, changes={"start.same_data": True, "start.how": "meanvar"})
    made = tiny(tmp_path)
    outcome = made.run([Job(after, "published", 0)], after=ignore)
    assert [e.row for e in outcome.done] == ["tiny/source", "tiny/after"], outcome.failed
    assert outcome.done[1].epsilon["rdp"] > outcome.done[0].epsilon["rdp"]
    assert not made.missing([source, after], seeds=1, settings=())
    again = made.run([Job(after, "published", 0)], after=ignore)
    assert again.done == [] and len(lines(tmp_path / "results" / "tiny.jsonl")) == 2


def test_the_best_setting_may_start_from_another_run(tmp_path: Path) -> None:
    source, better = row("source"), row("better", changes={"privacy.epsilon": 1.0})
    kept = {"start.same_data": True}
    after = row("after", needs=source, best_needs=better, changes=kept, best={})
    assert (after.start_of("published"), after.start_of("best")) == (source, better)
    assert after.fingerprint("published") != after.fingerprint("best")
    outcome = tiny(tmp_path).run([Job(after, "best", 0)], after=ignore)
    assert [e.row for e in outcome.done] == ["tiny/better", "tiny/after"], outcome.failed


def test_the_best_setting_may_start_from_the_best_run_of_another_row(tmp_path: Path) -> None:
    source, kept = row("source", best={"privacy.epsilon": 1.0}), {"start.same_data": True}
    after = row("after", needs=source, changes=kept, best={}, best_needs_setting="best")
    plain = row("after", needs=source, changes=kept, best={})
    assert [after.start_setting(s) for s in ("published", "best")] == ["published", "best"]
    assert after.fingerprint("published") == plain.fingerprint("published")
    assert after.fingerprint("best") != plain.fingerprint("best")
    assert Job(after, "best", 2).start == Job(source, "best", 2)
    outcome = tiny(tmp_path).run([Job(after, "best", 0)], after=ignore)
    done = [(e.row, e.setting) for e in outcome.done]
    assert done == [("tiny/source", "best"), ("tiny/after", "best")], outcome.failed


@pytest.mark.slow
def test_all_seeds_of_a_row_may_share_one_start(tmp_path: Path) -> None:
    source, kept = row("source", changes={"privacy.epsilon": 1.0}), {"start.same_data": True}
    after = row("after", needs=source, one_start=True, changes=kept)
    assert after.fingerprint("published") != dataclasses.replace(
        after, one_start=False
    ).fingerprint("published")
    made = tiny(tmp_path)
    outcome = made.run([Job(after, "published", 1), Job(after, "published", 2)], after=ignore)
    made_runs = [(e.row, e.seed) for e in outcome.done]
    assert made_runs == [("tiny/source", 0), ("tiny/after", 1), ("tiny/after", 2)], outcome.failed


def test_a_row_may_start_from_images_that_the_program_draws(tmp_path: Path) -> None:
    few = {
        "data.size": 8, "data.channels": 1, "model.name": "tanh-cnn", "training.batch": 6,
        "training.steps": 3, "training.log_every": 1, "model.options.filters": 4,
    }  # fmt: skip
    leaves = Row(paper="tiny", name="leaves", recipe="dead-leaves", source="table 1", changes=few)
    assert leaves.settings == ("published",)
    after = row("after", needs=leaves)
    made = tiny(tmp_path)
    outcome = made.run(made.missing([leaves, after], seeds=2, settings=()), after=ignore)
    rows = [(e.row, e.seed, bool(e.epsilon)) for e in outcome.done]
    assert rows == [
        ("tiny/leaves", 0, False), ("tiny/after", 0, True),
        ("tiny/leaves", 1, False), ("tiny/after", 1, True),
    ], outcome.failed  # fmt: skip
    assert outcome.done[0].curve["step"] == [1, 2, 3] and outcome.done[0].views_per_second > 0
    assert not made.missing([leaves, after], seeds=2, settings=())


def test_what_another_process_is_at_work_on_is_passed_over(tmp_path: Path) -> None:
    made = tiny(tmp_path)
    jobs = made.missing([plain("a")], seeds=2, settings=())
    with alone(made.runs / jobs[0].folder):
        outcome = made.run(jobs, after=ignore)
    assert [e.seed for e in outcome.done] == [1]
    assert (outcome.elsewhere, outcome.failed, outcome.left) == ([jobs[0]], [], [])
    assert made.missing([plain("a")], seeds=2, settings=()) == jobs[:1]


def test_what_was_passed_over_is_looked_at_again(tmp_path: Path) -> None:
    """By then the other process may have ended, or written down its result."""
    said: list[str] = []
    made = dataclasses.replace(tiny(tmp_path), say=said.append)
    jobs = made.missing([plain("a")], seeds=3, settings=())
    others = contextlib.ExitStack()
    for job in jobs[:2]:
        others.enter_context(alone(made.runs / job.folder))

    def meanwhile(_: Entry) -> None:
        others.close()
        if len(said) == 1:
            tiny(tmp_path).run(jobs[:1], after=ignore)

    outcome = made.run(jobs, after=meanwhile)
    assert [e.seed for e in outcome.done] == [2, 1] and not outcome.elsewhere
    assert sorted(e.seed for e in results_file.read(made.results)) == [0, 1, 2]
    assert [words.partition(":")[0] for words in said] == ["3 of 3", "2 of 3"]
    assert not list(made.runs.glob("**/.*.lock"))


def test_a_run_whose_start_is_being_made_elsewhere_is_passed_over(tmp_path: Path) -> None:
    source = row("source")
    made, after = tiny(tmp_path), row("after", needs=source, changes={"start.same_data": True})
    with alone(made.runs / Job(source, "published", 0).folder):
        outcome = made.run(made.missing([after], seeds=1, settings=()), after=ignore)
    assert [j.row.name for j in outcome.elsewhere] == ["after"] and not outcome.done


def test_a_result_that_lacks_only_its_end_of_line_is_kept(tmp_path: Path) -> None:
    path = results_file.append(tmp_path, entry(row("a"), 0.5))
    path.write_bytes(path.read_bytes().rstrip(b"\n"))
    assert [e.accuracy for e in results_file.read(tmp_path)] == [0.5]
    results_file.append(tmp_path, entry(row("a"), 0.6, seed=1))
    assert [e.accuracy for e in results_file.read(tmp_path)] == [0.5, 0.6]


def test_parts_do_not_depend_on_what_is_done(tmp_path: Path) -> None:
    made, rows = tiny(tmp_path), [plain("a"), plain("b")]

    def part(number: int) -> set[tuple[str, int]]:
        jobs = made.missing(rows, seeds=2, settings=(), part=slice(number, None, 2))
        return {(job.row.name, job.seed) for job in jobs}

    assert (part(0), part(1)) == ({("a", 0), ("a", 1)}, {("b", 0), ("b", 1)})
    made.run([Job(rows[0], "published", 0)], after=ignore)
    assert (part(0), part(1)) == ({("a", 1)}, {("b", 0), ("b", 1)})


def test_a_start_that_changed_makes_results_void() -> None:
    old, new = row("source"), row("source", changes={"optimizer.lr": 1.0})
    kept = {"start.same_data": True}
    prints = {row("after", needs=one, changes=kept).fingerprint("best") for one in (old, new)}
    assert len(prints) == 2
    elsewhere = row("after", changes=kept, best_needs=old).fingerprint("best")
    assert elsewhere in prints


def test_a_row_that_cannot_run_does_not_stop_the_others(tmp_path: Path) -> None:
    made = tiny(tmp_path)
    rows = [plain("bad", {"training.diverged": 1e-6}), plain("good")]
    outcome = made.run(made.missing(rows, seeds=1, settings=()), after=ignore)
    assert [e.row for e in outcome.done] == ["tiny/good"]
    assert [(j.row.name, "diverged" in why) for j, why in outcome.failed] == [("bad", True)]


def test_seeds_come_before_rows(tmp_path: Path) -> None:
    jobs = tiny(tmp_path).missing([row("a"), row("b")], seeds=2, settings=())
    assert [(j.row.name, j.seed) for j in jobs] == [("a", 0), ("b", 0), ("a", 1), ("b", 1)]


def test_a_changed_recipe_makes_old_results_void(tmp_path: Path) -> None:
    old, new = row("a"), row("a", changes={"optimizer.lr": 1.0})
    results_file.append(tmp_path / "results", entry(old, 0.5))
    assert not tiny(tmp_path).missing([old], seeds=1, settings=())
    assert len(tiny(tmp_path).missing([new], seeds=1, settings=())) == 1


@pytest.mark.parametrize(
    ("setting", "value"),
    [
        ("training.precision", "bfloat16"),
        ("training.physical_batch", 7),
        ("training.snapshots", 3),
        ("privacy.tuned", "nothing"),
    ],
)
def test_how_a_run_is_computed_does_not_void_it(setting: str, value: object) -> None:
    assert row("a").fingerprint("best") == row("a", changes={setting: value}).fingerprint("best")
    changed = row("a", changes={"privacy.clip": 0.5})
    assert row("a").fingerprint("best") != changed.fingerprint("best")


def test_part_of_a_line_is_passed_over_and_removed(tmp_path: Path) -> None:
    path = results_file.append(tmp_path, entry(row("a"), 0.5))
    with open(path, "a", encoding="utf-8") as file:
        file.write('{"row": "tiny/b", "acc')
    assert len(results_file.read(tmp_path)) == 1
    results_file.append(tmp_path, entry(row("c"), 0.6))
    assert [e.row for e in results_file.read(tmp_path)] == ["tiny/a", "tiny/c"]


def test_a_line_that_is_no_result_is_named(tmp_path: Path) -> None:
    (tmp_path / "tiny.jsonl").write_text('{"row": "tiny/a"}\n', encoding="utf-8")
    with pytest.raises(UserError, match="line 1 is not a result: it lacks accuracy"):
        results_file.read(tmp_path)


@pytest.mark.parametrize("value", ["high", None, 84.74, -0.1, float("nan")])
def test_an_accuracy_that_is_none_is_named(value: object, tmp_path: Path) -> None:
    path = results_file.append(tmp_path, entry(row("a"), 0.5))
    content = json.loads(path.read_text()) | {"accuracy": value}
    path.write_text(json.dumps(content) + "\n")
    with pytest.raises(UserError, match=r"accuracy is .*, not a number from 0 to 1"):
        results_file.read(tmp_path)
    path.write_bytes(b"\xff\xfe\n")
    with pytest.raises(UserError, match="line 1 is not a result"):
        results_file.read(tmp_path)


def test_versions_without_an_installed_package(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(name: str) -> str:
        raise importlib.metadata.PackageNotFoundError(name)

    monkeypatch.setattr("sfumato.version.version", missing)
    assert environment.versions()["dp-accounting"] == "unknown"
    assert version.commit()


def test_rows_of_ours_are_run_in_their_best_setting_only() -> None:
    own = Row(paper="sfumato", name="x", recipe="sfumato/cifar10-eps2", source="CIFAR-10")
    assert own.settings == ("best",)
    assert own.recipe_for("best").privacy.accountant == "pld"
