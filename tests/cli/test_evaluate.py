"""`sfumato evaluate` as a user types it."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from cli_result import Run, refused
from PIL import Image
from safetensors.torch import save_file
from sklearn import metrics

from sfumato import data as datasets
from sfumato.training.classifier import load
from tiny_run import make_run


@pytest.fixture
def run(sfumato: Run) -> Run:
    return lambda *words: sfumato("evaluate", *words, "--device", "cpu")


def class_folders(root: Path, names: dict[str, int], *, per_class: int = 5) -> Path:
    for name, value in names.items():
        (root / name).mkdir(parents=True)
        for k in range(per_class):
            Image.new("L", (10, 12), min(255, value + k)).save(root / name / f"{k}.png")
    return root


@pytest.mark.usefixtures("real_pictures")
def test_numbers_are_those_of_the_model_on_the_test_set(run: Run, tmp_path: Path) -> None:
    folder = make_run(tmp_path / "run")
    result = run(folder)
    assert result.code == 0, result.err
    content = json.loads((folder / "evaluation.json").read_text())
    test = datasets.load("digits").test
    found = load(folder).predict(torch.from_numpy(test.images)).numpy()
    assert content["n"] == len(test) == 359
    assert content["accuracy"] == pytest.approx((found.argmax(1) == test.labels).mean())
    assert content["nll"] == pytest.approx(metrics.log_loss(test.labels, found), rel=1e-5)
    assert content["confusion"] == metrics.confusion_matrix(test.labels, found.argmax(1)).tolist()
    assert [row["class"] for row in content["per_class"]] == [str(k) for k in range(10)]
    assert (content["model"], content["data"], content["split"]) == ("tanh-cnn", "digits", "test")
    assert content["guarantee"] == {"private": True, "epsilon": {"pld": 3.0}}
    assert "warning" not in content and "guarantee" not in result.err
    with Image.open(folder / "evaluation.png") as image:
        assert image.format == "PNG"
    shown = " ".join(result.out.split())
    for words in (f"accuracy {100 * content['accuracy']:.2f} %", "top-5", "NLL", "Brier", "ECE"):
        assert words in shown
    assert "precision recall F1" in shown and str(folder / "evaluation.json") in result.out


def test_areas_and_intervals_of_the_test_set(run: Run, tmp_path: Path) -> None:
    folder = make_run(tmp_path / "run")
    result = run(folder, "--specificity", "0.8", "--resamples", "50")
    assert result.code == 0, result.err
    content = json.loads((folder / "evaluation.json").read_text())
    test = datasets.load("digits").test
    found = load(folder).predict(torch.from_numpy(test.images)).numpy()
    expected = metrics.roc_auc_score(test.labels, found, multi_class="ovr", average="macro")
    assert content["auroc"] == pytest.approx(expected, rel=1e-5)
    one = np.eye(10)[test.labels]
    assert content["average_precision"] == pytest.approx(
        metrics.average_precision_score(one, found, average="macro"), rel=1e-4
    )
    made = content["intervals"]
    assert (made["resamples"], made["unit"], made["units"]) == (50, "image", 359)
    for name in ("accuracy", "balanced_accuracy", "auroc", "average_precision", "sensitivity"):
        low, high = made[name]
        assert low <= content[name] <= high
    assert content["specificity"] == 0.8 and len(content["curves"]) == 10
    shown = " ".join(result.out.split())
    low, high = made["auroc"]
    assert f"AUROC {content['auroc']:.3f} [{low:.3f}, {high:.3f}]" in shown
    assert "sensitivity at specificity 80 %" in shown
    assert "50 bootstrap resamples of the 359 images" in shown


def test_intervals_take_patients_as_a_whole(run: Run, tmp_path: Path) -> None:
    """Copies of one patient's image add nothing; as images of their own they would."""
    rng = np.random.default_rng(0)
    images = rng.integers(0, 256, (40, 8, 8), dtype=np.uint8)
    labels = np.arange(40) % 2
    units = np.arange(40)
    file = tmp_path / "scans.npz"
    np.savez(
        file, x_train=images, y_train=labels, units_train=units,
        x_test=np.repeat(images[:20] ^ 1, 5, axis=0), y_test=np.repeat(labels[:20], 5),
        units_test=np.repeat(units[:20] + 100, 5),
    )  # fmt: skip
    folder = make_run(tmp_path / "run", data=str(file), classes=("0", "1"))
    text = (folder / "recipe.toml").read_text()
    wide = {}
    for unit in ("image", "patient"):
        (folder / "recipe.toml").write_text(text.replace('unit = "image"', f'unit = "{unit}"'))
        result = run(folder, "--json")
        assert result.code == 0, result.err
        made = json.loads(result.out)["intervals"]
        assert (made["unit"], made["units"]) == (unit, 100 if unit == "image" else 20)
        wide[unit] = made["accuracy"][1] - made["accuracy"][0]
    assert wide["patient"] > 1.5 * wide["image"]


