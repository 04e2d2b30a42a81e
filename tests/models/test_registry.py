"""The registry, its options, models from outside, and the page that says how to add one."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Literal

import pytest
from torch import nn

import sfumato
from sfumato.errors import UserError
from sfumato.models import create, info, names, parse_options, patterns, register, registry

PAGE = Path(__file__).parents[2] / "docs" / "adding-a-model.md"


@pytest.fixture
def family(monkeypatch: pytest.MonkeyPatch) -> dict[str, object]:
    monkeypatch.setattr(registry, "_MODELS", {})
    monkeypatch.setattr(registry, "_PATTERNS", {})
    seen: dict[str, object] = {}

    @register("toy", paper="none", parameters=3, minimum=2, preset={"fixed": 5})
    @register("toy-{depth}x{fixed}", paper="none")
    def build(
        *,
        classes: int,
        channels: int,
        size: tuple[int, int],
        depth: int = 1,
        fixed: int = 1,
        share: float = 0.5,
        kind: Literal["a", "b"] = "a",
        layout: tuple[int, int] = (1, 2),
        tail: tuple[int, ...] = (),
        maybe: int | None = None,
        on: bool = False,
    ) -> nn.Module:
        """A toy."""
        seen.update(locals())
        return nn.Identity()

    return seen


def test_a_model_gets_its_arguments_and_presets(family: dict[str, object]) -> None:
    create("toy", classes=4, channels=2, size=6, share=1, layout=[3, 4], tail=[1, 2, 3], on=True)
    assert family["classes"] == 4 and family["channels"] == 2 and family["size"] == (6, 6)
    assert family["fixed"] == 5 and family["on"] is True
    assert family["share"] == 1.0 and isinstance(family["share"], float)
    assert family["layout"] == (3, 4) and family["tail"] == (1, 2, 3)
    entry = info("toy")
    assert (entry.name, entry.paper, entry.parameters, entry.doc) == ("toy", "none", 3, "A toy.")
    assert "fixed" not in entry.options and entry.options["depth"].default == 1


def test_names_of_a_form(family: dict[str, object]) -> None:
    create("toy-12x7", size=(3, 4))
    assert (family["depth"], family["fixed"], family["size"]) == (12, 7, (3, 4))
    assert info("toy-12x7").preset == {"depth": 12, "fixed": 7}
    assert names() == ["toy"] and patterns() == ["toy-{depth}x{fixed}"]
    with pytest.raises(UserError, match="no model 'toy-12x'"):
        create("toy-12x")


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"dept": 1}, "no option 'dept'. Did you mean 'depth'"),
        ({"fixed": 1}, "fixes the option 'fixed' at 5"),
        ({"depth": 0}, "whole number of at least 1"),
        ({"depth": True}, "whole number"),
        ({"depth": 1.5}, "whole number"),
        ({"share": "x"}, "is 'x', but must be a number"),
        ({"kind": "aa"}, "one of 'a', 'b'. Did you mean 'a'"),
        ({"layout": (1, 2, 3)}, "a list of 2 whole numbers"),
        ({"layout": (1, 0)}, "a list of 2 whole numbers"),
        ({"maybe": "x"}, "a whole number of at least 1 and at most 65536 or none"),
        ({"on": 1}, "true or false"),
        ({"size": 1}, "at least 2x2 pixels, not 1x1"),
        ({"classes": 0}, "classes must be a whole number"),
        ({"channels": 1.5}, "channels must be a whole number"),
        ({"size": (4, "5")}, "width must be a whole number"),
    ],
)
def test_mistakes_are_sentences(
    family: dict[str, object], options: dict[str, object], words: str
) -> None:
    with pytest.raises(UserError, match=re.escape(words)):
        create("toy", **options)  # type: ignore[arg-type]


def test_options_from_the_command_line(family: dict[str, object]) -> None:
    texts = ["depth=3", "share=0.25", "kind = b", "layout=(3, 4)", "maybe=none", "on=yes"]
    assert parse_options("toy", texts) == {
        "depth": 3,
        "share": 0.25,
        "kind": "b",
        "layout": (3, 4),
        "maybe": None,
        "on": True,
    }
    assert parse_options("toy", ["maybe=2", "other=x"]) == {"maybe": 2, "other": "x"}
    for wrong in ("depth", "=3", "depth=x", "kind=c", "layout=1,x", "on=maybe"):
        with pytest.raises(UserError):
            parse_options("toy", [wrong])


def test_a_badly_declared_builder_is_refused_at_registration(family: dict[str, object]) -> None:
    def positional(classes: int) -> nn.Module: ...

    def bare(*, classes: int, channels: int, size: int, depth: int) -> nn.Module: ...

    with pytest.raises(TypeError, match="keyword-only"):
        register("one", paper="")(positional)
    with pytest.raises(TypeError, match="needs an annotation and a default"):
        register("two", paper="")(bare)
    with pytest.raises(TypeError, match="no option 'x'"):
        register("three", paper="", preset={"x": 1})(registry.info("toy").build)
    with pytest.raises(ValueError, match="registered twice"):
        register("toy", paper="")(registry.info("toy").build)


OUTSIDE = """
import torch
from torch import nn

class Net(nn.Module):
    def __init__(self, classes):
        super().__init__()
        self.classes = classes

