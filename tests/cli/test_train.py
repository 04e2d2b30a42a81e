"""`sfumato train` as a newcomer meets it: what it leaves, and what it says of mistakes."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
import tomllib
from pathlib import Path

import numpy as np
import pytest
from cli_result import Run, refused
from PIL import Image

from sfumato.training import checkpoint, run_folder

QUICK = ("--set", "training.steps=3", "--set", "model.options.filters=2", "--device", "cpu")


@pytest.fixture
def run(sfumato: Run) -> Run:
    return lambda *words: sfumato("train", *words)


def folder_of_images(root: Path, counts: dict[str, int], size: int = 8) -> Path:
    rng = np.random.default_rng(0)
    for name, count in counts.items():
        (root / name).mkdir(parents=True)
        for i in range(count):
            pixels = rng.integers(0, 256, (size, size, 3), dtype=np.uint8)
            Image.fromarray(pixels).save(root / name / f"{i}.png")
    return root


@pytest.mark.usefixtures("real_pictures")
def test_a_run_leaves_everything_it_promises(run: Run) -> None:
    code, out, _ = run(*QUICK, "--seed", "0", "--out", "r")
    assert code == 0
    folder = Path("r")
    for name in ("RECIPE", "LEDGER", "METRICS", "WEIGHTS", "STATEMENT", "GUARANTEE"):
        assert (folder / getattr(run_folder, name)).stat().st_size > 0
    assert Image.open(folder / run_folder.CURVES).size[0] > 500
    assert list((folder / run_folder.CHECKPOINTS).iterdir())
    last = out.splitlines()[-4:]
    for word, line in zip(("accuracy", "epsilon", "time", "r"), last, strict=True):
        assert word in line
    assert "PLD" in last[1]
    assert "delta 1e-05" in last[1]
    ledger = [json.loads(line) for line in (folder / run_folder.LEDGER).read_text().splitlines()]
    assert [line["kind"] for line in ledger] == ["start", "step", "step", "step"]
    recipe = tomllib.loads((folder / run_folder.RECIPE).read_text())
    assert recipe["training"]["steps"] == 3
    assert not (folder / run_folder.KEY).exists()

    refused(run("r", "--out", "again"), "r is a run", "--resume r", "r/recipe.toml")
    code, out, _ = run("r/recipe.toml", "--out", "again", "--device", "cpu")
    assert code == 0
    assert (folder / run_folder.WEIGHTS).read_bytes() == (
        Path("again") / run_folder.WEIGHTS
    ).read_bytes()


def test_without_a_seed_the_key_is_gone_and_runs_differ(run: Run) -> None:
    for name in ("a", "b"):
        assert run(*QUICK, "--out", name).code == 0
        assert not (Path(name) / run_folder.KEY).exists()
    assert (Path("a") / run_folder.WEIGHTS).read_bytes() != (
        Path("b") / run_folder.WEIGHTS
    ).read_bytes()
    assert "a key of 256 bits" in " ".join((Path("a") / run_folder.STATEMENT).read_text().split())


def test_default_folders_are_numbered(run: Run) -> None:
    for number in (1, 2):
        assert run(*QUICK, "--no-privacy").code == 0
        assert Path(f"runs/digits-00{number}", run_folder.WEIGHTS).exists()


def test_without_privacy(run: Run) -> None:
    code, out, _ = run(*QUICK, "--no-privacy", "--seed", "0", "--out", "r")
    assert code == 0
    assert "not private" in out
    assert "no privacy guarantee" in Path("r", run_folder.STATEMENT).read_text()


def test_a_folder_of_images(run: Run, tmp_path: Path) -> None:
    scans = folder_of_images(tmp_path / "scans", {"sick": 30, "well": 30})
    quick = ("--set", "model.name=tanh-cnn", "--set", "training.steps=2", "--device", "cpu")
    code, out, err = run(str(scans), *quick, "--set", "data.size=8", "--out", "r")
    assert code == 0, err
    assert "test accuracy" in out


def test_train_says_what_it_is_about_to_do(sfumato: Run, tmp_path: Path) -> None:
    scans = folder_of_images(tmp_path / "scans", {"sick": 10, "well": 10}, size=20)
    Image.new("RGB", (90, 70)).save(scans / "well" / "wide.png")
    (scans / "well" / "raw.nii").touch()
    quick = ("--model", "tanh-cnn", "--set", "training.steps=1", "--set", "training.batch=4")
    shown = sfumato("data", "show", scans).out
    code, out, err = sfumato("train", scans, *quick, "--device", "cpu", "--out", "r")
    assert code == 0, err
    notes = [line.removeprefix("Note: ") for line in shown.splitlines() if "Note: " in line]
    assert out.splitlines()[: len(notes)] == notes
    assert any("with sides from 20 to 90; they are scaled to 64×64" in note for note in notes)
    assert any("Ignored: 1 × .nii" in note for note in notes)
    said = out.splitlines()[len(notes)]
    for word in ("tanh-cnn", "19 images of 2 classes", "3×64×64", "1 steps", "4 images", "sigma "):
        assert word in said, said
    code, out, err = sfumato("train", scans, *quick, "--size", 16, "--no-privacy", "--out", "s")
    assert code == 0, err
    assert "scaled to 16×16" in out and "(3×16×16)" in out and "without privacy" in out


def test_the_bits_of_scans(sfumato: Run, tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    for name in ("sick", "well"):
        (tmp_path / "scans" / name).mkdir(parents=True)
        for k in range(10):
            values = rng.integers(0, 4096, (8, 8)).astype(np.uint16)
            Image.fromarray(values).save(tmp_path / "scans" / name / f"{k}.png")
    quick = ("--model", "tanh-cnn", "--set", "training.steps=1", "--seed", 0, "--device", "cpu")
    quick = (*quick, "--no-privacy")
    assert "data.bits=12" in sfumato("train", "scans", *quick, "--out", "dark").out
    code, out, err = sfumato("train", "scans", *quick, "--set", "data.bits=12", "--out", "r")
    assert code == 0, err
    assert "data.bits" not in out
    assert sfumato("evaluate", "r", "--device", "cpu").code == 0
    scan = np.asarray(Image.open("scans/sick/0.png")).astype(float)
    Image.fromarray(np.rint(scan * 255 / 4095).astype(np.uint8)).save("shown.png")
    shown, deep = (
        sfumato("predict", "r", name, "--device", "cpu").out.splitlines()[-1].partition(",")[2]
        for name in ("shown.png", "scans/sick/0.png")
    )
    assert shown == deep
    samples = ("--samples", "shown.png", "--samples", "scans/sick/0.png")
    assert sfumato("report", "r", "-o", "page.html", *samples, "--device", "cpu").code == 0
    pictures = re.findall(r"data:image/png;base64,[^\"]+", Path("page.html").read_text())
    assert len(pictures) == 2 and pictures[0] == pictures[1]


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("./scan", "There is no folder or file './scan'. Did you mean './scans'?"),
        ("scan", "There is no recipe, folder or file 'scan'. Did you mean 'scans'?"),
        ("scan/train", "There is no folder or file 'scan/train'. Did you mean 'scans'?"),
        ("scan/", "There is no folder or file 'scan/'. Did you mean 'scans'?"),
        ("mine.toml", "There is no folder or file 'mine.toml'. Did you mean 'mien.toml'?"),
        ("scens.npz", "called 'scens.npz'. Did you mean 'scans'?"),
        ("./zzzz", "There is no folder or file './zzzz'."),
        ("003/1-baselin", "Did you mean 'optimizer-report/1-baseline'?"),
    ],
)
def test_a_misspelt_path(run: Run, tmp_path: Path, name: str, words: str) -> None:
    (tmp_path / "scans").mkdir()
    (tmp_path / "mien.toml").touch()
    refused(run(name, "--epsilon", "8"), words)
    refused(run("--data", "./scan"), "Did you mean 'scans'?")


@pytest.mark.parametrize("budget", [("--epsilon", "3"), ("--delta", "1e-6")])
def test_a_budget_without_privacy_is_refused(run: Run, budget: tuple[str, str]) -> None:
    refused(run(*QUICK, "--no-privacy", *budget, "--out", "r"), "--no-privacy", budget[0])
    assert not Path("r").exists()
    assert run(*QUICK, "--no-privacy", "--out", "bare").code == 0
    refused(run("bare/recipe.toml", *budget, "--out", "r"), "without any privacy", budget[0])
    assert not Path("r").exists()


def test_suggested_commands_can_be_pasted(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    from sfumato.training.loop import Loop

    def stop(self: Loop) -> object:
        os.kill(os.getpid(), signal.SIGTERM)
        return whole(self)

    whole = Loop.take_step
    monkeypatch.setattr(Loop, "take_step", stop)
    code, out, _ = run(*QUICK, "--out", "[red] :abc:")
    assert code == 128 + signal.SIGTERM
    assert "sfumato train --resume '[red] :abc:'" in out
    refused(run(*QUICK, "--out", "[red] :abc:"), "sfumato train --resume '[red] :abc:'")


@pytest.mark.parametrize(
    ("args", "words"),
    [
        (["nonsense"], ["no recipe 'nonsense'", "sfumato recipes list"]),
        (["digit"], ["Did you mean 'digits'"]),
        (["--data", "cifar11"], ["cifar11", "cifar10"]),
        (["--model", "wrn-16-x"], ["wrn-16-x"]),
        (["--set", "optimizer.lrr=2"], ["Did you mean 'lr'"]),
        (["--epsilon", "0"], ["--epsilon ('privacy.epsilon') must be greater than 0"]),
        (["--set", "privacy.epsilon=0"], ["'privacy.epsilon' in the recipe must be greater"]),
        (["--size", "2"], ["--size ('data.size') must be at least 4"]),
        (["--epsilon", "-1"], ["greater than 0"]),
        (["--delta", "0.01"], ["1438"]),
        (["--delta", "2"], ["less than 1"]),
        (["--set", "training.batch=5000"], ["training.batch = 5000", "1438"]),
        (["--set", "training.views=0"], ["at least 1"]),
        (["--device", "tpu"], ["Unknown device"]),
        (["--data", "./nowhere"], ["nowhere"]),
        (["--resume", "./nowhere"], ["not a run folder"]),
        (["--resume", "./nowhere", "digits"], ["leave them away"]),
        (["--set", "model.options.filtres=2"], ["filters"]),
        (["--model", "no.such:thing"], ["no.such"]),
        (["--set", "optimizer.lr=3e38", "--set", "model.options.activation=relu"], ["Lower the"]),
    ],
)
def test_bad_input_is_a_sentence(run: Run, args: list[str], words: list[str]) -> None:
    fixed = () if "--resume" in args else ("--out", "r", "--device", "cpu")
    refused(run(*fixed, *args), *words)


def test_folders_that_cannot_be_trained_on(run: Run, tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    refused(run("empty", "--out", "r"), "empty")
    folder_of_images(tmp_path / "one", {"only": 4})
    refused(run("one", "--out", "r"), "one", "class")
    assert not Path("r").exists()


def test_a_corrupt_image_is_named_and_can_be_skipped(run: Run, tmp_path: Path) -> None:
    scans = folder_of_images(tmp_path / "scans", {"a": 20, "b": 20})
    broken = scans / "a" / "3.png"
    broken.write_bytes(broken.read_bytes()[:60])
    quick = ("--model", "tanh-cnn", "--set", "training.steps=1", "--set", "data.size=8")
    refused(run("scans", *quick, "--out", "r"), "3.png", "--skip-unreadable")
    code, out, err = run("scans", *quick, "--no-privacy", "--out", "r", "--skip-unreadable")
    assert code == 0, err
    assert "skipped" in out.lower()


def npz(path: Path, images: np.ndarray, labels: np.ndarray) -> str:
    np.savez(path, images=images, labels=labels)
    return str(path)


def test_labels_out_of_range(run: Run, tmp_path: Path) -> None:
    images = np.zeros((40, 8, 8), np.uint8)
    labels = np.arange(40) % 2
    labels[3] = -1
    refused(run(npz(tmp_path / "d.npz", images, labels), "--out", "r"), "label", "-1")


def test_nan_in_the_data_counts_as_zero(run: Run, tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    images = rng.random((60, 8, 8), dtype=np.float32)
    images[::4] = np.nan
    path = npz(tmp_path / "d.npz", images, np.arange(60) % 2)
    code, out, err = run(
        path, "--model", "tanh-cnn", "--set", "training.steps=3", "--set", "data.size=8",
        "--set", "training.batch=30", "--set", "training.views=1", "--seed", "0", "--out", "r",
    )  # fmt: skip
    assert code == 0, err
    assert "not finite" in out
    import sfumato

    classifier = sfumato.load("r")
    assert all(bool(p.isfinite().all()) for p in classifier.parameters())


def test_an_existing_folder_is_left_alone(run: Run, tmp_path: Path) -> None:
    taken = tmp_path / "taken"
    taken.mkdir()
    (taken / "thesis.txt").write_text("years of work")
    refused(run(*QUICK, "--out", "taken"), "taken already exists", "choose another --out")
    assert [p.name for p in taken.iterdir()] == ["thesis.txt"]


def test_a_folder_that_cannot_be_made(run: Run, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    refused(run(*QUICK, "--out", "file/r"), "Cannot make the run folder")


def test_a_full_disk(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = checkpoint.write_whole
    calls = 0

    def full(path: Path, content: bytes) -> None:
        nonlocal calls
        calls += 1
        if calls > 2:
            raise OSError(28, "No space left on device", str(path))
        whole(path, content)

    settings = (*QUICK, "--set", "training.checkpoint_every=1", "--seed", "0")
    monkeypatch.setattr(checkpoint, "write_whole", full)
    refused(run(*settings, "--out", "r"), "No space left", "--resume r")
    monkeypatch.setattr(checkpoint, "write_whole", whole)
    code, _, err = run("--resume", "r", "--device", "cpu")
    assert code == 0, err


def interrupted(run: Run, monkeypatch: pytest.MonkeyPatch, *args: str) -> None:
    """Leave a run in `r` that stopped after its second step."""
    from sfumato.training.loop import Loop

    whole = Loop.take_step

    def stop(self: Loop) -> object:
        statistics = whole(self)
        if self.step == 2:
            os.kill(os.getpid(), signal.SIGTERM)
        return statistics

    monkeypatch.setattr(Loop, "take_step", stop)
    code, out, _ = run(
        *QUICK, "--seed", "0", "--set", "training.checkpoint_every=1", "--out", "r", *args
    )
    monkeypatch.setattr(Loop, "take_step", whole)
    assert code == 128 + signal.SIGTERM
    assert "sfumato train --resume r" in out


def test_sigterm_saves_and_resume_ends_the_same(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    interrupted(run, monkeypatch)
    assert run("--resume", "r", "--device", "cpu").code == 0
    settings = (*QUICK, "--seed", "0", "--set", "training.checkpoint_every=1")
    assert run(*settings, "--out", "whole").code == 0
    for name in (run_folder.WEIGHTS, run_folder.LEDGER, run_folder.STATEMENT):
        assert Path("r", name).read_bytes() == Path("whole", name).read_bytes()
    refused(run("--resume", "r", "--device", "cpu"), "finished")


def test_dropout_is_repeated_exactly(
    run: Run, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    body = "return nn.Sequential(nn.Flatten(), nn.Dropout(0.5), nn.Linear(64, classes))"
    outside_model(tmp_path, monkeypatch, body)
    plain = ("--model", "mine:build", "--seed", "0", "--set", "training.steps=3")
    from sfumato.training.loop import Loop

    whole = Loop.take_step

    def stop(self: Loop) -> object:
        statistics = whole(self)
        if self.step == 2:
            os.kill(os.getpid(), signal.SIGTERM)
        return statistics

    monkeypatch.setattr(Loop, "take_step", stop)
    stopped = run(*plain, "--device", "cpu", "--out", "r")
    assert stopped.code == 128 + signal.SIGTERM
    monkeypatch.setattr(Loop, "take_step", whole)
    goes_on = "--resume r --trust-code mine:build"
    assert goes_on in stopped.out
    assert run(*goes_on.split(), "--device", "cpu").code == 0
    assert run(*plain, "--device", "cpu", "--out", "whole").code == 0
    assert (
        Path("r", run_folder.WEIGHTS).read_bytes() == Path("whole", run_folder.WEIGHTS).read_bytes()
    )


def test_resume_refuses_another_recipe(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    interrupted(run, monkeypatch)
    refused(run("--resume", "r", "--set", "optimizer.lr=3"), "optimizer.lr was 2.0", "3")
    refused(run("--resume", "r", "--epsilon", "9"), "privacy.epsilon was 3.0")
    for setting, value in (("clip", "1.0"), ("epsilon", "3.0")):
        path = Path("r", run_folder.RECIPE)
        before = path.read_text()
        path.write_text(before.replace(f"{setting} = {value}", f"{setting} = 7.0"))
        refused(run("--resume", "r"), f"privacy.{setting} was {value} and is now 7.0")
        path.write_text(before)
    assert run("--resume", "r", "--device", "cpu").code == 0


def test_resume_refuses_another_sigma(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    interrupted(run, monkeypatch)
    from sfumato.training import setup

    monkeypatch.setattr(setup.budget, "noise_multiplier_for", lambda **_: 1.25)
    refused(run("--resume", "r"), "sigma was", "is now 1.25")


def test_resume_refuses_other_data(
    run: Run, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    rng = np.random.default_rng(0)
    images, labels = rng.integers(0, 256, (60, 8, 8), dtype=np.uint8), np.arange(60) % 2
    path = npz(tmp_path / "d.npz", images, labels)
    small = ("--set", "training.batch=20", "--set", "training.views=1", "--set", "data.size=8")
    interrupted(run, monkeypatch, "--data", path, "--model", "tanh-cnn", *small)
    images[0, 0, 0] ^= 1
    npz(tmp_path / "d.npz", images, labels)
    refused(run("--resume", "r"), "training images or their labels are not the ones")


def test_resume_passes_over_a_truncated_checkpoint(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    interrupted(run, monkeypatch)
    newest = sorted(Path("r", run_folder.CHECKPOINTS).iterdir())[-1]
    newest.write_bytes(newest.read_bytes()[:100])
    code, out, _ = run("--resume", "r", "--device", "cpu")
    assert code == 0
    assert f"{newest.name} is damaged" in out
    assert "going on from step 1" in out


def test_a_lost_key_cannot_be_guessed(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    interrupted(run, monkeypatch, "--set", "training.seed=3")
    assert not Path("r", run_folder.KEY).exists()


def test_the_budget_ends_the_run(run: Run) -> None:
    settings = ("--set", "privacy.noise_multiplier=2.0", "--epsilon", "2.5", "--seed", "0")
    small = ("--set", "model.options.filters=2", "--set", "training.steps=50")
    code, out, err = run(*settings, *small, "--out", "r", "--device", "cpu")
    assert code == 0, err
    assert "ends after" in out
    from sfumato.privacy.accounting.accountants import Step, epsilon
    from sfumato.privacy.ledger import read

    header, steps = read(Path("r", run_folder.LEDGER))
    assert 0 < len(steps) < 50
    spent = epsilon(steps, delta=1e-5)
    one_more = [*steps, Step(header["rate"], 2.0)]
    assert spent <= 2.5 < epsilon(one_more, delta=1e-5)


def outside_model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, body: str) -> None:
    (tmp_path / "mine.py").write_text(
        "from torch import nn\ndef build(classes, channels, size):\n    " + body
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    sys.modules.pop("mine", None)


@pytest.mark.parametrize(
    ("body", "words"),
    [
        ("return nn.Sequential(nn.Flatten(), nn.Linear(64, 7))", ["(2, 7)", "10 classes"]),
        ("return nn.Sequential(nn.Flatten(), nn.Linear(65, 10))", ["cannot take images", "8x8"]),
        (
            "return nn.Sequential(nn.BatchNorm2d(1), nn.Flatten(), nn.Linear(64, 10))",
            ["'0': BatchNorm2d)", "--batchnorm-to groupnorm", "model.batchnorm_to"],
        ),
        (
            "return nn.Sequential(nn.Flatten(), nn.BatchNorm1d(64), nn.Linear(64, 10))",
            ["BatchNorm1d", "differential privacy"],
        ),
        (
            "class Centred(nn.Module):\n"
            "        def forward(self, x): return x - x.mean(0)\n"
            "    return nn.Sequential(Centred(), nn.Flatten(), nn.Linear(64, 10))",
            ["cannot be trained with differential privacy"],
        ),
        ("return nn.Flatten()", ["no parameter"]),
    ],
)
def test_models_that_do_not_fit(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, body: str, words: list[str]
) -> None:
    outside_model(tmp_path, monkeypatch, body)
    refused(run("--model", "mine:build", "--out", "r", "--device", "cpu"), *words)
    assert not Path("r").exists(), "once it is mended, the same command should work"


def test_batchnorm_is_replaced_on_request_and_the_statement_says_so(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import sfumato

    body = "return nn.Sequential(nn.BatchNorm2d(1), nn.Flatten(), nn.Linear(64, 10))"
    outside_model(tmp_path, monkeypatch, body)
    words = ("--model", "mine:build", "--set", "training.steps=2", "--device", "cpu", "--out", "r")
    refused(run(*words, "--batchnorm-to", "layernorm"), "--batchnorm-to", "one of groupnorm")
    assert run(*words, "--batchnorm-to", "groupnorm").code == 0
    statement = Path("r", run_folder.STATEMENT).read_text()
    assert "| model | every BatchNorm replaced by groupnorm |" in statement
    opened = sfumato.open("r", trust_code=["mine"])
    assert opened.guarantee is not None and opened.guarantee.batchnorm_to == "groupnorm"
    assert not opened.problems
    layers = sfumato.load("r", trust_code=["mine"]).network
    assert type(layers[0]).__name__ == "GroupNorm"


@pytest.mark.parametrize("name", ["images", "last-layer", "last-layer-grey", "wavelets"])
def test_a_recipe_for_ones_own_images_asks_for_them(run: Run, name: str) -> None:
    refused(run(name, "--out", "r"), "images of your own", f"train {name} --data ./scans")
    assert not Path("r").exists()


def test_what_has_begun_is_kept_whatever_comes(run: Run) -> None:
    words = (*QUICK, "--no-privacy", "--set", "training.diverged=1e-6", "--out", "r")
    refused(run(*words), "Training diverged")
    assert Path("r", "ledger.jsonl").exists(), "steps were taken, though none needed a line"


def test_memory_that_runs_out_is_halved_without_changing_the_result(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    import torch

    import sfumato
    from sfumato.privacy.per_example import PerExample

    assert run(*QUICK, "--seed", "0", "--out", "roomy").code == 0
    whole = PerExample.__call__

    def cramped(self: PerExample, x: torch.Tensor, y: torch.Tensor) -> object:
        if len(y) > 300:
            raise torch.OutOfMemoryError("CUDA out of memory")
        return whole(self, x, y)

    monkeypatch.setattr(PerExample, "__call__", cramped)
    code, out, err = run(*QUICK, "--seed", "0", "--out", "cramped")
    assert code == 0, err
    assert "Not enough memory" in out
    for a, b in zip(
        sfumato.load("roomy").parameters(), sfumato.load("cramped").parameters(), strict=True
    ):
        torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-5)


def test_ctrl_c_before_the_first_step(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    from sfumato.training import pipeline as runs
    from sfumato.training.loop import Loop

    def interrupt(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(runs, "dataset_of", interrupt)
        for out in ((), ("--out", "r")):
            result = run(*QUICK, *out)
            assert (result.code, result.err) == (130, "Stopped before training began.\n")
    assert not Path("r").exists() and not Path("runs").exists()
    with monkeypatch.context() as patch:
        patch.setattr(Loop, "run", interrupt)
        for out, folder in ((), "runs/digits-001"), (("--out", "r s"), "'r s'"):
            result = run(*QUICK, *out)
            words = f"Stopped. Go on with: sfumato train --resume {folder}\n"
            assert (result.code, result.err) == (130, words)
        result = run("--resume", "r s", "--device", "cpu")
        assert (result.code, result.err) == (130, words)
    assert run("--resume", "r s", "--device", "cpu").code == 0


def test_ctrl_c_elsewhere(sfumato: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    from sfumato import recipes

    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(recipes, "find", interrupt)
    result = sfumato("recipes", "show", "digits")
    assert (result.code, result.err) == (130, "Stopped.\n")


def test_ctrl_c_while_modules_are_loaded(tmp_path: Path) -> None:
    ask = "import os, signal; os.kill(os.getpid(), signal.SIGINT)"
    (tmp_path / "typer.py").write_text(ask)
    where = os.pathsep.join([str(tmp_path), *filter(None, sys.path)])
    result = subprocess.run(
        [sys.executable, "-m", "sfumato", "train"],
        env=os.environ | {"PYTHONPATH": where}, capture_output=True, text=True, check=False,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),  # else ignored in jobs
    )  # fmt: skip
    assert result.returncode == 130
    assert result.stderr == "Stopped before anything was written.\n"


@pytest.mark.slow
@pytest.mark.skipif(sys.platform == "win32", reason="signals")
def test_ctrl_c_from_outside(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "sfumato", "train", *QUICK, "--out", str(tmp_path / "r"),
               "--seed", "0", "--set", "training.steps=4000", "--set", "privacy.epsilon=90.0",
               "--set", "privacy.noise_multiplier=60.0", "--set", "training.batch=16",
               "--set", "training.log_every=1", "--set", "privacy.accountant=rdp"]  # fmt: skip
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    deadline = time.monotonic() + 90
    while not (tmp_path / "r" / run_folder.METRICS).exists() and time.monotonic() < deadline:
        time.sleep(0.1)
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=60)
    assert process.returncode == 130, (out, err)
    assert "--resume" in out
    assert "Traceback" not in err


def test_what_ones_own_images_are_trained_with(tmp_path: Path) -> None:
    from sfumato.recipes.choice import choose

    scans = tmp_path / "scans"
    scans.mkdir()
    folder, bare = str(scans), {"privacy.enabled": False}
    usual = choose(folder, None, {})
    assert (usual.name, usual.start.source) == ("images", "dead-leaves")
    other = {"model.name": "resnet9"}
    named = choose("images", folder, other | {"data.name": folder})
    for chosen in (choose(folder, None, other), choose(None, folder, other), named):
        assert (chosen.name, chosen.model.name, chosen.start.source) == (
            "from-scratch",
            "resnet9",
            "",
        )
    tried = choose(folder, None, {}, tried={"model.name": ["resnet9", "wrn-16-4"]})
    assert tried.start.source == "", "none of them could start from the weights of another"
    for chosen in (choose(folder, None, bare), choose("images", folder, bare | {"data.name": "x"})):
        assert (chosen.optimizer.name, chosen.model.name) == ("nadam", usual.model.name)
    kept = choose("sfumato/leaves-cifar10-eps2", None, bare)
    assert kept.optimizer.name == "sgd", "a recipe that was named is taken as it is"