def test_no_intervals_and_impossible_ones(run: Run, tmp_path: Path) -> None:
    folder = make_run(tmp_path / "run")
    result = run(folder, "--resamples", "0")
    assert result.code == 0 and "bootstrap" not in result.out
    assert json.loads((folder / "evaluation.json").read_text())["intervals"] is None
    refused(run(folder, "--resamples", "1"), "--resamples 1", "at least 2")
    refused(run(folder, "--resamples", "-5"), "at least 2")
    for wrong in ("0", "95", "nan"):
        refused(run(folder, "--specificity", wrong), "specificity", "0.95")
    assert len(list(folder.glob("evaluation*"))) == 2


def test_a_class_without_test_images_is_named(run: Run, tmp_path: Path) -> None:
    images = np.random.default_rng(0).integers(0, 256, (30, 8, 8), dtype=np.uint8)
    labels = np.arange(30) % 3
    held = labels != 1
    np.savez(
        tmp_path / "scans.npz", x_train=images, y_train=labels, x_test=images[held],
        y_test=labels[held],
    )  # fmt: skip
    folder = make_run(tmp_path / "run", data=str(tmp_path / "scans.npz"), classes=("0", "1", "2"))
    result = run(folder, "--resamples", "20")
    assert result.code == 0, result.err
    assert "No image is of '1': means over classes leave that out." in " ".join(result.out.split())
    content = json.loads((folder / "evaluation.json").read_text())
    assert content["absent"] == ["1"] and content["per_class"][1]["auroc"] is None
    assert content["auroc"] is not None


def test_json_alone_on_stdout_and_nothing_overwritten(run: Run, tmp_path: Path) -> None:
    folder = make_run(tmp_path / "run")
    first = run(folder, "--json")
    content = json.loads(first.out)
    assert content == json.loads((folder / "evaluation.json").read_text())
    before = (folder / "evaluation.json").read_bytes(), (folder / "evaluation.png").read_bytes()
    (folder / "evaluation-2.png").write_bytes(b"the user's own")
    assert run(folder).code == 0
    after = (folder / "evaluation.json").read_bytes(), (folder / "evaluation.png").read_bytes()
    assert before == after
    assert (folder / "evaluation-2.png").read_bytes() == b"the user's own"
    assert not (folder / "evaluation-2.json").exists()
    assert (folder / "evaluation-3.json").exists() and (folder / "evaluation-3.png").exists()


def test_parts_of_the_data(run: Run, tmp_path: Path) -> None:
    folder = make_run(tmp_path / "run", validation=0.1)
    sizes = {}
    for split in ("test", "validation", "train", "all"):
        result = run(folder, "--split", split, "--json", "--out", tmp_path / "elsewhere")
        content = json.loads(result.out)
        sizes[split] = content["n"]
        on_training = split in ("train", "all")
        assert ("guarantee does not cover" in result.err) == on_training
        assert ("warning" in content) == on_training
    assert sizes["test"] == 359 and sizes["train"] + sizes["validation"] == 1438
    assert sizes["all"] == 1797
    assert not (folder / "evaluation.json").exists()
    assert len(list((tmp_path / "elsewhere").iterdir())) == 8


def test_a_model_without_guarantee_has_none_to_leave(run: Run, tmp_path: Path) -> None:
    result = run(make_run(tmp_path / "run", private=False), "--split", "train")
    assert result.code == 0 and "guarantee" not in result.err


def test_no_validation_part(run: Run, tmp_path: Path) -> None:
    folder = make_run(tmp_path / "run")
    refused(run(folder, "--split", "validation"), "no validation part", "--split test")
    assert not (folder / "evaluation.json").exists()


def test_other_data_in_another_size_and_order(run: Run, tmp_path: Path) -> None:
    folder = make_run(tmp_path / "run", classes=("pale", "black"), size=(16, 16))
    scans = class_folders(tmp_path / "scans", {"black": 0, "pale": 250})
    result = run(folder, "--data", scans, "--split", "all", "--json")
    assert result.code == 0, result.err
    content = json.loads(result.out)
    assert content["n"] == 10 and content["data"] == "scans"
    assert [row["class"] for row in content["per_class"]] == ["pale", "black"]
    model = load(folder)
    expected = np.zeros((2, 2), dtype=int)
    for label, value in enumerate((250, 0)):
        for k in range(5):
            plane = torch.full((1, 1, 16, 16), min(255, value + k), dtype=torch.uint8)
            expected[label, int(model.predict(plane).argmax())] += 1
    assert content["confusion"] == expected.tolist()
    partly = run(folder, "--data", scans, "--json")
    assert json.loads(partly.out)["n"] == 2 and "--split all" in partly.err


