from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator
from dataclasses import replace

import pytest
import torch
from bench_fakes import CPU, CUDA, TINY, ignore, tick

from sfumato.bench import timing as module
from sfumato.bench.cases import Case
from sfumato.bench.feed import Contender, Unsupported
from sfumato.bench.measurement import Measurement
from sfumato.bench.timing import Method, measure, not_begun, reason_of, settled


def test_contenders_take_turns() -> None:
    order: list[str] = []

    def prepare(name: str, case: Case, device: torch.device) -> Contender:
        return Contender(lambda: order.append(name), "fake")

    found = measure(TINY, ["sfumato", "vmap"], Method(CPU, 3, 2), done=ignore, prepare=prepare)
    assert order[:4] == ["sfumato"] * 2 + ["vmap"] * 2
    assert order[4:] == ["sfumato", "vmap"] * 3
    assert [len(m.times) for m in found] == [3, 3]
    assert all(m.first_step is not None for m in found)


def test_short_steps_take_more_turns() -> None:
    def prepare(name: str, case: Case, device: torch.device) -> Contender:
        return Contender(lambda: None, "fake")

    method = Method(CPU, 3, 1, seconds=60.0)
    [found] = measure(TINY, ["sfumato"], method, done=ignore, prepare=prepare)
    assert len(found.times) == 24


def test_a_failure_is_a_reason_and_ends_nothing_else() -> None:
    closed: list[str] = []
    steps = 0

    def prepare(name: str, case: Case, device: torch.device) -> Contender:
        def step() -> None:
            nonlocal steps
            steps += 1
            if name == "vmap" and steps > 3:
                raise RuntimeError("CUDA out of memory. Tried to allocate 2 GiB")

        if name == "opacus":
            raise Unsupported("not installed")
        if name == "opacus-ghost":
            raise ZeroDivisionError("first line\nsecond line")
        return Contender(step, "fake", close=lambda: closed.append(name))

    names = ["sfumato", "vmap", "opacus", "opacus-ghost"]
    told: list[Measurement] = []
    measure(TINY, names, Method(CPU, 4, 1), done=told.append, prepare=prepare)
    by = {m.contender: m for m in told}
    assert len(by["sfumato"].times) == 4
    assert by["vmap"].reason == "out of memory"
    assert by["vmap"].times == []
    assert (by["opacus"].reason, by["opacus"].unsupported) == ("not installed", True)
    assert by["opacus-ghost"].reason == "ZeroDivisionError: first line"
    assert not by["opacus-ghost"].unsupported
    assert sorted(closed) == ["sfumato", "vmap"]


@pytest.mark.parametrize("device", [CPU, CUDA])
def test_nothing_begins_when_the_time_is_up(device: torch.device, cuda: None) -> None:
    def prepare(name: str, case: Case, device: torch.device) -> Contender:
        raise AssertionError("begun")

    method = Method(device, 3, 1, deadline=time.monotonic() - 1)
    [found] = measure(TINY, ["sfumato"], method, done=ignore, prepare=prepare)
    assert found.reason == "not begun: the time was up"
    assert not_begun(found) and not settled(found)


def test_on_cuda_events_time_the_steps(cuda: None) -> None:
    def prepare(name: str, case: Case, device: torch.device) -> Contender:
        return Contender(tick, "fake")

    [found] = measure(TINY, ["sfumato"], Method(CUDA, 7, 2), done=ignore, prepare=prepare)
    assert found.times == pytest.approx([0.01] * 7)
    assert found.speed == pytest.approx(TINY.views_per_step / 0.01)
    assert found.peak_memory == 3 << 30


