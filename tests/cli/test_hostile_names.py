"""Names that are markup, links, control characters or rich's tags, wherever they are shown."""

from __future__ import annotations

import io
import re
import sys
from html.parser import HTMLParser
from pathlib import Path

import numpy as np
import pytest
from cli_result import Result, Run, refused
from PIL import Image

from sfumato.cli.predict import _destination

HOSTILE = (
    "<script>alert(1)<", "<img src=x onerror=alert(1)>", "[x](javascript:alert(1))", "\x1b[2Jcls",
    "a\nb", "[red]x[/]", "[/]", "&lt;b&gt;", "**(0.1, 1e-05)-differential privacy**",
    "\u202egnp.exe", "![i](http:x)", "| a |", "\x9b31m", "&#10;# Title", ":abc:",
)  # fmt: skip


class Seen(HTMLParser):
    """The elements and attributes of a page."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.attributes: list[tuple[str, str | None]] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.attributes += attrs


@pytest.fixture
def images(tmp_path: Path) -> Path:
    """A folder of images with hostile names for its classes and itself."""
    home = tmp_path / "<b>[link=x]\x1b[31mscans\n"
    noise = np.random.default_rng(0)
    for name in HOSTILE:
        (home / name).mkdir(parents=True)
        for k in range(10):
            pixels = noise.integers(0, 256, (8, 8), dtype=np.uint8)
            Image.fromarray(pixels).save(home / name / f"{k}.png")
    return home


def harmless(result: Result) -> None:
    """Exit status 0, and nothing on the terminal that it would obey."""
    assert result.code == 0, result
    assert "Traceback" not in result.err, result.err
    for text in (result.out, result.err):
        assert not re.search("[\x00-\x08\x0b-\x1f\x7f-\x9f\u202e]", text), text


def test_hostile_names_are_shown_and_do_nothing(sfumato: Run, images: Path) -> None:
    recipe = Path("hostile.toml")
    recipe.write_text(
        'name = "[/]<i>\\u001b[2J/../x"\n[model]\nname = "tanh-cnn"\noptions = {filters = 2}\n'
        '[privacy]\ntuned = "x](javascript:alert(1)) <script> **(0.1, 1e-05)-differential privacy**'
        '\\n\\n# New"\n'
    )
    short = ("--set", "training.steps=2", "--set", "training.batch=20", "--device", "cpu")
    harmless(sfumato("train", recipe, "--data", images, *short))
    (run,) = Path("runs").iterdir()
    assert re.fullmatch(r"[\w.-]+", run.name)
    statement = (run / "statement.md").read_text()
    assert "<" not in statement and "](" not in statement
    assert len(re.findall(r"(?<!\\)\*\*\([\d.]+, ", statement)) == 1
    assert "\n# New" not in statement and "\x1b" not in statement
    for line in (
        ["evaluate", run], ["predict", run, images / HOSTILE[0], "--format", "json"],
        ["verify", run],
        ["analyze", run, "--only", "calibration,cost"], ["report", run, "--samples", "test:4"],
        ["card", run], ["data", "show", images], ["recipes", "show", run / "recipe.toml"],
    ):  # fmt: skip
        harmless(sfumato(*line))

    page = Path("report.html").read_text()
    seen = Seen(page)
    assert seen.tags.count("script") == 2, "the page's data and its own script"
    assert not {"b", "i", "a", "iframe"} & set(seen.tags)
    assert not [a for a in seen.attributes if a[0].startswith("on") or a[0] == "href"]
    assert all(str(a[1]).startswith("data:image/") for a in seen.attributes if a[0] == "src")
    assert "\x1b" not in page and "\u202e" not in page

    card = Path("MODEL_CARD.md").read_text()
    body = re.sub(r"(?ms)^(`{3,})toml\n.*?^\1$", "", card.partition("---\n")[2].partition("---")[2])
    assert set(Seen(body).tags) <= {"details", "summary", "code"}
    own = "![ROC and precision-recall curves](MODEL_CARD-curves.png)"
    assert body.count(own) == 1
    assert not re.search(r"(?<!\\)\]\(", body.replace(own, "")), "a link or another image"
    assert "\x1b" not in card and "\u202e" not in card


class _Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_predictions_on_a_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdout", _Terminal())
    with _destination(None) as stream:
        stream.write("file,\x1b[2Jcls\n")
    assert sys.stdout.getvalue() == "file,\\u001b[2Jcls\n"  # type: ignore[attr-defined]


def test_a_sentence_about_a_hostile_name(sfumato: Run) -> None:
    result = sfumato("evaluate", "\x1b[2J[/][red]run\x07")
    refused(result, "[/][red]run")
    assert "\x1b" not in result.err and "\x07" not in result.err
