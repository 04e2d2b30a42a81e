"""guarantee.json: written beside the statement, and held against ledger, weights and statement."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from sfumato.privacy import ledger, statement_chapters
from sfumato.privacy.guarantee import Guarantee
from sfumato.report.runs import gather
from sfumato.training import run_folder
from sfumato.training.classifier import TENSORS, read_weights
from tiny_run import TINY, train_run


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return train_run(tmp_path_factory.mktemp("runs") / "run", TINY)


def stated(folder: Path) -> Guarantee:
    return Guarantee.from_dict(json.loads((folder / run_folder.GUARANTEE).read_text()))


def test_a_run_writes_its_guarantee(trained: Path) -> None:
    g = stated(trained)
    header, steps = ledger.read(trained / run_folder.LEDGER)
    assert g.examples == header["examples"] and g.rate == header["rate"]
    assert g.counted == len(steps) == g.taken == g.planned == 4
    assert g.budget == 3.0 and g.spent <= 3.0 and not g.seeded and g.checked_at_end
    assert (trained / run_folder.STATEMENT).read_text() == statement_chapters.statement(g)
    content, _ = read_weights(trained / run_folder.WEIGHTS)
    assert content["guarantee"] == json.loads(json.dumps(g.summary()))
    assert content[TENSORS] == g.digests["weights"]
    (run,) = gather([trained])
    assert run.guarantee == g and not run.problems


def test_a_script_without_sfumato_comes_to_the_same_epsilon(trained: Path) -> None:
    """The script is that of the documentation."""
    text = (Path(__file__).parents[2] / "docs" / "guarantee.md").read_text(encoding="utf-8")
    code = text.split("```python\n")[1].split("```")[0]
    path = f'"{trained / run_folder.GUARANTEE}"'
    shown: list[float] = []
    names = {"print": lambda *values: shown.extend(values)}
    exec(code.replace('"runs/digits-001/guarantee.json"', path), names)
    assert shown[0] == pytest.approx(shown[1], rel=1e-2)


def test_a_run_without_privacy_writes_one_that_says_so(tmp_path: Path) -> None:
    folder = train_run(tmp_path / "r", {"privacy.enabled": False})
    g = stated(folder)
    assert not g.private and not g.epsilon
    assert (folder / run_folder.STATEMENT).read_text() == statement_chapters.statement(g)


METHODS: dict[str, dict[str, Any]] = {
    "noise that changes": {"privacy.noise_decay": 2.0, "privacy.clip_decay": 2.0},
    "adaptive clipping": {"privacy.clipping": "adaptive"},
    "groups and averages": {
        "privacy.clipping": "per-layer", "training.average": 0.9, "training.views": 2,
        "training.self_mix": 1,
    },
    "results that decide": {
        "data.validation": 0.2, "optimizer.schedule": "plateau", "optimizer.patience": 0.1,
        "optimizer.lr": 1e-9, "training.early_stop": 0.4, "training.steps": 30,
        "training.diverged": 50.0,
    },
    "a frozen part": {"start.train": ["head"], "privacy.tuned": "three **runs**."},
    "a fixed multiplier": {"privacy.noise_multiplier": 3.0, "privacy.accountant": "rdp"},
}  # fmt: skip


@pytest.mark.parametrize("method", METHODS)
def test_the_guarantee_of_every_method_follows_from_the_ledger(method: str, tmp_path: Path) -> None:
    folder = train_run(tmp_path / "run", METHODS[method])
    (run,) = gather([folder])
    assert run.problems == () and run.guarantee == stated(folder)


def test_a_guarantee_counts_the_start(trained: Path, tmp_path: Path) -> None:
    start = {"start.source": str(trained), "start.same_data": True, "privacy.epsilon": 6.0}
    folder = train_run(tmp_path / "second", start)
    (run,) = gather([folder])
    g = run.guarantee
    assert run.problems == () and g is not None
    assert g.start_steps == stated(trained).steps and g.start_epsilon == stated(trained).spent
    assert stated(trained).spent < g.spent <= 6.0
    apart = {"start.source": str(folder), "privacy.enabled": False, "start.same_data": None}
    (bare,) = gather([train_run(tmp_path / "bare", apart)])
    assert bare.problems == () and bare.guarantee is not None and not bare.guarantee.private
    assert bare.guarantee.exposures[1].steps == g.exposures[0].steps


CHANGES: dict[str, Callable[[dict[str, Any]], object]] = {
    "states epsilon": lambda c: c["epsilon"].update(pld=0.5),
    "states group_epsilon": lambda c: c["group_epsilon"].update({"10": 1.0}),
    "states delta": lambda c: c.update(delta=1.0001e-5),
    "states examples": lambda c: c.update(examples=1439),
    "states steps": lambda c: c["steps"][0].update(count=3),
    "states seeded": lambda c: c.update(seeded=True),
    "states views": lambda c: c.update(views=2),
    "states tuned": lambda c: c.update(tuned="nobody"),
    "other exposures": lambda c: c["exposures"][0].update(public=True),
    "digest of the recipe": lambda c: c["digests"].update(recipe="0"),
    "digest of the weights": lambda c: c["digests"].update(weights="0"),
    "the statement is not the text": lambda c: c.update(clipping="very much"),
    "damaged or was edited": lambda c: c.pop("unit"),
}


@pytest.mark.parametrize("words", CHANGES)
def test_a_changed_guarantee_is_found(trained: Path, tmp_path: Path, words: str) -> None:
    folder = Path(shutil.copytree(trained, tmp_path / "run"))
    content = json.loads((folder / run_folder.GUARANTEE).read_text())
    CHANGES[words](content)
    (folder / run_folder.GUARANTEE).write_text(json.dumps(content))
    (run,) = gather([folder])
    assert run.guarantee is None
    assert any(words in problem for problem in run.problems), run.problems


def test_a_guarantee_that_was_removed_is_missed(trained: Path, tmp_path: Path) -> None:
    folder = Path(shutil.copytree(trained, tmp_path / "run"))
    (folder / run_folder.GUARANTEE).unlink()
    (run,) = gather([folder])
    assert run.guarantee is None and "it was removed" in run.problems[0]