def test_on_cuda_a_peer_gets_smaller_batches_when_memory_lacks(cuda: None) -> None:
    tried = []

    def prepare(name: str, case: Case, device: torch.device) -> Contender:
        tried.append((case.rows, case.physical))
        if case.rows > 2:
            raise torch.OutOfMemoryError("no")
        return Contender(tick, "fake", note="plain")

    [found] = measure(TINY, ["opacus"], Method(CUDA, 3, 1), done=ignore, prepare=prepare)
    assert tried == [(8, 2), (4, 4), (2, 8)]
    assert found.case == TINY
    assert len(found.times) == 3
    assert found.note == "plain; 2 rows at once, for lack of memory"
    assert found.reason == ""


def test_on_cuda_out_of_memory_to_the_end_is_the_reason(cuda: None) -> None:
    def prepare(name: str, case: Case, device: torch.device) -> Contender:
        raise torch.OutOfMemoryError("no")

    [found] = measure(TINY, ["opacus"], Method(CUDA, 3, 1), done=ignore, prepare=prepare)
    assert (found.times, found.reason) == ([], "out of memory")


def test_on_cuda_time_that_is_up_before_smaller_batches_is_said(cuda: None) -> None:
    def prepare(name: str, case: Case, device: torch.device) -> Contender:
        time.sleep(0.02)
        raise torch.OutOfMemoryError("no")

    method = Method(CUDA, 3, 1, deadline=time.monotonic() + 0.01)
    [found] = measure(TINY, ["opacus"], method, done=ignore, prepare=prepare)
    assert found.reason == "out of memory; fewer rows at once not begun: the time was up"
    assert not_begun(found)


def test_peers_get_fast_settings_and_sfumato_its_own(cuda: None) -> None:
    seen = {}

    def prepare(name: str, case: Case, device: torch.device) -> Contender:
        seen[name] = torch.backends.cudnn.benchmark
        return Contender(tick, "fake")

    before = torch.backends.cudnn.benchmark
    measure(TINY, ["sfumato", "vmap"], Method(CUDA, 1, 1), done=ignore, prepare=prepare)
    assert seen == {"sfumato": before, "vmap": True}
    assert torch.backends.cudnn.benchmark == before


def test_a_batch_that_sfumato_lowered_by_itself_is_noted() -> None:
    def prepare(name: str, case: Case, device: torch.device) -> Contender:
        return Contender(lambda: None, "fake", physical=lambda: 4, remark=lambda: "eager")

    [found] = measure(TINY, ["sfumato"], Method(CPU, 1, 1), done=ignore, prepare=prepare)
    assert found.note == "4 rows at once, for lack of memory"
    assert found.how == "fake, eager"


def test_statistics_are_those_of_the_times() -> None:
    case = replace(TINY, rows=10, physical=1)
    m = Measurement("sfumato", case, times=[1.0, 2.0, 4.0, 5.0, 10.0])
    assert m.speed == pytest.approx(10 / 4)
    assert m.quartiles() == pytest.approx((10 / 5, 10 / 2))
    content = m.to_dict()
    assert content["views_per_second_range"] == [1.0, 10.0]
    assert Measurement.from_dict(content) == m
    assert Measurement("sfumato", case).speed is None


def test_reasons_are_one_short_line() -> None:
    assert len(reason_of(RuntimeError("x" * 1000))) == 160
    assert reason_of(ValueError()) == "ValueError"
    assert module.reason_of(MemoryError()) == "out of memory"


def test_algorithms_are_searched_for_while_other_processes_are_stopped(cuda: None) -> None:
    alone = False
    seen: list[tuple[bool, bool]] = []

    @contextlib.contextmanager
    def stopped() -> Iterator[None]:
        nonlocal alone
        alone = True
        yield
        alone = False

    def step() -> None:
        seen.append((alone, torch.backends.cudnn.benchmark))
        tick()

    def prepare(name: str, case: Case, device: torch.device) -> Contender:
        return Contender(step, "fake")

    method = Method(CUDA, 3, 1, alone=stopped)
    measure(TINY, ["not-private"], method, done=ignore, prepare=prepare)
    assert seen == [(False, False), *[(True, True)] * 4]
