"""One object for a run folder: finished, interrupted, or written by an older version."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
import torch

import sfumato
from sfumato import recipes
from sfumato.errors import UserError
from sfumato.privacy import ledger
from sfumato.privacy.guarantee import Guarantee
from sfumato.training import run_folder
from tiny_run import TINY, make_run, train_run

OLD = Path(__file__).parent / "written_by_0_1_0"
"""Two runs of digits with one seed: `finished`, and `interrupted` after step 6 of 8."""


@pytest.fixture
def finished(tmp_path: Path) -> Path:
    return Path(shutil.copytree(OLD / "finished", tmp_path / "finished"))


@pytest.fixture
def interrupted(tmp_path: Path) -> Path:
    return Path(shutil.copytree(OLD / "interrupted", tmp_path / "interrupted"))


def test_training_returns_the_run_that_opening_gives(tmp_path: Path) -> None:
    recipe = recipes.find("digits").replace({**TINY, "training.seed": 3})
    run = sfumato.train(recipe, out=tmp_path / "run", device="cpu")
    assert isinstance(run, sfumato.Run) and run.finished and not run.problems
    again = sfumato.open(tmp_path / "run")
    assert again.guarantee == run.guarantee == run.verify() == again.verify()
    assert again.guarantee is not None and run.epsilon == again.guarantee.epsilon
    assert run.accuracy == run.test_accuracy == run.metrics[-1]["test_accuracy"]
    assert run.steps == 4 and len(run.ledger) == 4 and run.history[0].count == 4
    assert run.weights == "final weights" and run.step == 4 and run.notes == []
    assert run.classifier.predict(torch.zeros(2, 1, 8, 8)).shape == (2, 10)
    assert len(run.dataset.train) == run.examples
    assert repr(run) == (
        f"<Run {tmp_path / 'run'}: tanh-cnn on digits, finished, accuracy {run.accuracy:.4f}, "
        f"epsilon {run.spent:.4g}>"
    )
    page = run.report(tmp_path / "page.html")
    assert "tanh-cnn on digits" in page.read_text()
    with pytest.raises(UserError, match="exists already"):
        run.report(page)
    with pytest.raises(UserError, match="is finished"):
        run.resume()


def test_opening_reads_nothing_that_is_not_asked_for(tmp_path: Path) -> None:
    folder = train_run(tmp_path / "run", {"training.seed": 3})
    before = {path: path.stat() for path in folder.rglob("*")}
    (folder / run_folder.WEIGHTS).write_bytes(b"nonsense")
    run = sfumato.open(folder)
    assert run.accuracy is not None and run.recipe.name == "digits" and run.spent is None
    assert any("cannot be read as weights" in problem for problem in run.problems)
    assert set(folder.rglob("*")) == set(before)
    with pytest.raises(UserError, match="cannot be read as weights"):
        run.verify()


def test_what_is_no_run_is_refused(tmp_path: Path, finished: Path) -> None:
    with pytest.raises(UserError, match="There is no run folder"):
        sfumato.open(tmp_path / "nowhere")
    with pytest.raises(UserError, match="is not a run folder"):
        sfumato.open(tmp_path)
    with pytest.raises(UserError, match="is a file of a run"):
        sfumato.open(finished / run_folder.STATEMENT)


def test_a_finished_run_of_version_0_1_0_is_read_whole(finished: Path) -> None:
    run = sfumato.open(finished)
    assert run.finished and run.problems == () and run.verify() is run.guarantee
    g = run.guarantee
    assert g is not None and not (finished / run_folder.GUARANTEE).exists()
    assert g.spent == pytest.approx(2.9991, abs=1e-4) and g.epsilon["rdp"] > 3.79
    assert (g.examples, g.counted, g.taken, g.planned, g.batch) == (1438, 8, 8, 8, 64.0)
    assert g.seeded and g.noise_source == "" and g.train_metrics and not g.checked_at_end
    assert Guarantee.from_dict(json.loads(json.dumps(g.to_dict()))) == g
    assert run.accuracy == run.final["test_accuracy"] and len(run.metrics) == 5
    assert [step for step, _ in run.snapshots] == [0, 8]
    labels = torch.from_numpy(run.dataset.test.labels)
    predicted = run.classifier.predict(torch.from_numpy(run.dataset.test.images)).argmax(1)
    assert float((predicted == labels).double().mean()) == pytest.approx(run.accuracy)


@pytest.mark.parametrize("told", ["**(3, 1e-05)", "-differential privacy"])
def test_an_edited_statement_of_version_0_1_0_is_found(finished: Path, told: str) -> None:
    text = (finished / run_folder.STATEMENT).read_text()
    assert told in text
    (finished / run_folder.STATEMENT).write_text(text.replace(told, "**(1, 1e-05)"))
    run = sfumato.open(finished)
    assert run.guarantee is None and "the statement does not say" in run.problems[0]


def test_an_interrupted_run_of_version_0_1_0_goes_on(interrupted: Path) -> None:
    run = sfumato.open(interrupted)
    assert not run.finished and run.accuracy is None and run.steps == 6 and run.planned == 8
    assert run.guarantee is not None and run.guarantee.counted == 6 and not run.problems
    assert run.weights == "checkpoint of step 6" and "has not finished" in run.notes[0]
    ended = run.resume(device="cpu")
    assert ended.finished and ended.problems == () and ended.steps == 8
    assert ledger.read(interrupted / run_folder.LEDGER)[0]["version"] == 1
    g = ended.guarantee
    assert g is not None and (interrupted / run_folder.GUARANTEE).is_file()
    assert g.counted == 8 and g.spent == pytest.approx(2.9991, abs=1e-4)


def test_predictions_take_arrays_in_either_order_and_refuse_other_shapes(tmp_path: Path) -> None:
    classifier = sfumato.load(make_run(tmp_path / "r"))
    images = torch.randint(0, 256, (5, 1, 8, 8), dtype=torch.uint8)
    wanted = classifier.predict(images)
    for other in (images.numpy(), images.movedim(1, -1), images[:, 0]):
        assert torch.equal(classifier.predict(other), wanted)
    with pytest.raises(UserError, match=r"of 1×8×8, and these have the shape \(5, 3, 8, 8\)"):
        classifier.predict(images.expand(-1, 3, -1, -1))
