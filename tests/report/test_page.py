"""The report page: what it says about runs of every kind, and that no name can harm it."""

from __future__ import annotations

import base64
import hashlib
import html
import json
import re
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from made_runs import make
from PIL import Image
from safetensors.torch import save_file

from sfumato import text
from sfumato.analysis import evaluate
from sfumato.errors import UserError
from sfumato.privacy import statement_chapters
from sfumato.privacy.accounting import accountants
from sfumato.privacy.accounting.accountants import Step
from sfumato.privacy.statement import upwards
from sfumato.report import learning, markup, privacy, privacy_front, result_charts, sections
from sfumato.report.measure import Measured, choose, measure
from sfumato.report.page import page
from sfumato.report.runs import gather, tasks, together
from sfumato.training.classifier import FORMAT
from sfumato.training.run_folder import WEIGHTS
from thinning import with_slow


class Elements(HTMLParser):
    """Tags in the order they open, and the text between them."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.text = ""
        self._open: list[str] = []
        self.feed(str(text))
        self.close()
        assert not self._open, self._open

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        if tag not in ("meta", "img", "br"):
            self._open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self._open.pop() == tag

    def handle_data(self, data: str) -> None:
        if not self._open or self._open[-1] not in ("script", "style"):
            self.text += data


def made(tmp_path: Path, *folders: Path, **options: Any) -> str:
    runs = gather(list(folders))
    return page(runs, measure(runs), **options)


def data_of(text: str) -> dict[str, Any]:
    found = re.search(r'<script type="application/json" id="data">(.*?)</script>', text, re.DOTALL)
    assert found
    content: dict[str, Any] = json.loads(found[1])
    return content


def an_evaluation(classes: int, n: int = 400) -> Any:
    rng = np.random.default_rng(0)
    labels = rng.integers(0, classes, n)
    logits = rng.normal(size=(n, classes))
    logits[np.arange(n), labels] += 3
    powers = np.exp(logits)
    names = [f"<b>class & {k}" for k in range(classes)]
    return evaluate(powers / powers.sum(1, keepdims=True), labels, names)


def test_a_finished_run_is_told_in_full(tmp_path: Path) -> None:
    folder = make(tmp_path / "a run", accuracy=0.8125)
    text = made(tmp_path, folder)
    shown = Elements(text)
    (run,) = gather([folder])
    assert "81.2 %" in shown.text and "not finished" not in shown.text
    for words_ in ("one image", "leaving out one training image", "Poisson", "Not covered"):
        assert words_ in shown.text
    for value in run.epsilon.values():
        assert upwards(value, places=4) in shown.text
    assert "Several images of one person" in shown.text and "after every single step" in shown.text
    assert "ChaCha20 with a key of 256 bits" in " ".join(shown.text.split())
    assert "follows from a seed" not in shown.text
    assert {"accuracy-step", "accuracy-epsilon", "loss-step", "clipped-epsilon", "front-0",
            "run0-confusion", "run0-reliability", "run0-roc", "run0-precision",
            } <= set(data_of(text))  # fmt: skip
    assert "One run is one point" in shown.text
    assert text.count("e<sup>ε</sup>") == 3 and "e^ε" not in shown.text
    assert not [a for t, a in shown.tags if "style" in a or any(k.startswith("on") for k in a)]


def test_epsilon_comes_from_the_ledger(tmp_path: Path) -> None:
    folder = make(tmp_path / "run", sigma=2.0, steps=50)
    (run,) = gather([folder])
    expected = accountants.epsilon([Step(0.1, 2.0, 50)], delta=1e-5, accountant="rdp")
    assert run.epsilon["rdp"] == pytest.approx(expected)
    lines = (folder / "metrics.jsonl").read_text().splitlines()
    final = json.loads(lines[-1])
    final["epsilon"] /= 2
    (folder / "metrics.jsonl").write_text("\n".join([*lines[:-1], json.dumps(final)]) + "\n")
    (run,) = gather([folder])
    assert any("The ledger comes to epsilon" in problem for problem in run.problems)
    assert "The ledger comes to epsilon" in made(tmp_path, folder)


def test_a_damaged_ledger_gives_no_guarantee(tmp_path: Path) -> None:
    folder = make(tmp_path / "run")
    lines = (folder / "ledger.jsonl").read_bytes().splitlines(keepends=True)
    (folder / "ledger.jsonl").write_bytes(b"".join(lines[:10] + lines[11:]))
    (run,) = gather([folder])
    assert run.spent is None
    shown = Elements(made(tmp_path, folder)).text
    assert "damaged" in shown and "no guarantee can be stated" in shown
    assert "satisfy" not in shown


def test_an_edited_recipe_is_found_out(tmp_path: Path) -> None:
    folder = make(tmp_path / "run")
    recipe = folder / "recipe.toml"
    recipe.write_text(recipe.read_text().replace("lr = 2.0", "lr = 4.0"))
    (run,) = gather([folder])
    assert run.recipe.optimizer.lr == 2.0
    assert any("recipe.toml was changed" in problem for problem in run.problems)


def test_an_interrupted_run_shows_what_there_is(tmp_path: Path) -> None:
    folder = make(tmp_path / "half", finished=False, steps=60)
    (run,) = gather([folder])
    expected = accountants.epsilon([Step(0.1, 2.0, 30)], delta=1e-5, accountant="pld")
    assert run.spent == pytest.approx(expected)
    text = made(tmp_path, folder)
    shown = Elements(text).text
    assert "not finished" in shown and "after step 30 of 60" in shown
    assert f"{expected:.4g}" in shown and "so far" in shown
    assert "no weights to evaluate" in shown
    assert "accuracy-step" in data_of(text) and "front-0" not in data_of(text)


def test_a_run_without_privacy(tmp_path: Path) -> None:
    folder = make(tmp_path / "bare", private=False)
    shown = Elements(made(tmp_path, folder)).text
    assert "There is no privacy guarantee" in shown and "not private" in shown
    assert "satisfy" not in shown


def test_a_seeded_run_is_warned_about(tmp_path: Path) -> None:
    folder = make(tmp_path / "seeded", changes={"training.seed": 987654321})
    shown = made(tmp_path, folder)
    assert "the noise follows from a seed" in shown and "987654321" in shown
    hidden = made(tmp_path, folder, shareable=True)
    assert "the noise follows from a seed" in hidden and "987654321" not in hidden


def test_shareable_leaves_training_batches_out(tmp_path: Path) -> None:
    folder = make(tmp_path / "run")
    everything, shared = made(tmp_path, folder), made(tmp_path, folder, shareable=True)
    assert {"loss-step", "clipped-step"} <= set(data_of(everything))
    assert not {"loss-step", "clipped-step"} & set(data_of(shared))
    assert [s["name"] for s in data_of(shared)["accuracy-step"]["series"]] == ["final test"]
    assert "--shareable" in everything and "training batches are exact" not in shared


def test_missing_data_and_weights_are_said(tmp_path: Path) -> None:
    gone = make(tmp_path / "gone", data=str(tmp_path / "no-such-folder"))
    broken = make(tmp_path / "broken")
    (broken / "model.safetensors").write_bytes(b"nonsense")
    shown = Elements(made(tmp_path, gone, broken)).text
    assert "could not be used" in shown and "does not exist" in shown
    assert "The weights cannot be used" in shown


def test_names_are_harmless(tmp_path: Path) -> None:
    evil = "<script>alert(1)</script><img src=x onerror=alert(2)>\"'&"
    folder = make(tmp_path / "</script><script>alert(3)<", changes={"name": evil, "about": evil})
    runs = gather([folder])
    measured = [Measured(evaluation=an_evaluation(4), parameters=1, classes=4)]
    text = page(runs, measured, title=evil)
    shown = Elements(text)
    assert sum(tag == "script" for tag, _ in shown.tags) == 2
    assert not any(tag == "img" for tag, _ in shown.tags)
    assert evil in shown.text
    assert "<b>class & 0" in shown.text and "<b>class" not in text
    assert data_of(text)["run0-confusion"]["classes"][0] == "<b>class & 0"


def test_different_data_sets_are_not_compared(tmp_path: Path) -> None:
    first = make(tmp_path / "first")
    second = make(tmp_path / "second", data=str(tmp_path / "else"))
    runs = gather([first, second])
    assert len(tasks(runs)) == 2
    text = page(runs, [Measured(), Measured()])
    assert "not comparable" in Elements(text).text and "no common front" in Elements(text).text
    found = data_of(text)
    assert [len(found[k]["stops"]) for k in ("front-0", "front-1")] == [1, 1]
    same = gather([first, make(tmp_path / "third", changes={"data.name": "Digits"})])
    assert len(tasks(same)) == 1
    assert "not comparable" not in page(same, [Measured(), Measured()])


def test_several_runs_cost_more_together(tmp_path: Path) -> None:
    runs = gather([make(tmp_path / "a", sigma=2.0), make(tmp_path / "b", sigma=3.0)])
    total = together(runs)
    history = [Step(0.1, 2.0, 60), Step(0.1, 3.0, 60)]
    assert total == pytest.approx(accountants.epsilon(history, delta=1e-5, accountant="pld"))
    assert total > max(run.spent or 0 for run in runs)
    assert f"ε = {total:.2f}" in Elements(page(runs, [Measured(), Measured()])).text
    assert together(runs[:1]) is None
    seeded = [make(tmp_path / name, changes={"training.seed": 3}) for name in ("c", "d")]
    assert together(gather(seeded)) is None, "the same noise cancels"


def test_weights_of_another_epsilon_leave_no_guarantee(tmp_path: Path) -> None:
    folder = make(tmp_path / "a")
    (run,) = gather([folder])
    spent = run.spent
    assert spent is not None

    def put(stated: float) -> None:
        content = {
            "guarantee": {"private": True, "epsilon": {run.recipe.privacy.accountant: stated}}
        }
        save_file({"x": torch.zeros(1)}, folder / WEIGHTS, metadata={FORMAT: json.dumps(content)})

    put(spent)
    assert gather([folder])[0].spent == spent
    put(2 * spent)
    (found,) = gather([folder])
    assert found.spent is None
    assert any("the weights state" in problem for problem in found.problems)
    assert f"({upwards(spent)}," not in Elements(page([found], [Measured()])).text


def test_dominated_runs(tmp_path: Path) -> None:
    made_ = [
        make(tmp_path / "strict", sigma=4.0, accuracy=0.7),
        make(tmp_path / "worse", sigma=2.0, accuracy=0.65),
        make(tmp_path / "loose", sigma=1.5, accuracy=0.8),
    ]
    runs = gather(made_)
    found = privacy_front.points(list(enumerate(runs)), {0: 1000})
    assert [p.dominated for p in found] == ["", "strict", ""]
    centre, half = 0.7 - 0.2 * 1.96**2 / 1000, 1.96 * (0.7 * 0.3 / 1000) ** 0.5
    assert (found[0].low, found[0].high) == pytest.approx((centre - half, centre + half), abs=1e-4)
    assert (found[1].low, found[1].high) == (0.65, 0.65)
    text = page(runs, [Measured()] * 3)
    assert "dominated by strict" in Elements(text).text
    assert text.count('hollow"') == 1


@pytest.mark.parametrize(
    ("accuracy", "n", "ends"),
    [(1.0, 42, (0.9162, 1.0)), (0.0, 42, (0.0, 0.0838)), (0.5, 100, (0.4038, 0.5962))],
)
def test_the_interval_of_an_accuracy_is_wilsons(
    accuracy: float, n: int, ends: tuple[float, float]
) -> None:
    low, high = privacy_front.interval(accuracy, n)
    assert (low, high) == pytest.approx(ends, abs=1e-4)
    assert 0 <= low <= accuracy <= high <= 1


def test_the_bar_of_a_perfect_run_is_drawn_whole(tmp_path: Path) -> None:
    runs = gather([make(tmp_path / "run", accuracy=1.0)])
    found = privacy_front.points([(0, runs[0])], {0: 42})
    drawn, data = privacy_front.chart(found, key="front-0", baseline=None)
    assert data["stops"][0]["lines"][1] == "accuracy 100.0 % (91.6 % to 100.0 %)"
    whisker = re.search(
        r'<line x1="[\d.]+" y1="([\d.]+)" [^>]*y2="([\d.]+)" class="whisker"', drawn
    )
    assert whisker and float(whisker[1]) >= 14 and float(whisker[2]) - float(whisker[1]) > 50


def test_equal_runs_do_not_dominate_each_other(tmp_path: Path) -> None:
    runs = gather([make(tmp_path / "a"), make(tmp_path / "b")])
    assert [p.dominated for p in privacy_front.points(list(enumerate(runs)), {})] == ["", ""]


def test_only_what_differs_is_compared(tmp_path: Path) -> None:
    runs = gather([make(tmp_path / "a"), make(tmp_path / "b", changes={"optimizer.lr": 0.5})])
    text = page(runs, [Measured(), Measured()])
    section = text[text.index('id="recipes"') :]
    rows = re.findall(r"<tr><th scope=\"row\"><code>(.*?)</code>", section)
    assert rows == ["optimizer.lr"]


def test_folders_that_are_no_runs(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="There is no run folder"):
        gather([tmp_path / "nowhere"])
    with pytest.raises(UserError, match="is not a run folder"):
        gather([tmp_path])
    folder = make(tmp_path / "run")
    with pytest.raises(UserError, match="given twice"):
        gather([folder, folder / ".." / "run"])


def test_names_tell_runs_apart(tmp_path: Path) -> None:
    runs = gather([make(tmp_path / "a" / "run"), make(tmp_path / "b" / "run")])
    assert [run.name for run in runs] == ["a/run", "b/run"]


@pytest.mark.parametrize("classes", [2, 10, 30, 100, 201])
def test_any_number_of_classes(classes: int) -> None:
    e = an_evaluation(classes)
    drawn, data = result_charts.confusion(e, "key")
    Elements(drawn)
    assert len(drawn) < 300_000
    if classes <= result_charts.MOST_CLASSES:
        assert np.array(data["counts"]).sum() == e.n
        assert drawn.count("<path") >= 2
    else:
        assert data == {} and "too large to draw" in drawn
    drawn, data = result_charts.reliability(e, "key")
    Elements(drawn)
    assert drawn.count('class="line" stroke-width="2.2"') == (e.reliability.counts > 0).sum()
    assert len(data["stops"]) == (e.reliability.counts > 0).sum()


def test_curves_are_thinned_but_keep_their_ends(tmp_path: Path) -> None:
    runs = gather([make(tmp_path / "long", steps=3000, records=3000)])
    _, data = learning.panels(runs)
    points = data["loss-step"]["series"][0]["points"]
    assert len(points) == 240 and points[0][0] == 1 and points[-1][0] == 3000


@pytest.mark.parametrize("count", with_slow([1, 2, 10], 10))
def test_size(tmp_path: Path, count: int) -> None:
    folders = [make(tmp_path / f"r{k}", sigma=2 + k, records=300) for k in range(count)]
    runs = gather(folders)
    measured = [Measured(evaluation=an_evaluation(100, 3000), parameters=1, classes=100)] * count
    assert len(page(runs, measured).encode()) < 3_000_000


def test_samples_of_the_test_set(tmp_path: Path) -> None:
    runs = gather([make(tmp_path / "run")])
    (found,) = measure(runs, samples=choose(["test:12"]))
    assert len(found.samples) == 12
    assert {s.right for s in found.samples} == {True, False}
    text = page(runs, [found])
    images = [a for tag, a in Elements(text).tags if tag == "img"]
    assert len(images) == 12
    assert all((a["src"] or "").startswith("data:image/png;base64,") and a["alt"] for a in images)
    assert text.count("✗ wrong") + text.count("✓ correct") == 12
    assert "data:image" not in page(runs, measure(runs))


def test_samples_from_files(tmp_path: Path) -> None:
    (tmp_path / "pictures" / "3").mkdir(parents=True)
    Image.new("L", (9, 9), 200).save(tmp_path / "pictures" / "3" / "x.png")
    Image.new("RGB", (300, 200), (9, 9, 99)).save(tmp_path / "pictures" / "y.jpg")
    chosen = choose([str(tmp_path / "pictures")])
    (found,) = measure(gather([make(tmp_path / "run")]), samples=chosen)
    assert {(s.name, s.true) for s in found.samples} == {("x.png", "3"), ("y.jpg", None)}


@pytest.mark.parametrize(
    ("words_", "message"),
    [
        (["train:5"], "only test images"),
        (["test:0"], "from 1 to 60"),
        (["test:many"], "from 1 to 60"),
        (["test:3", "test:4"], "give one kind"),
        (["no-such-file"], "no file or folder"),
    ],
)
def test_impossible_samples(words_: list[str], message: str) -> None:
    with pytest.raises(UserError, match=message):
        choose(words_)
    assert choose([]) is None


def test_markup_escapes_everything_once() -> None:
    inner = markup.element("b", {"title": '"<>&'}, "<i>", None, markup.Safe("<br>"))
    assert inner == '<b title="&#34;&lt;&gt;&amp;">&lt;i&gt;<br></b>'
    assert markup.element("p", {"id": None, "x": 1.50}) == '<p x="1.5"></p>'
    assert markup.join(["a\x00b\ud800", None, markup.Safe("<i>")]) == "a\\u0000b\\ud800<i>"
    shown = markup.table(["<h>"], [["<a>", "\x1b", None]], caption="<c>", classes='"')
    assert Elements(shown).text.split() == ["<c>", "<h>", "<a>\\u001b"]
    assert [tag for tag, _ in Elements(shown).tags].count("a") == 0


def test_values_for_the_script_can_neither_end_nor_start_an_element(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    evil = {"</script><script>": float("nan"), "&<!--": [1 / 3, float("inf")]}
    monkeypatch.setattr(sections, "front", lambda *_: (markup.Safe(""), evil))
    text = page(gather([make(tmp_path / "run")]), [Measured()])
    assert text.count("<script") == 2 and "<!--" not in text
    found = data_of(text)
    assert found["</script><script>"] is None and found["&<!--"] == [0.333333, None]


def test_the_policy_admits_the_page_s_own_style_and_script_alone(tmp_path: Path) -> None:
    text = page(gather([make(tmp_path / "run")]), [Measured()])
    assert text.startswith("<!doctype html>\n") and text.endswith("</html>\n")
    for tag in ("style", "script"):
        (body,) = re.findall(f"<{tag}>(.*?)</{tag}>", text, re.DOTALL)
        digest = base64.b64encode(hashlib.sha256(body.encode()).digest()).decode()
        assert html.escape(f"{tag}-src 'sha256-{digest}'").replace("x27", "39") in text


def test_markdown_of_a_statement() -> None:
    text = "# T\n\nOne **b** `c<d`\n\n| | |\n|---|---|\n| a | <b> |\n\n- x\n- y\n"
    drawn = markup.markdown(text)
    assert "<strong>b</strong> <code>c&lt;d</code>" in drawn and drawn.count("<li>") == 2
    assert html.unescape(Elements(drawn).text).count("<b>") == 1
    assert "<h3>T</h3>" in drawn and "<h1>" not in drawn and 'class="scroll"' in drawn


@pytest.mark.parametrize(
    "text",
    [
        "<script>alert(1)</script>", "<img src=x onerror=alert(1)>", "[a](javascript:alert(1))",
        "![a](http://x.y/z.png)", "<http://x.y>", "http://x.y", "a _name_ and *another*",
        "__init__", "\\<b\\>", "&lt;b&gt;", "    <b>code</b>", "> quoted", "a\x1b[31mb",
    ],
)  # fmt: skip
def test_no_text_becomes_markup_but_bold_code_lists_and_tables(text: str) -> None:
    for drawn in (markup.inline(text), markup.markdown(text)):
        shown = Elements(drawn)
        assert {tag for tag, _ in shown.tags} <= {"p"} and "\x1b" not in drawn
        plain = html.unescape(text.replace("\\", "").replace("\x1b", "\\u001b"))
        assert shown.text.strip() == plain.strip()


def test_numbers_as_people_write_them() -> None:
    assert [text.power(v) for v in (1e-5, 2e-6, 0.01)] == ["10⁻⁵", "2·10⁻⁶", "0.01"]
    assert text.percent(float("nan")) == "–" and text.count(1234567) == "1\u202f234\u202f567"


def test_large_epsilon_is_called_large(tmp_path: Path) -> None:
    (run,) = gather([make(tmp_path / "run", sigma=0.3, steps=40)])
    assert run.spent is not None and run.spent > 10
    assert any("is large" in line for line in privacy.warnings(run))
    said = privacy.lead(run)
    assert "promises next to nothing" in said and "almost as likely" not in said


def test_steps_that_were_counted_and_not_taken(tmp_path: Path) -> None:
    """Results decided when to stop: all planned steps are in the ledger."""
    folder = make(tmp_path / "r", steps=60)
    *others, last = (folder / "metrics.jsonl").read_text().splitlines()
    ended = json.dumps(json.loads(last) | {"step": 12})
    (folder / "metrics.jsonl").write_text("\n".join([*others, ended]) + "\n")
    (run,) = gather([folder])
    assert run.guarantee is not None
    assert (run.steps, run.guarantee.counted, run.planned) == (12, 60, 60)
    assert ("steps", "12, counted as all 60 that were planned") in statement_chapters.rows(
        run.guarantee
    )
    assert "12 steps" in Elements(made(tmp_path, folder)).text
    (half,) = gather([make(tmp_path / "half", steps=60, finished=False)])
    assert half.guarantee is not None
    assert ("steps", "30 of 60") in statement_chapters.rows(half.guarantee)
