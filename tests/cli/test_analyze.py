"""`sfumato analyze` as a user types it."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from cli_result import Run, refused
from PIL import Image

from sfumato.analysis import overview, scores, softmax
from sfumato.analysis.run_access import part_of
from sfumato.privacy import ledger
from sfumato.run import Run as OpenedRun
from sfumato.training import snapshots
from tiny_run import make_run, train_run

PARTS = ["calibration", "curvature", "activations", "sparsity", "gradients", "cost"]
QUICK = ("--examples", 24, "--iterations", 4, "--probes", 1)


@pytest.fixture
def run(sfumato: Run) -> Run:
    return lambda *words: sfumato("analyze", *words, "--device", "cpu")


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished private run of a few steps, with three snapshots."""
    folder = train_run(
        tmp_path_factory.mktemp("runs") / "trained",
        {
            "data.validation": 0.1,
            "training.seed": 1,
            "training.snapshots": 3,
            "privacy.accountant": "rdp",
        },
    )
    model = OpenedRun(folder).network
    shutil.rmtree(folder / "snapshots", ignore_errors=True)
    for step in (0, 2, 4):
        with torch.no_grad():
            model.conv1.weight.mul_(1.5)
        snapshots.keep(folder, model, step, 4, 3)
    return folder


def test_everything_about_a_run(run: Run, trained: Path, tmp_path: Path) -> None:
    result = run(trained, *QUICK, "--out", "all.json")
    assert result.code == 0, result
    assert "the validation images (held out)" in result.out
    for words in ("Brier score", "trace", "eigenvalue 2", "activation1", "close to zero", "MACs"):
        assert words in result.out
    content = json.loads((tmp_path / "all.json").read_text())["runs"][0]
    assert [part for part in PARTS if part in content] == PARTS
    assert content["on"] == "validation" and "warning" not in content
    assert content["step"] == 4 and content["weights"] == "final weights"
    assert [point["step"] for point in content["sparsity"]["course"]] == [0, 2, 4]
    norms = [p["layers"]["activation1"]["norm"] for p in content["activations"]["course"]]
    assert norms[0] < norms[1] < norms[2], "the snapshots' own weights were used"
    gradients = content["gradients"]
    sigma = json.loads((trained / "ledger.jsonl").read_text().splitlines()[0])["sigma"]
    noise = sigma * 1.0 / 64 * gradients["whole"]["size"] ** 0.5
    assert gradients["whole"]["noise"] == pytest.approx(noise)
    opened = OpenedRun(trained)
    _, part = part_of(opened, "validation")
    again = overview.logits(opened, part, count=24)
    index = np.sort(np.random.default_rng(0).permutation(len(part))[:24])
    assert content["calibration"]["brier"] == scores(softmax(again), part.labels[index]).brier


@pytest.mark.slow
@pytest.mark.usefixtures("real_pictures")
def test_pictures_of_everything(run: Run, trained: Path, tmp_path: Path) -> None:
    assert run(trained, *QUICK, "--picture", "pictures").code == 0
    for part_name in PARTS:
        picture = tmp_path / "pictures" / f"{part_name}.png"
        with Image.open(picture) as image:
            assert image.width > 400 and image.convert("L").getextrema()[0] < 100


def test_runs_stand_side_by_side(run: Run, trained: Path, tmp_path: Path) -> None:
    other = tmp_path / "other"
    shutil.copytree(trained, other)
    result = run(trained, other, *QUICK, "--only", "cost,calibration", "--out", "two.json")
    assert result.code == 0, result
    heading = next(line for line in result.out.splitlines() if "other" in line)
    assert "trained" in heading
    assert "Curvature" not in result.out
    first, second = json.loads(Path("two.json").read_text())["runs"]
    assert first["calibration"] == second["calibration"] and "curvature" not in first


def test_test_images_fit_the_temperature_on_validation(run: Run, trained: Path) -> None:
    result = run(trained, "--only", "calibration", "--on", "test")
    assert result.code == 0 and "the test images (held out)" in result.out
    assert "fitted on 145 validation images" in " ".join(result.out.split())


def test_training_images_carry_a_warning(run: Run, trained: Path, tmp_path: Path) -> None:
    result = run(trained, *QUICK, "--only", "sparsity", "--on", "train", "--out", "t.json")
    assert result.code == 0
    assert "NOT covered by epsilon" in result.out
    assert "epsilon does not cover them" in result.err
    content = json.loads((tmp_path / "t.json").read_text())["runs"][0]
    assert "epsilon does not cover" in content["warning"]