def everything(**settings):
    net = nn.Identity()
    net.settings = settings
    return net

def nothing():
    return nn.Identity()

def lazy():
    return nn.Sequential(nn.Flatten(), nn.LazyLinear(3))

def typed(size, hidden: "int" = 3):
    net = nn.Identity()
    net.settings = (size, hidden)
    return net

def needy(*, classes, depth):
    return nn.Identity()

def wrong():
    return 3

value = 3
"""


@pytest.fixture
def outside(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "outside_models.py").write_text(OUTSIDE)
    (tmp_path / "broken_models.py").write_text("import nonexistent_thing")
    monkeypatch.chdir(tmp_path)
    yield
    sys.modules.pop("outside_models", None)


@pytest.mark.usefixtures("outside")
def test_models_from_outside() -> None:
    path = list(sys.path)
    assert create("outside_models:Net", classes=7).classes == 7
    assert sys.path == path
    settings = {"classes": 10, "channels": 1, "size": (8, 9), "depth": 2}
    assert (
        create("outside_models:everything", channels=1, size=(8, 9), depth=2).settings == settings
    )
    assert isinstance(create("outside_models:nothing"), nn.Identity)
    options = parse_options("outside_models:typed", ["hidden=8"])
    assert create("outside_models:typed", size=5, **options).settings == ((5, 5), 8)
    assert isinstance(create("outside_models:needy", depth=1), nn.Identity)
    shaped = create("outside_models:lazy", channels=1, size=(8, 9))
    assert [tuple(p.shape) for p in shaped.parameters()] == [(3, 72), (3,)] and shaped.training


@pytest.mark.usefixtures("outside")
@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("nowhere.models:net", "'nowhere.models' of the model .* cannot be imported"),
        ("broken_models:net", "cannot be imported .*nonexistent_thing"),
        ("outside_models.py:net", "names a file, not a module: write outside_models:net[.]"),
        ("some/where.py:net", "write where:net, in the folder some[.]"),
        ("outside_models:net", "no function 'net'. Did you mean 'Net'"),
        ("outside_models:value", "is int, but must be a Python function"),
        ("os:getcwd", "must be a Python function"),
        ("outside_models:wrong", "returned int, but must return a torch.nn.Module"),
        ("outside_models:needy", "needs a value for its argument 'depth'"),
        ("outside_models:", "write package.module:function"),
        (":net", "write package.module:function"),
    ],
)
def test_mistakes_with_models_from_outside_are_sentences(name: str, words: str) -> None:
    with pytest.raises(UserError, match=words):
        create(name)


@pytest.mark.usefixtures("outside")
def test_an_option_that_the_outside_function_lacks() -> None:
    with pytest.raises(UserError, match="Did you mean 'hidden'"):
        create("outside_models:typed", hiden=3)


def test_a_model_that_refuses_its_options_is_a_mistake_and_no_traceback(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "my_wide_models.py").write_text(
        "from torch import nn\n"
        "def wide(classes, width=3):\n"
        "    return nn.Sequential(nn.Flatten(), nn.Linear(16, width), nn.Linear(width, classes))\n"
    )
    monkeypatch.chdir(tmp_path)
    made = create("my_wide_models:wide", classes=2, channels=1, size=(4, 4), width=5)
    assert made[1].out_features == 5  # type: ignore[index]
    with pytest.raises(UserError, match="cannot be built with classes = 2, width = 'abc'"):
        create("my_wide_models:wide", classes=2, channels=1, size=(4, 4), width="abc")


@pytest.mark.slow
def test_the_page_about_adding_a_model(tmp_path: Path) -> None:
    """Follow docs/adding-a-model.md: write its files where it says, run its Python and commands."""
    page = PAGE.read_text()
    blocks = re.findall(r"```(python|sh)\n(.*?)```", page, flags=re.DOTALL)[:6]
    inside, outside = re.findall(r"[Ww]rite(?: the file)? `([\w/.]+\.py)`", page)
    assert inside.startswith("src/sfumato/models/") and "/" not in outside
    assert [kind for kind, _ in blocks] == ["python", "sh", "python", "python", "sh", "python"]
    root = Path(sfumato.__file__).parent
    shutil.copytree(root, tmp_path / "src/sfumato", ignore=shutil.ignore_patterns("__pycache__"))
    (tmp_path / inside).write_text(blocks[0][1])
    work = tmp_path / "work"
    work.mkdir()
    (work / outside).write_text(blocks[3][1])
    program = "\n".join([blocks[2][1], blocks[5][1]])
    program += "assert 'pooled' in models.names()\nimport sys\nfrom sfumato import cli\n"
    for kind, text in blocks:
        if kind == "sh":
            program += f"sys.argv = {text.split()}\n"
            program += (
                "try:\n    cli.main()\nexcept SystemExit as left:\n    assert not left.code\n"
            )
    done = subprocess.run(
        [sys.executable, "-c", program],
        cwd=work,
        env={"PYTHONPATH": str(tmp_path / "src"), "OMP_NUM_THREADS": "1", "COLUMNS": "120"},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    assert "pooled\npaper: docs/adding-a-model.md" in done.stdout
    assert "my_models:perceptron\n" in done.stdout
    assert "1×12×12 images, 3 classes: 9,475 trainable parameters" in done.stdout