def test_weights_file_alone(run: Run, tmp_path: Path) -> None:
    folder = make_run(tmp_path / "run")
    weights = (tmp_path / "lonely").joinpath("w.safetensors")
    weights.parent.mkdir()
    weights.write_bytes((folder / "model.safetensors").read_bytes())
    refused(run(weights), "--data")
    assert run(weights, "--data", "digits").code == 0
    assert (weights.parent / "evaluation.json").exists()


@pytest.mark.parametrize(
    ("names", "words"),
    [
        ({"a": 0, "b": 9}, "only the model has 'c'"),
        ({"a": 0, "b": 9, "c": 20, "d": 30}, "only the data has 'd'"),
        ({"a": 0, "b": 9, "x": 20}, "only the model has 'c'; only the data has 'x'"),
    ],
)
def test_other_classes(run: Run, tmp_path: Path, names: dict[str, int], words: str) -> None:
    folder = make_run(tmp_path / "run", classes=("a", "b", "c"))
    data = class_folders(tmp_path / "data", names)
    refused(run(folder, "--data", data), words)
    assert not (folder / "evaluation.json").exists()


def test_the_data_of_the_run_has_changed(run: Run, tmp_path: Path) -> None:
    data = class_folders(tmp_path / "data", {"a": 0, "b": 9})
    folder = make_run(tmp_path / "run", data=str(data), classes=("a", "b"), size=(16, 16))
    refused(run(folder), "1×12×10", "1×16×16", "--data")
    folder = make_run(tmp_path / "other", data=str(tmp_path / "gone"), classes=("a", "b"))
    refused(run(folder), "gone", "--data")


def test_unreadable_image(run: Run, tmp_path: Path) -> None:
    folder = make_run(tmp_path / "run", classes=("a", "b"))
    data = class_folders(tmp_path / "data", {"a": 0, "b": 9})
    broken = data / "a" / "0.png"
    broken.write_bytes(broken.read_bytes()[:30])
    refused(run(folder, "--data", data), "0.png", "--skip-unreadable")
    result = run(folder, "--data", data, "--split", "all", "--skip-unreadable", "--json")
    assert json.loads(result.out)["n"] == 9 and "1 images could not be read" in result.err


def test_nan_in_the_images(run: Run, tmp_path: Path) -> None:
    folder = make_run(tmp_path / "run", classes=("0", "1"))
    images = np.random.default_rng(0).random((20, 1, 8, 8), dtype=np.float32)
    images[3, 0, 2, 2] = np.nan
    labels = np.arange(20) % 2
    np.savez(tmp_path / "d.npz", train_images=images, train_labels=labels)
    result = run(folder, "--data", tmp_path / "d.npz", "--split", "all")
    refused(result, "1 of 20 images", "NaN")


@pytest.mark.parametrize("which", ["missing", "empty", "truncated", "foreign", "no-recipe", "text"])
def test_what_is_no_run(run: Run, tmp_path: Path, which: str) -> None:
    folder = tmp_path / "run"
    if which == "missing":
        refused(run(folder), "There is no run folder or weights file", "run")
        return
    if which == "empty":
        folder.mkdir()
        refused(run(folder), "holds no model.safetensors")
        return
    weights = make_run(folder) / "model.safetensors"
    if which == "truncated":
        weights.write_bytes(weights.read_bytes()[:-100])
        refused(run(folder), "cannot be read as weights")
    elif which == "foreign":
        save_file({"w": torch.zeros(3)}, weights)
        refused(run(folder), "not written by sfumato")
    elif which == "text":
        weights.write_text("hello")
        refused(run(folder), "cannot be read as weights")
    else:
        (folder / "recipe.toml").unlink()
        refused(run(folder), "recipe.toml", "--data")
    assert not (folder / "evaluation.json").exists()


def test_a_run_folder_named_like_a_recipe(run: Run, tmp_path: Path) -> None:
    data = class_folders(tmp_path / "data", {"a": 0, "b": 9})
    make_run(tmp_path / "digits", data=str(data), classes=("a", "b"), size=(12, 10))
    result = run("digits", "--json")
    assert result.code == 0, result.err
    assert json.loads(result.out)["data"] == "data"


def test_where_nothing_can_be_written(run: Run, tmp_path: Path) -> None:
    folder = make_run(tmp_path / "run")
    (tmp_path / "file").write_text("")
    refused(run(folder, "--out", tmp_path / "file" / "x"), "Cannot make the folder")
    if os.geteuid():
        (tmp_path / "locked").mkdir(mode=0o500)
        refused(run(folder, "--out", tmp_path / "locked"), "cannot be written to")


def test_a_full_disk_leaves_no_half_evaluation(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from sfumato.report import evaluation_picture

    def full(*_args: Any, **_options: Any) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(evaluation_picture, "draw", full)
    folder = make_run(tmp_path / "run")
    result = run(folder)
    assert result.code == 2 and "No space left" in result.err and "accuracy" in result.out
    assert sorted(p.name for p in folder.iterdir()) == ["model.safetensors", "recipe.toml"]
