"""Files from strangers that name code, given to the commands that read them."""

from __future__ import annotations

import json
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from cli_result import Run, refused
from PIL import Image
from safetensors import safe_open
from safetensors.torch import save_file

from sfumato import recipes
from sfumato.privacy.ledger import Ledger
from sfumato.training.classifier import FORMAT
from thinning import one_in
from tiny_run import make_run, train_run

NET = """
import pathlib
from torch import nn
pathlib.Path({mark!r}).touch()
class Net(nn.Module):
    def __init__(self, classes):
        super().__init__()
        self.body, self.head = nn.Linear(64, 10), nn.Linear(10, classes)
    def forward(self, x):
        return self.head(self.body(x.flatten(1)).tanh())
"""


@pytest.fixture(autouse=True)
def _forget_modules(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.delenv("SFUMATO_MODELS", raising=False)
    before = set(sys.modules)
    yield
    for name in set(sys.modules) - before:
        if name.startswith("stranger"):
            del sys.modules[name]


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return train_run(tmp_path_factory.mktemp("runs") / "run", {"training.seed": 0})


@pytest.fixture
def mark(tmp_path: Path) -> Path:
    return tmp_path / "executed"


def shell(mark: Path) -> dict[str, object]:
    """Options with which `subprocess:Popen` runs a line of shell."""
    return {"args": f"touch {mark}", "shell": True}


def rename(folder: Path, model: str, options: dict[str, object]) -> None:
    """Let the weights and the recipe of a run name another model."""
    recipe = recipes.find(str(folder)).replace({"model.name": model, "model.options": options})
    (folder / "recipe.toml").write_text(recipe.to_toml())
    path = folder / "model.safetensors"
    with safe_open(path, framework="pt") as file:
        content = json.loads(file.metadata()[FORMAT])
    content |= {"model": model, "options": options}
    del content["tensors"]
    weights = {"body.weight": torch.zeros(10, 64), "body.bias": torch.zeros(10)}
    weights |= {"head.weight": torch.zeros(10, 10), "head.bias": torch.zeros(10)}
    save_file(weights, path, metadata={FORMAT: json.dumps(content)})


def commands(run: str) -> list[list[str]]:
    Path("image").mkdir()
    Image.new("L", (8, 8)).save("image/pixel.png")
    return [
        ["evaluate", run], ["predict", run, "image"], ["report", run], ["card", run],
        ["analyze", run, "--only", "calibration"], ["evaluate", f"{run}/model.safetensors"],
        ["train", f"{run}/recipe.toml", "--out", "new"], ["tune", f"{run}/recipe.toml", "--out",
        "tuned", "--try", "optimizer.lr=1"], ["train", "--start", run, "--out", "new"],
        ["pretrain", f"{run}/recipe.toml", "--out", "new"],
    ]  # fmt: skip


@pytest.mark.parametrize("index", one_in(3, range(10)))
@pytest.mark.parametrize("kind", ["shell", "below", "inside"])
def test_no_command_runs_code_that_a_run_names(
    sfumato: Run,
    trained: Path,
    tmp_path: Path,
    mark: Path,
    monkeypatch: pytest.MonkeyPatch,
    index: int,
    kind: str,
) -> None:
    run = shutil.copytree(trained, tmp_path / "stranger")
    (run / "stranger_net.py").write_text(NET.format(mark=str(mark)))
    name, options = "subprocess:Popen", shell(mark)
    if kind == "below":
        name, options = "stranger.stranger_net:Net", {}
    if kind == "inside":
        name, options = "stranger_net:Net", {}
        monkeypatch.chdir(run)
    rename(run, name, options)
    line = commands(str(run))[index]
    result = sfumato(*line)
    module = name.partition(":")[0]
    if line[0] in ("report", "card"):
        assert result.code == 0 and f"--trust-code {module}" in result.err
    else:
        refused(result, f"'{name}'", f"--trust-code {module}", f"SFUMATO_MODELS={module}")
        assert result.err.rstrip().endswith(f"sfumato {' '.join(line)} --trust-code {module}")
    assert not mark.exists()
    if kind != "shell":
        # Named by the user, the code would still come from the run's own folder.
        shutil.rmtree("new", ignore_errors=True)
        for file in ("report.html", "MODEL_CARD.md"):
            Path(file).unlink(missing_ok=True)
        assert "lies in the run folder" in sfumato(*line, "--trust-code", module).err
        assert not mark.exists()


@pytest.mark.parametrize("ledger_only", [False, True])
def test_resuming_a_crafted_run_executes_nothing(
    sfumato: Run, trained: Path, tmp_path: Path, mark: Path, ledger_only: bool
) -> None:
    run = shutil.copytree(trained, tmp_path / "stranger")
    (run / "model.safetensors").unlink()
    (run / "statement.md").unlink()
    recipe = recipes.find(str(run)).replace(
        {"model.name": "subprocess:Popen", "model.options": shell(mark)}
    )
    (run / "recipe.toml").unlink()
    if not ledger_only:
        (run / "recipe.toml").write_text(recipe.to_toml())
    lines = (run / "ledger.jsonl").read_text().splitlines()
    header = json.loads(lines[0])
    (run / "ledger.jsonl").unlink()
    header = {k: v for k, v in header.items() if k not in ("kind", "previous")}
    Ledger.create(run / "ledger.jsonl", header | {"recipe": recipe.to_dict()}).close()
    shutil.rmtree(run / "checkpoints")
    resumed = ("train", "--resume", run, "--device", "cpu")
    refused(sfumato(*resumed), "'subprocess:Popen'", "--trust-code subprocess")
    assert not mark.exists()
    refused(sfumato(*resumed, "--trust-code", "subprocess"), "the class Popen")
    assert not mark.exists()


def test_own_code_is_used_when_it_is_named(
    sfumato: Run, tmp_path: Path, mark: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "stranger_own.py").write_text(NET.format(mark=str(mark)))
    short = ("--set", "training.steps=2", "--set", "model.options={}", "--device", "cpu")
    assert sfumato("train", "--model", "stranger_own:Net", *short, "--out", "run").code == 0
    for line in (["evaluate", "run"], ["analyze", "run", "--only", "calibration"]):
        refused(sfumato(*line), "--trust-code stranger_own")
        assert sfumato(*line, "--trust-code", "stranger_own").code == 0
    again = ("train", "run/recipe.toml", *short)
    refused(sfumato(*again, "--out", "other"), "--trust-code stranger_own")
    assert sfumato(*again, "--out", "other", "--trust-code", "stranger_own").code == 0
    set_ = ("--set", "model.name=stranger_own:Net")
    assert sfumato("train", *set_, *short, "--start", "run", "--set", "start.public=true",
                   "--no-privacy", "--out", "third").code == 0  # fmt: skip
    monkeypatch.setenv("SFUMATO_MODELS", "stranger_own")
    assert sfumato("evaluate", "run").code == 0


def test_a_trusted_name_that_is_a_path(sfumato: Run, tmp_path: Path) -> None:
    make_run(tmp_path / "run")
    refused(sfumato("evaluate", "run", "--trust-code", "./net.py"), "name of a module")
