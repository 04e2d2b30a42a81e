"""`sfumato report`, `sfumato card` and `sfumato train --tensorboard` as a user types them."""

from __future__ import annotations

import importlib.util
import json
import os
import re
import shutil
from pathlib import Path
from typing import Any

import pytest
from cli_result import Run, refused

from sfumato.privacy.statement import upwards
from tiny_run import TINY, make_run, train_run

SMALL = {**TINY, "training.seed": 424242}


@pytest.fixture
def run(sfumato: Run) -> Run:
    return lambda *words: sfumato(*words, "--device", "cpu")


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run that was really trained."""
    return train_run(tmp_path_factory.mktemp("runs") / "small", SMALL)


def test_a_report_of_a_real_run(run: Run, finished: Path, tmp_path: Path) -> None:
    result = run("report", finished, "-o", "page.html", "--samples", "test:4")
    assert result.code == 0, result.err
    text = (tmp_path / "page.html").read_text(encoding="utf-8")
    assert "Written: page.html" in result.out
    final = json.loads((finished / "metrics.jsonl").read_text().splitlines()[-1])
    assert f"which calibrated the run</th><td>{upwards(final['epsilon'], places=4)}" in text
    assert f"{100 * final['test_accuracy']:.1f} %" in text
    assert "the noise follows from a seed" in text
    assert "gradient scaled to norm at most C = 1" in text
    assert text.count('<figure class="sample') == 4
    stated = (finished / "statement.md").read_text(encoding="utf-8")
    for epsilon in re.findall(r"\| ε by .*? \| ([\d.]+) \|", stated):
        assert epsilon in text


def test_nothing_is_overwritten(run: Run, finished: Path, tmp_path: Path) -> None:
    (tmp_path / "page.html").write_text("mine")
    refused(run("report", finished, "-o", "page.html"), "page.html exists already")
    refused(run("card", finished, "-o", "page.html"), "page.html exists already")
    assert (tmp_path / "page.html").read_text() == "mine"
    refused(run("report", finished, "-o", "no/such/page.html"), "there is no folder")


def test_what_is_no_run_is_refused(run: Run, tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    refused(run("report", "empty"), "empty is not a run folder", "sfumato train")
    refused(run("report", "nowhere"), "no run folder nowhere")
    refused(run("card", "empty"), "empty is not a run folder")
    assert not (tmp_path / "report.html").exists()


def test_a_run_without_a_ledger(run: Run, tmp_path: Path) -> None:
    """Nothing is claimed where nothing can be checked."""
    make_run(tmp_path / "old")
    result = run("report", "old")
    assert result.code == 0, result.err
    text = (tmp_path / "report.html").read_text(encoding="utf-8")
    assert "no guarantee can be stated" in text and "not finished" in text
    assert "Cannot read the ledger" in result.err


def test_an_interrupted_run(run: Run, finished: Path, tmp_path: Path) -> None:
    half = tmp_path / "half"
    shutil.copytree(finished, half)
    for name in ("model.safetensors", "statement.md"):
        (half / name).unlink()
    lines = (half / "ledger.jsonl").read_bytes().splitlines(keepends=True)
    (half / "ledger.jsonl").write_bytes(b"".join(lines[:3]) + lines[3][:20])
    records = (half / "metrics.jsonl").read_bytes().splitlines(keepends=True)
    (half / "metrics.jsonl").write_bytes(b"".join(records[:2]) + b'{"step": 3, "lo')
    result = run("report", finished, half)
    assert result.code == 0, result.err
    text = (tmp_path / "report.html").read_text(encoding="utf-8")
    assert "after step 2 of 4" in text and ">not finished<" in text
    assert len((half / "ledger.jsonl").read_bytes()) == sum(map(len, lines[:3])) + 20
    refused(run("card", half), "has not finished", "--resume")


def test_samples_are_checked_first(run: Run, finished: Path) -> None:
    refused(run("report", finished, "--samples", "train:3"), "only test images")


def code_of(card: str) -> str:
    found = re.search(r"```python\n(.*?)```", card, re.DOTALL)
    assert found
    return found[1]


def test_the_code_of_a_card_runs(run: Run, finished: Path, tmp_path: Path) -> None:
    result = run("card", finished)
    assert result.code == 0, result.err
    card = (tmp_path / "MODEL_CARD.md").read_text(encoding="utf-8")
    os.chdir(finished)
    names: dict[str, Any] = {}
    exec(compile(code_of(card), "card", "exec"), names)
    assert names["probabilities"].shape == (2, 10)
    assert len(names["names"]) == 2 and set(names["names"]) <= set(names["classifier"].classes)


def test_a_card_states_the_guarantee_and_no_secret(
    run: Run, finished: Path, tmp_path: Path
) -> None:
    run("card", finished, "-o", "card.md")
    card = (tmp_path / "card.md").read_text(encoding="utf-8")
    final = json.loads((finished / "metrics.jsonl").read_text().splitlines()[-1])
    for words in (
        "| unit of privacy | one image |",
        "| neighbouring relation | leaving out one training image, its place kept empty (zero-out)",
        "### Several images of one person",
        "### Against whom",
        f"which calibrated the run | {upwards(final['epsilon'], places=4)} |",
        "RDP (Rényi)",
        "sampling | Poisson",
        "noise multiplier σ",
        "norm at most C = 1",
        "### Not covered",
        "### Tuning",
        "Trust model: central",
        f"{100 * final['test_accuracy']:.2f} %",
        "## Intended use",
        "## Limitations",
        "[training]",
    ):
        assert words in card, words
    assert "424242" not in card
    assert re.search(r"^# license: choose one", card, re.MULTILINE)


def test_a_card_has_areas_and_a_picture_of_curves(run: Run, finished: Path, tmp_path: Path) -> None:
    result = run("card", finished, "-o", "my card.md")
    assert result.code == 0, result.err
    card = (tmp_path / "my card.md").read_text(encoding="utf-8")
    assert re.search(r"\| AUROC \| 0\.\d{3} \[0\.\d{3}, 0\.\d{3}\] \|", card)
    assert "1000 bootstrap resamples of the 359 images" in card and "roc_auc" in card
    assert "![ROC and precision-recall curves](my%20card-curves.png)" in card
    assert (tmp_path / "my card-curves.png").read_bytes()[:4] == b"\x89PNG"
    (tmp_path / "my card.md").unlink()
    refused(run("card", finished, "-o", "my card.md"), "my card-curves.png exists already")
    assert not (tmp_path / "my card.md").exists()


def test_the_header_of_a_card_is_yaml(run: Run, finished: Path, tmp_path: Path) -> None:
    yaml = pytest.importorskip("yaml")
    run("card", finished, "-o", "card.md")
    _, head, body = (tmp_path / "card.md").read_text(encoding="utf-8").split("---\n", 2)
    content = yaml.safe_load(head)
    assert content["pipeline_tag"] == "image-classification"
    assert "differential-privacy" in content["tags"] and "license" not in content
    (entry,) = content["model-index"]
    assert entry["results"][0]["metrics"][0]["type"] == "accuracy"
    assert body.lstrip().startswith("# tanh-cnn on digits")


def test_names_in_a_card_are_harmless(tmp_path: Path, finished: Path) -> None:
    from sfumato.report.card import card
    from sfumato.report.measure import Measured
    from sfumato.report.runs import gather

    (found,) = gather([finished])
    evil = 'x"\n- evil: <script>|`'
    recipe = found.recipe.replace({"data.name": evil, "about": "```\n<script>"})
    assert found.guarantee is not None
    found.__dict__.update(name=evil, recipe=recipe)
    text = card(found, Measured())
    head, rest = text.split("\n---\n", 1)
    assert not re.search(r"^- evil", head, re.MULTILINE)
    outside = re.sub(r"(?s)````+toml.*?````+", "", rest)
    assert "<script>" not in outside.replace("\\<script\\>", "")


@pytest.mark.parametrize(
    ("labels", "said"), [([0, 1, 2], False), ([1, 1, 1], False), ([0, 1, 1], True)]
)
def test_recall_is_said_to_differ_only_if_it_does(
    finished: Path, labels: list[int], said: bool
) -> None:
    import numpy as np

    from sfumato.analysis import evaluate
    from sfumato.report.card import card
    from sfumato.report.measure import Measured
    from sfumato.report.runs import gather

    sure = 0.98 * np.eye(3)[[0, 1, 2] if len(set(labels)) > 1 else labels] + 0.02 / 3
    found = Measured(evaluate(sure, np.array(labels), ["A", "B", "C"]))
    text = card(gather([finished])[0], found)
    assert ("Recall differs between classes: 50.0 % for 'B', 100.0 % for 'A'." in text) == said
    assert ("Recall differs" in text) == said and "Its confidence is off by" in text


def test_tensorboard_gets_every_record(run: Run, tmp_path: Path) -> None:
    pytest.importorskip("tensorboard")
    settings = [f"{name}={value}" for name, value in SMALL.items() if name != "model.options"]
    words = [word for setting in settings for word in ("--set", setting)]
    words += ["--set", "training.train_metrics=true"]
    result = run("train", "digits", "--out", "r", "--tensorboard", *words)
    assert result.code == 0, result.err
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    events = EventAccumulator(str(tmp_path / "r" / "tensorboard"))
    events.Reload()
    lines = [json.loads(line) for line in (tmp_path / "r" / "metrics.jsonl").open()]
    found = [(e.step, e.value) for e in events.Scalars("loss/training batches")]
    expected = [(r["step"], r["loss"]) for r in lines if "loss" in r]
    assert [step for step, _ in found] == [step for step, _ in expected]
    assert [v for _, v in found] == pytest.approx([v for _, v in expected])
    (last,) = events.Scalars("accuracy/test, at the end")
    assert last.value == pytest.approx(lines[-1]["test_accuracy"])
    assert {"privacy/epsilon spent", "training/learning rate"} <= set(events.Tags()["scalars"])


def test_tensorboard_forgets_what_is_repeated(tmp_path: Path) -> None:
    pytest.importorskip("tensorboard")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    from sfumato.training.metrics import Metrics
    from sfumato.training.tensorboard import streaming

    metrics = Metrics(tmp_path / "metrics.jsonl")
    with streaming():
        for step in (1, 2, 3):
            metrics.add({"step": step, "loss": 1.0, "seconds": 1.0})
    again = Metrics(tmp_path / "metrics.jsonl", upto=1)
    with streaming():
        for step in (2, 3):
            again.add({"step": step, "loss": 2.0, "seconds": 1.0})
    again.add({"step": 4, "loss": 3.0, "seconds": 1.0})
    events = EventAccumulator(str(tmp_path / "tensorboard"))
    events.Reload()
    found = [(e.step, e.value) for e in events.Scalars("loss/training batches")]
    assert found == [(1, 1.0), (2, 2.0), (3, 2.0)]


def test_without_tensorboard(run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    find = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name, *a: None if name == "tensorboard" else find(name)
    )
    result = run("train", "digits", "--out", "r", "--tensorboard")
    refused(result, "pip install tensorboard", "metrics.jsonl")
    assert not (tmp_path / "r").exists()
