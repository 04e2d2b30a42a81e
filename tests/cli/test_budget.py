"""`sfumato budget`: four questions, both accountants, quick and without PyTorch."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest
import typer
from cli_result import Run
from typer.testing import CliRunner

from sfumato.cli import budget as verb
from sfumato.errors import UserError
from sfumato.privacy.accounting.accountants import Step, epsilon
from sfumato.privacy.accounting.group_privacy import group_epsilon
from sfumato.privacy.accounting.selection import Selection
from tiny_run import train_run

CIFAR = ["--data", "cifar10", "--batch", "4096", "--steps", "875"]


def ask(*arguments: str) -> str:
    app = typer.Typer(pretty_exceptions_enable=False)
    verb.register(app)
    result = CliRunner().invoke(app, list(arguments), env={"COLUMNS": "120"})
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    assert result.exit_code == 0, result.output
    return result.output


def answer(*arguments: str) -> dict:
    return json.loads(ask(*arguments, "--json"))


def test_how_much_noise():
    found = answer(*CIFAR, "--epsilon", "3")
    assert found["question"] == "noise"
    assert found["noise_multiplier"] == found["answer"]["pld"] == pytest.approx(3.49, abs=0.005)
    assert found["answer"]["rdp"] > found["answer"]["pld"]
    assert found["epsilon"]["pld"] <= 3 < found["epsilon"]["rdp"]
    assert found["neighbouring"] == "add or remove one example"


def test_which_epsilon():
    found = answer(*CIFAR, "--noise", "4")
    step = Step(4096 / 50_000, 4.0, 875)
    for name in ("pld", "rdp"):
        assert found["answer"][name] == epsilon([step], delta=1e-5, accountant=name)


def test_how_many_steps():
    found = answer("--data", "digits", "--batch", "718", "--noise", "7", "--epsilon", "3")
    steps = found["steps"]
    assert found["answer"]["pld"] == steps > found["answer"]["rdp"]
    for count, fits in ((steps, True), (steps + 1, False)):
        assert (epsilon([Step(718 / 1437, 7.0, count)], delta=1e-5) <= 3) == fits


def test_which_batch():
    found = answer("--examples", "1437", "--steps", "100", "--noise", "7", "--epsilon", "3")
    assert found["answer"]["pld"] == found["batch"] > found["answer"]["rdp"]
    assert found["q"] == found["batch"] / 1437


def test_the_answer_by_rdp_can_be_used():
    found = answer(*CIFAR, "--epsilon", "3", "--accountant", "rdp")
    assert found["noise_multiplier"] == found["answer"]["rdp"]
    assert found["epsilon"]["pld"] < found["epsilon"]["rdp"] <= 3


def test_epochs_are_steps():
    found = answer(
        "--examples", "5000", "--batch", "500", "--epochs", "2.5", "--noise", "4", "--delta", "1e-4"
    )
    assert (found["steps"], found["delta"]) == (25, 1e-4)


def test_no_noise_is_no_privacy():
    assert answer("--examples", "100", "--batch", "10", "--steps", "5", "--noise", "0")[
        "epsilon"
    ] == {"pld": None, "rdp": None}
    assert "∞" in ask("--examples", "100", "--batch", "10", "--steps", "5", "--noise", "0")


def test_the_table_shows_both_accountants_and_the_relation():
    text = ask(*CIFAR, "--epsilon", "3")
    for words in ("PLD", "RDP", "3.49", "noise multiplier", "add or remove one example", "1e-05"):
        assert words in text


def test_an_accountant_without_an_answer_does_not_stop_the_other():
    """One step with very small q: RDP cannot show what PLD can."""
    arguments = ["--examples", "10000", "--batch", "1", "--noise", "0.5", "--epsilon", "0.3"]
    assert answer(*arguments)["answer"]["rdp"] is None
    assert "none" in ask(*arguments)
    with pytest.raises(UserError, match="Not even one step"):
        ask(*arguments, "--accountant", "rdp")


@pytest.mark.parametrize("law", ["logarithmic", "geometric", "poisson"])
def test_the_budget_of_a_private_tuning(law):
    found = answer(*CIFAR, "--epsilon", "3", "--tuning-mean", "10", "--tuning-distribution", law)
    step = Step(4096 / 50_000, found["noise_multiplier"], 875)
    total = Selection(10.0, law).epsilon([step], delta=1e-5)
    assert found["epsilon"] == {"rdp": total} and 2.99 < total <= 3
    assert found["answer"] == {"rdp": found["noise_multiplier"]}
    assert found["tuning"] == {
        "mean": 10.0,
        "distribution": law,
        "one_run": {name: epsilon([step], delta=1e-5, accountant=name) for name in ("pld", "rdp")},
    }


def test_the_total_of_runs_whose_noise_is_known():
    words = ["--data", "cifar10", "--batch", "4096", "--steps", "875", "--noise", "9.89"]
    found = answer(*words, "--tuning-mean", "10")
    assert round(found["answer"]["rdp"], 3) == 1.763
    assert round(found["tuning"]["one_run"]["rdp"], 3) == 1.0
    text = ask(*words, "--tuning-mean", "10")
    assert "1.763" in text and "best of 10 runs on average (logarithmic" in text


def test_the_cost_of_a_group_of_images():
    found = answer(*CIFAR, "--noise", "9.89", "--group", "5")
    exact = group_epsilon([Step(4096 / 50_000, 9.89, 875)], delta=1e-5, size=5)
    assert found["group"] == {"5": exact} and exact > 5 * found["epsilon"]["pld"]
    assert "ε of 5 images of one person" in ask(*CIFAR, "--noise", "9.89", "--group", "5")
    assert answer(*CIFAR, "--noise", "0.9", "--group", "50")["group"] == {"50": None}
    assert "over 100" in ask(*CIFAR, "--noise", "0.9", "--group", "50")


def test_the_cost_of_a_group_in_a_run(tmp_path):
    run = str(train_run(tmp_path / "run", {"training.seed": 0}))
    written = json.loads((tmp_path / "run" / "guarantee.json").read_text())
    found = answer(run, "--group", "5")
    assert found["group"]["5"] == written["group_epsilon"]["5"]
    steps = [Step(s["q"], s["sigma"], s["count"]) for s in written["steps"]]
    exact = group_epsilon(steps, delta=1e-5, size=4)
    assert answer(run, "--group", "4")["group"]["4"] == exact
    assert "ε of 4 images of one person" in ask(run, "--group", "4")
    for words, sentence in (
        ([], "how many images"),
        (["--group", "0"], "from 1 to 100"),
        (["--group", "5", "--epsilon", "3"], "no other number"),
    ):
        with pytest.raises(UserError, match=sentence):
            ask(run, *words)
    bare = str(train_run(tmp_path / "bare", {"privacy.enabled": False}))
    with pytest.raises(UserError, match="without privacy"):
        ask(bare, "--group", "5")


@pytest.mark.parametrize("value", [2.71828, 0.99991, 1.00001, 12345.6, 0.00123456])
def test_epsilon_is_rounded_up_in_print(value):
    from sfumato.cli.budget_picture import rounded_up

    assert value <= float(rounded_up(value)) <= value * 1.0011


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ([*CIFAR, "--epsilon", "0"], "epsilon must be"),
        ([*CIFAR, "--epsilon", "-1"], "epsilon must be"),
        ([*CIFAR, "--epsilon", "nan"], "epsilon must be"),
        ([*CIFAR, "--epsilon", "1", "--delta", "2e-5"], "not below 1/N"),
        ([*CIFAR, "--epsilon", "1", "--delta", "0"], "delta must"),
        ([*CIFAR, "--noise", "-1"], "noise multiplier must"),
        ([*CIFAR, "--epsilon", "1", "--accountant", "pdl"], "Did you mean 'pld'"),
        (["--data", "cifar10", "--batch", "60000", "--steps", "5", "--noise", "1"], "50000"),
        (["--data", "cifar10", "--batch", "0", "--steps", "5", "--noise", "1"], "between 1 and"),
        (["--data", "cifar10", "--batch", "64", "--steps", "0", "--noise", "1"], "from 1 to"),
        (["--data", "cifar10", "--batch", "64", "--epochs", "0", "--noise", "1"], "--epochs must"),
        ([*CIFAR, "--epochs", "3", "--noise", "1"], "--steps or --epochs"),
        (["--data", "cifar10", "--epochs", "3", "--noise", "1", "--epsilon", "1"], "needs --batch"),
        ([*CIFAR, "--noise", "1", "--epsilon", "1"], "drop one of"),
        (CIFAR, "--epsilon and --noise are missing: add one"),
        (["--data", "cifar10"], "add 3 of them"),
        (["--epsilon", "1"], "how many training examples"),
        ([*CIFAR, "--examples", "7", "--epsilon", "1"], "not both"),
        (["--data", "cifar1O", "--epsilon", "1"], "Did you mean 'cifar10'"),
        (["--examples", "0", "--epsilon", "1"], "above 0"),
        ([*CIFAR, "--epsilon", "1", "--plot", "curve.txt"], "must end in"),
        ([*CIFAR, "--epsilon", "1", "--tuning-mean", "0.5"], "from 1 to 1000, not 0.5"),
        ([*CIFAR, "--epsilon", "0.004", "--tuning-mean", "10"], "Raise epsilon"),
        ([*CIFAR, "--epsilon", "1", "--tuning-distribution", "poisson"], "needs --tuning-mean"),
        (
            [*CIFAR, "--epsilon", "1", "--tuning-mean", "9", "--tuning-distribution", "geo"],
            "Did you mean 'geometric'",
        ),
        ([*CIFAR, "--epsilon", "1", "--tuning-mean", "9", "--accountant", "pld"], "by RDP alone"),
        ([*CIFAR, "--epsilon", "1", "--tuning-mean", "9", "--plot", "a.png"], "of one run"),
        ([*CIFAR, "--epsilon", "1", "--group", "0"], "from 1 to 100"),
        ([*CIFAR, "--epsilon", "1", "--group", "101"], "from 1 to 100"),
        (["nowhere", "--group", "5"], "There is no run folder nowhere"),
        ([*CIFAR, "--epsilon", "1", "--plot", "nowhere/curve.png"], "no folder"),
    ],
)
def test_mistakes_are_refused_with_a_sentence(arguments, words):
    with pytest.raises(UserError, match=words.replace("(", r"\(")):
        ask(*arguments)


def test_the_picture_holds_both_accountants_and_the_budget():
    from sfumato.cli.budget_picture import chart, rounded_up

    found = chart(Step(4096 / 50_000, 9.89, 875), delta=1e-5, budget=3.0, title="cifar10")
    lines = {s.label: s.points for s in found.series if s.label}
    assert list(lines) == ["PLD", "RDP", "budget ε = 3"] and found.y.high > 3
    marks = [s for s in found.series if s.tag]
    for mark, name in zip(marks, ("PLD", "RDP"), strict=True):
        ((count, value),) = mark.points
        assert count == 875 and (count, value) in lines[name] and mark.tag == rounded_up(value)
    assert found.title == "cifar10: 875 steps" and found.y.label == "ε at δ = 1e-05"


@pytest.mark.usefixtures("real_pictures")
def test_plot_is_drawn_and_never_overwrites(tmp_path):
    picture = tmp_path / "curve.png"
    arguments = ["--data", "digits", "--batch", "128", "--steps", "50", "--noise", "3"]
    assert str(picture) in ask(*arguments, "--plot", str(picture)).replace("\n", "")
    drawn = picture.read_bytes()
    assert drawn.startswith(b"\x89PNG") and len(drawn) > 10_000
    with pytest.raises(UserError, match="left alone"):
        ask(*arguments, "--plot", str(picture))
    assert picture.read_bytes() == drawn


def sfumato(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-X", "importtime", "-m", "sfumato", "budget", *arguments],
        capture_output=True,
        text=True,
        env={**os.environ, "COLUMNS": "120"},
    )


def test_the_command_is_quick_and_leaves_torch_alone():
    """By the processor's time, which other programs do not take from it."""
    before = os.times()
    done = sfumato(*CIFAR, "--epsilon", "1")
    after = os.times()
    seconds = sum(after[2:4]) - sum(before[2:4])
    assert done.returncode == 0, done.stderr[-2000:]
    assert "9.12" in done.stdout
    imported = {line.rsplit("|", 1)[-1].strip() for line in done.stderr.splitlines()}
    assert "dp_accounting" in imported
    assert not imported & {"torch", "matplotlib", "sklearn"}
    assert seconds < 8, "under 5 s on an idle machine"


def test_a_mistake_exits_with_2_and_no_traceback():
    done = sfumato("--data", "cifar10")
    assert done.returncode == 2
    assert "add 3 of them" in done.stderr
    assert "Traceback" not in done.stderr


def test_extreme_budgets(sfumato: Run) -> None:
    """A tiny one is not printed as zero, and a vast one gets a warning."""
    question = ("budget", "--examples", 1000, "--batch", 100, "--steps", 10)
    assert "promises next to nothing" in sfumato(*question, "--epsilon", "1e9").out
    small = sfumato(*question, "--epsilon", "1e-9").out
    (line,) = [line for line in small.splitlines() if "ε with" in line]
    assert "0.000 " not in line and "promises" not in small
