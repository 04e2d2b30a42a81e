"""Run folders whose files anybody may have written: sentences, never tracebacks.

Every field of every record is replaced by values that it should not have, with hashes and digests
made to fit, and the commands that read the file are run.
"""

from __future__ import annotations

import copy
import hashlib
import json
import random
import resource
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from cli_result import Run, refused
from safetensors import safe_open
from safetensors.torch import save_file

from sfumato.training import checkpoint
from sfumato.training.classifier import FORMAT
from thinning import one_in
from tiny_run import train_run

DEEP = "[" * 100_000 + "]" * 100_000
VALUES: tuple[Any, ...] = (
    None, True, -1, 0, 10**12, 800000, 1e308, float("nan"), float("inf"), "", "x", [], [None],
    [[]], {}, {"x": None}, "dead-leaves",
)  # fmt: skip


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run that started from another one, so that its ledger states an origin."""
    folder = tmp_path_factory.mktemp("runs")
    first = train_run(folder / "first", {"training.seed": 0, "privacy.accountant": "rdp"})
    changes = {
        "training.seed": 1, "privacy.accountant": "rdp", "start.source": str(first),
        "start.same_data": True, "training.snapshots": 2, "privacy.clipping": "adaptive",
        "optimizer.momentum": 0.5, "training.average": 0.9, "training.checkpoint_every": 1,
        "privacy.epsilon": 9.0,
    }  # fmt: skip
    return train_run(folder / "run", changes)


def paths(value: Any, here: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Where the parts of nested plain values are."""
    yield here
    if isinstance(value, dict | list):
        keys = value if isinstance(value, dict) else range(len(value))
        for key in keys:
            yield from paths(value[key], (*here, key))


def changed(content: Any, where: tuple[Any, ...], value: Any) -> Any:
    """A copy with one part replaced, or taken away if the value is `...`."""
    if not where:
        return value
    found = copy.deepcopy(content)
    inside = found
    for key in where[:-1]:
        inside = inside[key]
    if value is ... and isinstance(inside, dict):
        del inside[where[-1]]
    else:
        inside[where[-1]] = None if value is ... else value
    return found


def chained(lines: list[Any]) -> str:
    """Ledger lines with hashes that fit."""
    text, previous = "", ""
    for line in lines:
        if isinstance(line, dict):
            line = {**line, "previous": previous}
        body = json.dumps(line, sort_keys=True, ensure_ascii=False) + "\n"
        previous = hashlib.sha256(body.encode()).hexdigest()[:16]
        text += body
    return text


def damage_ledger(run: Path, choose: random.Random) -> str:
    path = run / "ledger.jsonl"
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    index = choose.choice([0, 0, 0, 1])
    where = choose.choice(list(paths(lines[index])))
    value = choose.choice((*VALUES, ...))
    lines[index] = changed(lines[index], where, value)
    if choose.random() < 0.5:
        (run / "recipe.toml").unlink()
    path.write_text(chained(lines))
    return f"ledger line {index} {where} = {value!r}"


def damage_metrics(run: Path, choose: random.Random) -> str:
    path = run / "metrics.jsonl"
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    index = choose.choice([0, 1, -1])
    where = choose.choice(list(paths(lines[index])))
    value = choose.choice((*VALUES, ...))
    lines[index] = changed(lines[index], where, value)
    path.write_text("".join(f"{json.dumps(line)}\n" for line in lines))
    return f"metrics line {index} {where} = {value!r}"


def damage_weights(run: Path, choose: random.Random) -> str:
    path = run / "model.safetensors"
    with safe_open(path, framework="pt") as file:
        content = json.loads(file.metadata()[FORMAT])
        tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    content.pop("tensors")
    where = choose.choice(list(paths(content)))
    value = choose.choice((*VALUES, ...))
    text = json.dumps(changed(content, where, value))
    save_file(tensors, path, metadata={FORMAT: text})
    return f"weights {where} = {value!r}"


def damage_recipe(run: Path, choose: random.Random) -> str:
    path = run / "recipe.toml"
    lines = path.read_text().splitlines()
    index = choose.choice([k for k, line in enumerate(lines) if " = " in line])
    value = choose.choice(
        ["nan", "inf", "-1", "1" + "0" * 400, "1e308", "true", '""', "[]", "[[]]", "{}", "{x=[1]}",
         '"a:b"', "10000000000", "1979-05-27", "[" * 5000 + "]" * 5000, '"\\u0000"']
    )  # fmt: skip
    key = lines[index].lstrip("# ").partition(" = ")[0]
    lines[index] = f"{key} = {value}"
    path.write_text("\n".join(lines))
    return f"recipe {key} = {value[:20]}"


def damage_checkpoint(run: Path, choose: random.Random) -> str:
    path = sorted((run / "checkpoints").iterdir())[-1]
    with safe_open(path, framework="pt") as file:
        numbers = json.loads(file.metadata()["numbers"])
        tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    where = choose.choice(list(paths(numbers)))
    value = choose.choice((*VALUES, ...))
    text = json.dumps(changed(numbers, where, value))
    if choose.random() < 0.3:
        name = choose.choice(sorted(tensors))
        tensors[name] = torch.zeros(3)
    metadata = {"numbers": text, "digest": checkpoint._digest(tensors, text)}
    save_file(tensors, path, metadata=metadata)
    return f"checkpoint {where} = {value!r}"


