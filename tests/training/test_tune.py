"""Settings are chosen by runs that never see the test set."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sfumato import recipes
from sfumato.api import train
from sfumato.charts import tuning as picture
from sfumato.errors import UserError
from sfumato.io.locks import alone
from sfumato.privacy.accounting.accountants import Step
from sfumato.recipe import Recipe
from sfumato.training import setup
from sfumato.training import tune as tuning
from sfumato.training.loop import Loop
from sfumato.training.proposals import Range, Trial, parse_choice
from sfumato.training.tune import lighter, sentence, tune
from tiny_run import TINY


def tiny(**changes: Any) -> Recipe:
    few = TINY | {"training.steps": 2, "training.seed": 0}
    return recipes.find("digits").replace({**few, **changes})


def plain() -> Recipe:
    """The same without privacy, where it is not the subject: it takes a quarter of the time."""
    return tiny(**{"privacy.enabled": False})


def test_every_combination_is_run_once(tmp_path: Path) -> None:
    choices = {"optimizer.lr": [0.5, 4.0], "privacy.clipping": ["flat", "normalised"]}
    found = tune(tiny(), choices, out=tmp_path / "t", device="cpu")
    assert [t.settings["optimizer.lr"] for t in found] == [0.5, 0.5, 4.0, 4.0]
    assert all(0 <= t.accuracy <= 1 and not t.note for t in found)
    assert all(t.epsilon is not None and t.epsilon <= 3.0 for t in found)
    new: list[Trial] = []
    again = tune(tiny(), choices, out=tmp_path / "t", device="cpu", after=new.append)
    assert again == found and new == []
    more = {**choices, "optimizer.lr": [0.5, 4.0, 2.0]}
    tune(tiny(), more, out=tmp_path / "t", device="cpu", after=new.append)
    assert [t.settings["optimizer.lr"] for t in new] == [2.0, 2.0]


def test_a_run_that_another_process_makes_is_passed_over(tmp_path: Path) -> None:
    out, choices = tmp_path / "t", {"optimizer.lr": [0.5, 1.0, 4.0]}
    busy: list[str] = []
    tune(plain(), {"optimizer.lr": [0.5]}, out=out, device="cpu")
    with alone(out / tuning._name({"optimizer.lr": 1.0})):
        found = tune(plain(), choices, out=out, device="cpu", elsewhere=busy.append)
    assert [t.settings["optimizer.lr"] for t in found] == [0.5, 4.0]
    assert busy == [tuning._name({"optimizer.lr": 1.0})]
    assert not (out / busy[0]).exists()
    found = tune(plain(), choices, out=out, device="cpu", elsewhere=busy.append)
    assert [t.settings["optimizer.lr"] for t in found] == [0.5, 4.0, 1.0]
    assert len(busy) == 1


def test_a_run_that_another_process_has_made_meanwhile_is_not_made_again(tmp_path: Path) -> None:
    out, choices = tmp_path / "t", {"optimizer.lr": [0.5, 1.0]}
    new: list[Trial] = []

    def other(_: Trial) -> None:
        tune(plain(), choices, out=out, device="cpu", after=new.append)

    found = tune(plain(), choices, out=out, device="cpu", after=other)
    assert [t.settings["optimizer.lr"] for t in found] == [0.5, 1.0]
    assert new == found[1:]


def test_parts_share_the_combinations_by_position(tmp_path: Path) -> None:
    choices = {"optimizer.lr": [0.5, 1.0, 4.0]}
    new: list[Trial] = []
    for share in (slice(0, None, 2), slice(1, None, 2)):
        found = tune(
            plain(), choices, out=tmp_path / "t", device="cpu", part=share, after=new.append
        )
    assert [t.settings["optimizer.lr"] for t in new] == [0.5, 4.0, 1.0]
    assert found == new
    with pytest.raises(UserError, match="--part is for combinations"):
        tune(plain(), choices, out=tmp_path / "u", trials=2, part=slice(0, None, 2))
    assert not (tmp_path / "u").exists()


def test_interrupted_tuning_resumes_with_the_same_results(tmp_path: Path) -> None:
    out, choices = tmp_path / "t", {"optimizer.lr": [0.5, 1.0, 4.0]}
    whole = tune(plain(), choices, out=out, device="cpu")
    lines = (out / "trials.jsonl").read_text().splitlines()
    (out / "trials.jsonl").write_text(lines[0] + "\n")  # two ended, but were not written down,
    (out / whole[1].folder / "statement.md").unlink()  # and one of them not quite
    again = tune(plain(), choices, out=out, device="cpu")
    assert [t.settings for t in again] == [t.settings for t in whole]
    assert [t.accuracy for t in again] == [t.accuracy for t in whole]


def test_a_run_never_goes_on_with_the_settings_of_another(tmp_path: Path) -> None:
    out = tmp_path / "t"
    (first,) = tune(tiny(), {"optimizer.lr": [1e-6]}, out=out, device="cpu")
    (out / "trials.jsonl").unlink()
    (second,) = tune(tiny(), {"optimizer.lr": [4.0]}, out=out, device="cpu")
    assert second.folder != first.folder and second.accuracy != first.accuracy


def test_a_damaged_file_is_named(tmp_path: Path) -> None:
    tune(plain(), {"optimizer.lr": [0.5]}, out=tmp_path / "t", device="cpu")
    with (tmp_path / "t" / "trials.jsonl").open("a") as file:
        file.write('{"settings": {"optim\n')
    with pytest.raises(UserError, match=r"trials\.jsonl is damaged"):
        tune(plain(), {"optimizer.lr": [0.5, 1.0]}, out=tmp_path / "t", device="cpu")


def test_part_of_a_last_line_is_no_damage(tmp_path: Path) -> None:
    out = tmp_path / "t"
    tune(plain(), {"optimizer.lr": [0.5]}, out=out, device="cpu")
    with (out / "trials.jsonl").open("a") as file:
        file.write('{"settings": {"optim')  # Killed while it was written.
    found = tune(plain(), {"optimizer.lr": [0.5, 1.0]}, out=out, device="cpu")
    assert [trial.settings["optimizer.lr"] for trial in found] == [0.5, 1.0]
    assert len((out / "trials.jsonl").read_text().splitlines()) == 2


@pytest.mark.slow
def test_cheaper_runs_have_the_noise_that_a_start_leaves_room_for() -> None:
    before = (Step(0.1, 1.5, 20),)
    whole = setup.plan(tiny(), 1000, before=before)
    light = lighter(tiny(), 1000, 4, before=before)
    plan = setup.plan(light, 1000, before=before)
    assert plan.steps == whole.steps == 2
    assert plan.noise.multiplier == pytest.approx(whole.noise.multiplier / 4)
    assert whole.noise.multiplier > setup.plan(tiny(), 1000).noise.multiplier


def test_the_test_set_is_never_looked_at(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen = []
    inner = Loop.evaluate

    def watched(self: Loop, part: str, *, averaged: bool = True) -> tuple[float, float]:
        seen.append(part)
        return inner(self, part, averaged=averaged)

    monkeypatch.setattr(Loop, "evaluate", watched)
    recipe = tiny(**{"training.average": 0.9})
    found = tune(recipe, {"optimizer.lr": [1.0]}, out=tmp_path / "t", device="cpu")
    assert seen and set(seen) == {"validation"}
    lines = (tmp_path / "t" / found[0].folder / "metrics.jsonl").read_text().splitlines()
    final = json.loads(lines[-1])
    assert final["final"] and final["validation_accuracy"] == found[0].accuracy
    assert "test_accuracy" not in final and "validation_accuracy_last" in final
    train(recipe, out=tmp_path / "usual", device="cpu")
    assert "test" in seen


def test_without_a_test_set_no_accuracy_is_measured(tmp_path: Path) -> None:
    result = train(tiny(**{"data.test": False}), out=tmp_path / "run", device="cpu")
    assert result.test_accuracy is None and result.validation_accuracy is None


@settings(deadline=None, max_examples=4)
@given(factor=st.integers(2, 16), batch=st.sampled_from([128, 200, 512]), steps=st.integers(1, 40))
def test_lighter_runs_have_the_same_noise_on_the_mean(factor: int, batch: int, steps: int) -> None:
    full = tiny(**{"training.batch": batch, "training.steps": steps})
    light = lighter(full, 1300, factor)
    before, after = setup.plan(full, 1300), setup.plan(light, 1300)
    assert after.steps == before.steps == after.asked
    assert after.sampler.batch == round(batch / factor)
    assert after.noise.multiplier / after.sampler.batch == pytest.approx(
        before.noise.multiplier / before.sampler.batch
    )
    assert light.privacy.epsilon > full.privacy.epsilon


def test_lighter_needs_noise_and_a_batch() -> None:
    with pytest.raises(UserError, match="private"):
        lighter(tiny(**{"privacy.enabled": False}), 1300, 2)
    with pytest.raises(UserError, match="cannot be divided by 200"):
        lighter(tiny(), 1300, 200)


def test_runs_that_diverge_are_written_down(tmp_path: Path) -> None:
    recipe = tiny(**{"training.diverged": 1e-6})
    (found,) = tune(recipe, {"optimizer.lr": [1.0]}, out=tmp_path / "t", device="cpu")
    assert found.accuracy == 0 and "diverged" in found.note
    assert tune(recipe, {"optimizer.lr": [1.0]}, out=tmp_path / "t", device="cpu") == [found]


def test_ranges_are_searched(tmp_path: Path) -> None:
    pytest.importorskip("optuna")
    choices = {
        "optimizer.lr": Range(0.5, 8.0),
        "training.views": Range(1, 3),
        "privacy.clipping": ["flat", "normalised"],
    }
    found = tune(tiny(), choices, out=tmp_path / "t", trials=3, device="cpu")
    assert len(found) == 3 and len({str(t.settings) for t in found}) == 3
    for trial in found:
        assert 0.5 <= trial.settings["optimizer.lr"] <= 8
        assert trial.settings["training.views"] in (1, 2, 3)
        assert trial.settings["privacy.clipping"] in ("flat", "normalised")
    more = tune(tiny(), choices, out=tmp_path / "t", trials=4, device="cpu")
    assert more[:3] == found and len(more) == 4
    with pytest.raises(UserError, match="--trials"):
        tune(tiny(), choices, out=tmp_path / "u", device="cpu")
    assert not (tmp_path / "u").exists()


def test_nothing_is_run_twice_when_proposals_run_out(tmp_path: Path) -> None:
    pytest.importorskip("optuna")
    choices = {"optimizer.lr": [1.0, 2.0]}
    found = tune(plain(), choices, out=tmp_path / "t", trials=5, device="cpu")
    assert sorted(t.settings["optimizer.lr"] for t in found) == [1.0, 2.0]


def test_other_recipes_are_kept_apart(tmp_path: Path) -> None:
    choices = {"optimizer.lr": [1.0]}
    tune(tiny(), choices, out=tmp_path / "t", device="cpu")
    with pytest.raises(UserError, match=r"another recipe: recipe\.privacy\.clip was 1\.0"):
        tune(tiny(**{"privacy.clip": 2.0}), choices, out=tmp_path / "t", device="cpu")
    with pytest.raises(UserError, match="cheaper was 1 and is now 4"):
        tune(tiny(), choices, out=tmp_path / "t", cheaper=4, device="cpu")
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "notes.txt").write_text("x")
    with pytest.raises(UserError, match="mine"):
        tune(tiny(), choices, out=tmp_path / "mine", device="cpu")


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("optimizer.lr=1,2,4.5", [1, 2, 4.5]),
        ("optimizer.name=sgd,nadam", ["sgd", "nadam"]),
        ("augment.flip=true,false", [True, False]),
        ("model.options.layout=[1, 2],[3, 4]", [[1, 2], [3, 4]]),
        ("optimizer.lr = 2", [2]),
        ("optimizer.lr=0.5..8", Range(0.5, 8)),
        ("training.views=1..16", Range(1, 16)),
    ],
)
def test_choices_are_parsed_from_text(text: str, wanted: Any) -> None:
    assert parse_choice(text) == (text.partition("=")[0].strip(), wanted)


@pytest.mark.parametrize("text", ["optimizer.lr", "=1,2", "optimizer.lr=", "optimizer.lr=8..1",
                                  "optimizer.name=sgd..nadam"])  # fmt: skip
def test_choices_without_meaning_are_refused(text: str) -> None:
    with pytest.raises(UserError, match="--try"):
        parse_choice(text)


def test_mistakes_are_found_before_the_first_run(tmp_path: Path) -> None:
    for choices, words in (
        ({"optimizer.lt": [1.0]}, "Did you mean 'lr'"),
        ({"optimizer.lr": [1.0, -1.0]}, "greater than 0"),
        ({"optimizer.lr": []}, "names no value"),
        ({}, "Say what to try"),
    ):
        with pytest.raises(UserError, match=words):
            tune(tiny(), choices, out=tmp_path / "t", device="cpu")  # type: ignore[arg-type]
    assert not (tmp_path / "t").exists()


def test_the_sentence_says_what_was_tried() -> None:
    trials = [
        Trial({"optimizer.lr": lr, "optimizer.name": name}, 0.5, 1.0, 1.0, "trial")
        for lr in (1.0, 2.0, 4.5)
        for name in ("sgd", "nadam")
    ]
    assert sentence(trials, tiny(), cheaper=8) == (
        "the accuracy of 6 runs with 1/8 of batch and noise on 10% of the training images, which "
        "they were not trained on: optimizer.lr 1, 2, 4.5; optimizer.name sgd, nadam"
    )
    many = [Trial({"optimizer.lr": k / 2}, 0.5, 1.0, 1.0, "trial") for k in range(1, 9)]
    assert sentence(many, tiny()).endswith("optimizer.lr between 0.5 and 4")


@pytest.mark.usefixtures("real_pictures")
def test_the_picture_has_a_panel_for_each_setting_that_differs(tmp_path: Path) -> None:
    tried = [
        {"optimizer.lr": lr, "optimizer.name": name, "training.views": 2}
        for lr in (0.01, 1.0)
        for name in ("sgd", "nadam")
    ]
    one, two = tmp_path / "one.png", tmp_path / "two.png"
    picture.draw(tried, [0.1, 0.5, 0.4, 0.3], two, title="4 runs")
    picture.draw(tried[:1], [0.1], one, title="1 run")
    from PIL import Image

    assert Image.open(two).width > 1.5 * Image.open(one).width
    picture.draw([*tried, {"privacy.clip": 2.0}], [0.1, 0.5, 0.4, 0.3, 0.9], two, title="5 runs")


def test_a_logarithmic_scale_is_labelled_with_plain_numbers() -> None:
    axis, places = picture.axis("lr", [1, 4, 8])
    assert places == [1, 4, 8] and axis.log
    assert [axis.text(tick) for tick in axis.ticks()] == ["1", "4", "8"]
    assert len(picture.axis("lr", [2.0**k for k in range(20)])[0].ticks()) <= 7
    near = picture.axis("lr", [0.002, 0.0424, 0.0503, 0.139, 3.05, 5.95])[0].ticks()
    assert list(near) == [0.002, 0.0424, 3.05], "names of neighbours would touch"
    words, places = picture.axis("name", ["sgd", "nadam", "sgd"])
    assert (words.names, places) == (("sgd", "nadam"), [0.0, 1.0, 0.0])
