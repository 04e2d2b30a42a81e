"""`sfumato plan`: the grid, its numbers, its picture, its refusals; a chain of recipes."""

from __future__ import annotations

import itertools
import json
import math
import subprocess
import sys
from fnmatch import fnmatch
from pathlib import Path

import pytest
from cli_result import Run, refused

from sfumato import recipes
from sfumato.privacy.accounting.accountants import Step, epsilon
from sfumato.privacy.accounting.plan_grid import default_batches
from sfumato.recipe import differences

SMALL = ("--examples", "2000", "--batch", "50", "--batch", "200", "--steps", "20", "--steps", "80")


@pytest.fixture
def run(sfumato: Run) -> Run:
    return lambda *words: sfumato("plan", *words)


def test_every_choice_spends_the_budget_and_no_more(run: Run) -> None:
    code, out, _ = run("--epsilon", "2", *SMALL, "--views", "4", "--json")
    assert code == 0
    grid = json.loads(out)
    assert [(c["batch"], c["steps"]) for c in grid] == [(50, 20), (50, 80), (200, 20), (200, 80)]
    for c in grid:
        sigma = c["noise_multiplier"]
        spent = epsilon([Step(c["batch"] / 2000, sigma, c["steps"])], delta=1e-5)
        assert 1.99 < spent <= 2
        assert c["effective_noise"] == pytest.approx(sigma / c["batch"])
        assert c["signal_to_noise"] == pytest.approx(c["batch"] / sigma)
        assert c["signal_to_noise_run"] == pytest.approx(c["batch"] * math.sqrt(c["steps"]) / sigma)
        assert c["views"] == 4 * c["batch"] * c["steps"]
        assert c["epochs"] == pytest.approx(c["batch"] * c["steps"] / 2000)


def test_the_table_and_the_picture(run: Run) -> None:
    code, out, _ = run("--epsilon", "2", *SMALL, "--plot", "grid.png", "--accountant", "rdp")
    assert code == 0
    assert "RDP" in out and "100 %" in out and "16 k" in out
    assert Path("grid.png").read_bytes().startswith(b"\x89PNG")
    refused(run("--epsilon", "2", *SMALL, "--plot", "grid.png"), "left alone")


@pytest.mark.parametrize("columns", [80, 50])
def test_no_number_is_cut_on_a_narrow_terminal(
    run: Run, monkeypatch: pytest.MonkeyPatch, columns: int
) -> None:
    monkeypatch.setenv("COLUMNS", str(columns))
    grid = ("--examples", "50000", "--batch", "1024", "--steps", "2000")
    code, out, _ = run("--epsilon", "3", *grid, "--speed", "12345", "--gpus", "8")
    assert code == 0 and "…" not in out
    title, head, row, _ = out.splitlines()
    assert "N = 50000" in title and head.split()[-1] == "minutes"
    number = "1024 2000 41 1.479 1.44e-03 692.4 100 % 3.096e+04 2.05 M 0.35"
    assert row.split() == number.split()
    assert len(row) <= max(columns, 79)


@pytest.mark.parametrize(
    ("args", "words"),
    [
        (["--epsilon", "0", "--data", "cifar10"], "epsilon must be"),
        (["--epsilon", "3", "--data", "cifar11"], "Did you mean 'cifar10'"),
        (["--epsilon", "3"], "--examples N"),
        (["--epsilon", "3", "--examples", "100", "--batch", "101"], "between 1 and the 100"),
        (["--epsilon", "3", "--examples", "100", "--delta", "0.1"], "1/N"),
        (["--epsilon", "3", "--examples", "100", "--steps", "0"], "number of steps"),
        (["--epsilon", "3", "--examples", "100", "--views", "0"], "at least one view"),
        (["--epsilon", "3", "--examples", "100", "--plot", "a.pdf"], ".png"),
        (["--epsilon", "3", "--examples", "100", "--accountant", "gdp"], "Unknown accountant"),
        (["--epsilon", "3", "--examples", "100", "--gpus", "8"], "need --speed"),
        (
            ["--epsilon", "3", "--examples", "100", "--gpus", "0", "--speed", "9"],
            "at least one GPU",
        ),
        (["--epsilon", "3", "--examples", "100", "--speed", "0"], "positive"),
    ],
)
def test_mistakes_are_sentences(run: Run, args: list[str], words: str) -> None:
    refused(run(*args), words)


def test_a_recipe_states_the_budget_and_its_data_the_number_of_examples(run: Run) -> None:
    words = 'extends = "digits"\n[privacy]\nepsilon = 2.0\naccountant = "rdp"\n[training]\n'
    Path("mine.toml").write_text(f"{words}batch = 100\nsteps = 8\nviews = 2\n", encoding="utf-8")
    grid = json.loads(run("mine.toml", "--json")[1])
    assert [(c["batch"], c["steps"]) for c in grid] == list(
        itertools.product((50, 100, 200), (4, 8, 16))
    )
    for c in grid:
        step = Step(c["batch"] / 1438, c["noise_multiplier"], c["steps"])
        assert 1.98 < epsilon([step], delta=1e-5, accountant="rdp") <= 2
        assert c["views"] == 2 * c["batch"] * c["steps"]
    (own,) = json.loads(run("mine.toml", "--epsilon", "4", "--steps", "9", "--batch", "7",
                            "--examples", "500", "--json")[1])  # fmt: skip
    assert (own["batch"], own["steps"], own["epochs"]) == (7, 9, 7 * 9 / 500)
    refused(run("images"), "images of your own", "--examples")


def test_minutes_follow_from_speed_gpus_and_bytes(run: Run) -> None:
    many = ("--views", "8", "--gpus", "4", "--speed", "100", "--parameters", "1000000")
    words = ("--epsilon", "2", *SMALL, *many, "--bandwidth", "0.001", "--accountant", "rdp")
    grid = json.loads(run(*words, "--json")[1])
    for c in grid:
        seconds = c["views"] / (4 * 100) + c["steps"] * 12 * 1e6 * (3 / 4) / 1e6
        assert c["minutes"] == pytest.approx(seconds / 60)
    assert "minutes" in run(*words)[1]
    assert "minutes" not in run("--epsilon", "2", *SMALL, "--accountant", "rdp")[1]


def test_default_batches_suit_the_data() -> None:
    assert default_batches(50_000) == [1024, 2048, 4096, 8192]
    assert default_batches(1437) == [32, 64, 128, 256]
    assert default_batches(3) == [1]


def test_planning_does_not_load_torch() -> None:
    code = (
        "import sys; from sfumato.privacy.accounting.plan_grid import choice; "
        "choice(10, 5, 100, epsilon=1.0, delta=1e-3, accountant='rdp'); "
        "assert 'torch' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_the_chain_of_the_optimizer_report_changes_one_setting_at_a_time() -> None:
    names = [n for n in recipes.packaged() if fnmatch(n, "optimizer-report/[1-6]-*")]
    assert [n.split("/")[1][0] for n in names] == list("123456")
    chain = [recipes.find(n).replace({"name": "", "about": ""}) for n in names]
    changed = [differences(a.to_dict(), b.to_dict()) for a, b in itertools.pairwise(chain)]
    assert [len(c) for c in changed] == [1] * 5
    settings = [c[0].split(" was ")[0] for c in changed]
    assert settings == [
        "privacy.clipping",
        "model.options.standardise",
        "training.batch",
        "privacy.clipping",
        "optimizer.schedule",
    ]
    for recipe in chain:
        assert (recipe.model.name, recipe.data.name) == ("resnet20", "cifar10")
        assert (recipe.privacy.epsilon, recipe.privacy.delta) == (3.0, 1e-5)