def damage_text(run: Path, choose: random.Random) -> str:
    """A line that is nested too deeply, or no line at all."""
    name = choose.choice(
        ["ledger.jsonl", "metrics.jsonl", "recipe.toml", "statement.md", "guarantee.json"]
    )
    lines = (run / name).read_text().splitlines()
    value = choose.choice([DEEP, "null", "", "\0", "\ud800".encode("utf-8", "surrogatepass")])
    value = value.decode("latin1") if isinstance(value, bytes) else value
    index = choose.randrange(len(lines))
    lines[index] = f"x = {value}" if name == "recipe.toml" else value
    (run / name).write_bytes(("\n".join(lines) + "\n").encode())
    return f"{name} line {index} {value[:10]!r}"


DAMAGES: dict[str, tuple[Callable[[Path, random.Random], str], tuple[str, ...]]] = {
    "ledger": (damage_ledger, ("verify", "report", "analyze", "resume")),
    "metrics": (damage_metrics, ("report", "card", "analyze", "resume")),
    "weights": (damage_weights, ("evaluate", "verify", "card", "start")),
    "recipe": (damage_recipe, ("verify", "evaluate", "train", "resume")),
    "checkpoint": (damage_checkpoint, ("resume", "analyze unfinished")),
    "text": (damage_text, ("verify", "report", "resume", "train")),
}


def words_of(command: str, run: Path) -> list[str]:
    short = ["--set", "training.steps=1", "--set", "training.batch=9", "--device", "cpu"]
    if command in ("resume", "analyze unfinished"):
        (run / "model.safetensors").unlink(missing_ok=True)
        (run / "statement.md").unlink(missing_ok=True)
    return {
        "verify": ["verify", "run"],
        "report": ["report", "run"],
        "card": ["card", "run"],
        "evaluate": ["evaluate", "run"],
        "analyze": ["analyze", "run", "--only", "cost"],
        "analyze unfinished": ["analyze", "run", "--only", "cost"],
        "resume": ["train", "--resume", "run", "--device", "cpu"],
        "start": ["train", "--start", "run", "--set", "start.same_data=true", *short],
        "train": ["train", "run/recipe.toml", *short],
    }[command]


def check(sfumato: Run, trained: Path, kind: str, seed: int) -> None:
    choose = random.Random(f"{kind} {seed}")
    damage, commands = DAMAGES[kind]
    shutil.rmtree("run", ignore_errors=True)
    run = Path(shutil.copytree(trained, "run"))
    what = damage(run, choose)
    line = words_of(choose.choice(commands), run)
    for left in ("report.html", "MODEL_CARD.md"):
        Path(left).unlink(missing_ok=True)
    try:
        result = sfumato(*line)
    except BaseException as error:
        raise AssertionError(f"{what}: sfumato {' '.join(line)}: {error!r}") from error
    assert result.code in (0, 1, 2), (what, line, result)
    assert "Traceback" not in result.err, (what, line, result.err)
    if result.code == 2:
        assert "error: " in result.err, (what, line, result.err)


@pytest.mark.parametrize("command", one_in(2, ["report", "card", "analyze", "resume"]))
@pytest.mark.parametrize(
    "line", one_in(2, ["null", "[]", DEEP, "1", '{"step": null}', '{"final": true}'])
)
def test_records_that_are_none(sfumato: Run, trained: Path, command: str, line: str) -> None:
    run = Path(shutil.copytree(trained, "run"))
    with open(run / "metrics.jsonl", "a") as file:
        file.write(f"{line}\n")
    result = sfumato(*words_of(command, run))
    assert result.code == 0, result.err


@pytest.mark.parametrize(
    "changes",
    [
        {"channels": 10**12}, {"channels": 8000}, {"size": [60_000, 60_000]}, {"options": None},
        {"options": {"filters": 10**9}}, {"options": {"filters": 60_000}}, {"model": None},
        {"model": "wrn-999999999-4"}, {"classes": []}, {"classes": [None]}, {"guarantee": None},
        {"options": {"classes": 3}}, {"mean": ["x"]}, {"size": 8},
        {"model": "wrn-90001-1", "options": {}},
    ],
    ids=str,
)  # fmt: skip
def test_descriptions_that_lie(sfumato: Run, trained: Path, changes: dict[str, Any]) -> None:
    """A network far larger than its weights is refused before it takes memory."""
    path = Path(shutil.copytree(trained, "run")) / "model.safetensors"
    with safe_open(path, framework="pt") as file:
        content = json.loads(file.metadata()[FORMAT])
        tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    content = {k: v for k, v in content.items() if k != "tensors"} | changes
    if "channels" in changes and changes["channels"] == 8000:
        content |= {"mean": [0.5] * 8000, "std": [0.5] * 8000}
    save_file(tensors, path, metadata={FORMAT: json.dumps(content)})
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    refused(sfumato("predict", "run", "nowhere.png"), "run/model.safetensors")
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 300 * 1024


@pytest.mark.parametrize("kind", one_in(3, DAMAGES))
def test_damaged_files_are_told_in_sentences(sfumato: Run, trained: Path, kind: str) -> None:
    for seed in range(6):
        check(sfumato, trained, kind, seed)


@pytest.mark.slow
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("kind", DAMAGES)
def test_many_damaged_files_are_told_in_sentences(sfumato: Run, trained: Path, kind: str) -> None:
    failed = []
    for seed in range(6, 300):
        try:
            check(sfumato, trained, kind, seed)
        except AssertionError as error:
            failed.append(f"{seed}: {str(error)[:400]}")
    assert not failed, "\n".join(failed)


def test_noise_too_large_to_count_is_a_sentence(sfumato: Run, trained: Path) -> None:
    run = Path("huge")
    shutil.copytree(trained, run)
    path = run / "ledger.jsonl"
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    lines[1]["sigma"] = 1e299
    path.write_text(chained(lines))
    found = sfumato("verify", run)
    assert found.code == 1 and "Traceback" not in found.err
    assert "line 2 is damaged or was edited" in " ".join(found.out.split())