def test_a_run_that_stopped_half_way(run: Run, trained: Path, tmp_path: Path) -> None:
    half = tmp_path / "half"
    shutil.copytree(trained, half)
    (half / "model.safetensors").unlink()
    (half / "statement.md").unlink()
    result = run(half, *QUICK, "--only", "cost,gradients")
    assert result.code == 0 and "checkpoint of step 4" in result.out
    assert "has not finished" in result.err
    shutil.rmtree(half / "checkpoints")
    assert "snapshot of step 4" in run(half, *QUICK, "--only", "cost").out
    (half / "snapshots" / "step-0000002.safetensors").write_bytes(b"torn")
    result = run(half, *QUICK, "--only", "sparsity", "--out", "torn.json")
    assert result.code == 0 and "step 2 left out" in result.err
    course = json.loads(Path("torn.json").read_text())["runs"][0]["sparsity"]["course"]
    assert [point["step"] for point in course] == [0, 4]
    shutil.rmtree(half / "snapshots")
    refused(run(half, "--only", "cost"), "has no weights yet")


def test_bad_input_is_a_sentence(run: Run, trained: Path, tmp_path: Path) -> None:
    refused(run("nowhere"), "There is no run folder nowhere")
    (tmp_path / "empty").mkdir()
    refused(run("empty"), "is not a run folder", "recipe.toml")
    refused(run(trained / "model.safetensors"), "give its folder")
    refused(run(trained, "--only", "curvture"), "Did you mean 'curvature'?")
    refused(run(trained, "--only", ","), "names no analysis")
    refused(run(trained, "--examples", 1), "--examples must be at least 2")
    refused(run(trained, "--only", "cost", "--out", "no/such/a.json"), "--out")
    (tmp_path / "kept.json").write_text("mine")
    refused(run(trained, "--only", "cost", "--out", "kept.json"), "exists already")
    assert (tmp_path / "kept.json").read_text() == "mine"
    (tmp_path / "cost.png").write_text("mine")
    refused(run(trained, "--only", "cost", "--picture", "."), "already holds cost.png")
    without = make_run(tmp_path / "without")
    refused(run(without, "--on", "validation"), "has no validation images")


def test_runs_on_different_data_are_refused(run: Run, trained: Path, tmp_path: Path) -> None:
    other = make_run(tmp_path / "other", validation=0.2)
    refused(run(trained, other, "--only", "cost"), "different data", "training images")


def test_a_part_that_cannot_be_shown_does_not_hide_the_rest(run: Run, tmp_path: Path) -> None:
    folder = make_run(tmp_path / "broken")
    from safetensors import safe_open
    from safetensors.torch import save_file

    weights = folder / "model.safetensors"
    with safe_open(weights, framework="pt") as file:
        metadata = file.metadata()
        tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    tensors["head.bias"][0] = float("nan")
    told = {key: json.loads(text) for key, text in metadata.items()}
    for content in told.values():
        del content["tensors"]  # As files of before have it: nothing says that these are others.
    save_file(tensors, weights, metadata={key: json.dumps(c) for key, c in told.items()})
    result = run(folder, *QUICK, "--only", "calibration,cost")
    assert result.code == 0
    assert "No calibration for" in result.err and "not finite" in result.err
    assert "multiply-accumulates" in result.out
    refused(run(folder, *QUICK, "--only", "calibration"), "Nothing could be analysed")


def test_an_interruption_shows_what_there_is(
    run: Run, trained: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(_found: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setitem(overview._MEASURES, "sparsity", interrupted)
    result = run(trained, *QUICK, "--only", "calibration,sparsity,cost", "--out", "part.json")
    assert result.code == 130
    assert "Brier score" in result.out and "multiply-accumulates" not in result.out
    assert "Interrupted: sparsity of" in result.err
    content = json.loads(Path("part.json").read_text())["runs"][0]
    assert "calibration" in content and "cost" not in content


def test_changed_data_is_noticed(run: Run, trained: Path, tmp_path: Path) -> None:
    moved = tmp_path / "moved"
    shutil.copytree(trained, moved)
    header, _ = ledger.read(moved / "ledger.jsonl")
    (moved / "ledger.jsonl").unlink()
    header["recipe"]["data"]["split_seed"] = 3
    first = {key: value for key, value in header.items() if key not in ("kind", "previous")}
    ledger.Ledger.create(moved / "ledger.jsonl", first).close()
    result = run(moved, "--only", "cost")
    assert result.code == 0 and "has changed since training" in result.err
    assert "recipe.toml was changed after the run began" in result.err
