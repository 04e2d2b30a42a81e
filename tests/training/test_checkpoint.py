from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import nn

from sfumato.errors import UserError
from sfumato.privacy.accounting.accountants import Step
from sfumato.privacy.ledger import Ledger, read
from sfumato.recipe import Recipe
from sfumato.training import checkpoint, optimizers
from sfumato.training.run_folder import check_free, new_run_folder


def some(step: int) -> checkpoint.Checkpoint:
    tensors = {"model/w": torch.full((3, 2), float(step)), "model/n": torch.tensor(step)}
    return checkpoint.Checkpoint(step, tensors, {"lr": 0.1})


def test_round_trip_and_only_two_kept(tmp_path: Path) -> None:
    for step in (1, 2, 3):
        checkpoint.write(tmp_path, some(step))
    assert len(list(tmp_path.iterdir())) == 2
    state, damaged = checkpoint.latest(tmp_path)
    assert state is not None
    assert damaged == []
    assert state.step == 3
    assert torch.equal(state.part("model")["w"], torch.full((3, 2), 3.0))
    assert state.numbers == {"lr": 0.1}


@pytest.mark.parametrize("keep", [0, 7, 40, 200, -1])
def test_a_truncated_checkpoint_is_passed_over(tmp_path: Path, keep: int) -> None:
    checkpoint.write(tmp_path, some(1))
    path = checkpoint.write(tmp_path, some(2))
    path.write_bytes(path.read_bytes()[:keep])
    state, damaged = checkpoint.latest(tmp_path)
    assert state is not None
    assert state.step == 1
    assert damaged == [path]


def test_a_single_flipped_bit_is_noticed(tmp_path: Path) -> None:
    path = checkpoint.write(tmp_path, some(2))
    content = bytearray(path.read_bytes())
    for position in (len(content) - 1, len(content) - 20):
        flipped = content.copy()
        flipped[position] ^= 1
        path.write_bytes(bytes(flipped))
        assert checkpoint.read(path) is None


@pytest.mark.parametrize("name", ["sgd", "adam", "adamw", "nadam", "rmsprop"])
def test_restored_optimizers_continue_bit_for_bit(tmp_path: Path, name: str) -> None:
    settings = Recipe().replace({"optimizer.name": name, "optimizer.lr": 0.01}).optimizer
    if name in ("sgd", "rmsprop"):
        settings = Recipe(optimizer=settings).replace({"optimizer.momentum": 0.9}).optimizer

    def steps(model: nn.Module, optimizer: torch.optim.Optimizer, which: range) -> None:
        for i in which:
            for p in model.parameters():
                p.grad = torch.randn(p.shape, generator=torch.Generator().manual_seed(i))
            optimizer.step()

    def fresh() -> tuple[nn.Module, torch.optim.Optimizer]:
        torch.manual_seed(0)
        model = nn.Linear(3, 2)
        return model, optimizers.build(settings, model.parameters())

    whole, optimizer = fresh()
    steps(whole, optimizer, range(6))
    model, optimizer = fresh()
    steps(model, optimizer, range(3))
    tensors, numbers = checkpoint.optimizer_state(optimizer)
    tensors |= {f"model/{n}": t for n, t in model.state_dict().items()}
    checkpoint.write(tmp_path, checkpoint.Checkpoint(3, tensors, numbers))
    state, _ = checkpoint.latest(tmp_path)
    assert state is not None
    model, optimizer = fresh()
    model.load_state_dict(state.part("model"))
    checkpoint.restore_optimizer(optimizer, state)
    steps(model, optimizer, range(3, 6))
    for a, b in zip(whole.parameters(), model.parameters(), strict=True):
        assert torch.equal(a, b)


def ledger_with(path: Path, steps: int) -> Ledger:
    ledger = Ledger.create(path, {"sigma": 2.0})
    for i in range(1, steps + 1):
        ledger.record(i, Step(0.5, 2.0))
    return ledger


def test_ledger_round_trip(tmp_path: Path) -> None:
    ledger_with(tmp_path / "l", 3).close()
    again = Ledger.open(tmp_path / "l")
    assert again.header["sigma"] == 2.0
    assert again.history() == [Step(0.5, 2.0, 3)]
    again.record(4, Step(0.5, 1.0))
    assert again.history() == [Step(0.5, 2.0, 3), Step(0.5, 1.0, 1)]
    assert len(read(tmp_path / "l")[1]) == 4


def test_ledger_repeats_are_free_but_changes_are_refused(tmp_path: Path) -> None:
    ledger = ledger_with(tmp_path / "l", 3)
    before = (tmp_path / "l").read_bytes()
    ledger.record(2, Step(0.5, 2.0))
    assert (tmp_path / "l").read_bytes() == before
    with pytest.raises(UserError, match="step 2"):
        ledger.record(2, Step(0.5, 1.0))
    with pytest.raises(ValueError, match="cannot follow"):
        ledger.record(5, Step(0.5, 2.0))


def test_a_torn_last_line_is_dropped(tmp_path: Path) -> None:
    path = tmp_path / "l"
    ledger_with(path, 3).close()
    whole = path.read_bytes()
    last = len(whole.splitlines(keepends=True)[-1])
    for cut in range(1, last):
        path.write_bytes(whole[:-cut])
        ledger = Ledger.open(path)
        assert ledger.steps == 2
        ledger.record(3, Step(0.5, 2.0))
        ledger.close()
        assert path.read_bytes() == whole


def test_an_edited_ledger_is_found_out(tmp_path: Path) -> None:
    path = tmp_path / "l"
    ledger_with(path, 5).close()
    lines = path.read_bytes().splitlines(keepends=True)
    for broken in (
        [*lines[:2], *lines[3:]],
        [*lines[:2], lines[2].replace(b"2.0", b"9.0"), *lines[3:]],
        [lines[0].replace(b"2.0", b"9.0"), *lines[1:]],
        [*lines[:3], lines[2], *lines[3:]],
        [lines[0], b"garbage\n", *lines[1:]],
    ):
        path.write_bytes(b"".join(broken))
        with pytest.raises(UserError, match="damaged or was edited"):
            Ledger.open(path)


def test_an_empty_ledger_is_a_sentence(tmp_path: Path) -> None:
    (tmp_path / "l").write_bytes(b'{"kind": "sta')
    with pytest.raises(UserError, match="never started"):
        Ledger.open(tmp_path / "l")


def test_run_folders_are_never_reused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert [new_run_folder(None, "a/b").name for _ in range(3)] == ["a-b-001", "a-b-002", "a-b-003"]
    taken = tmp_path / "taken"
    taken.mkdir()
    (taken / "thesis.txt").write_text("years of work")
    with pytest.raises(UserError, match="already exists"):
        check_free(taken)
    (taken / "ledger.jsonl").write_text("")
    with pytest.raises(UserError, match="--resume"):
        new_run_folder(taken, "x")
    (tmp_path / "empty").mkdir()
    assert new_run_folder(tmp_path / "empty", "x") == tmp_path / "empty"


def test_a_folder_that_cannot_be_made_is_refused_before_anything_is_read(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(UserError, match="file is a file"):
        check_free(tmp_path / "file" / "deep" / "run")
    with pytest.raises(UserError, match="already exists"):
        check_free(tmp_path / "file")
    check_free(tmp_path / "new" / "run")
