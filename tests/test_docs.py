"""The Python of README.md and docs/: every block runs, page by page, in an empty folder.

A page may hold comments for this test, which a reader does not see: `<!-- setup ... -->` is Python
that runs where it stands; `<!-- file: NAME -->` before a block has it written to a file instead;
`<!-- not run: REASON -->` before a block leaves it out.
"""

from __future__ import annotations

import ast
import json
import os
import re
import runpy
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

import pytest

import sfumato
from sfumato.models import registry
from thinning import with_slow

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"
NOT_RUN = 0
"""Blocks that need a GPU or hours."""

_PARTS = re.compile(
    r"<!-- setup\n(?P<setup>.*?)-->|"
    r"(?:<!-- (?P<mark>file|not run): (?P<what>[^\n]*) -->\n+)?```python\n(?P<code>.*?)```",
    re.DOTALL,
)
_RUNNER = """
import json, sys
scope = {"__name__": "__main__"}
for where, line, code in json.load(open(sys.argv[1], encoding="utf-8")):
    exec(compile("\\n" * line + code, where, "exec"), scope)
"""


class Page(NamedTuple):
    """What a page has to run."""

    program: list[tuple[str, int, str]]
    files: dict[str, str]
    blocks: int
    not_run: int


def read(path: Path) -> Page:
    page = Page([], {}, 0, 0)
    text = path.read_text(encoding="utf-8")
    for found in _PARTS.finditer(text):
        if found["code"] is not None:
            page = page._replace(blocks=page.blocks + 1)
        if found["mark"] == "not run":
            page = page._replace(not_run=page.not_run + 1)
        elif found["mark"] == "file":
            page.files[found["what"]] = found["code"]
        else:
            part = "setup" if found["code"] is None else "code"
            line = text.count("\n", 0, found.start(part))
            page.program.append((str(path.relative_to(ROOT)), line, found[part]))
    return page


PAGES = {
    str(path.relative_to(ROOT)): read(path)
    for path in [ROOT / "README.md", *sorted(DOCS.rglob("*.md"))]
}


def run(program: list[tuple[str, int, str]], folder: Path) -> str:
    (folder / "program.json").write_text(json.dumps(program), encoding="utf-8")
    done = subprocess.run(
        [sys.executable, "-c", _RUNNER, "program.json"],
        cwd=folder, env=os.environ | {"OMP_NUM_THREADS": "1"}, capture_output=True, text=True,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.parametrize(
    "name",
    with_slow(
        [name for name, page in PAGES.items() if page.blocks],
        "docs/analysis.md",
        "docs/audit.md",
        "docs/export.md",
    ),
)
def test_every_block_of_a_page_runs(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In this process, which has imported what takes longer than most pages."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(registry, "_MODELS", dict(registry._MODELS))
    monkeypatch.setattr(sfumato, "train", sfumato.train)  # Some pages replace it by short runs.
    for file, code in PAGES[name].files.items():
        (tmp_path / file).write_text(code, encoding="utf-8")
        monkeypatch.delitem(sys.modules, Path(file).stem, raising=False)
    scope: dict[str, object] = {"__name__": "__main__"}
    for where, line, code in PAGES[name].program:
        exec(compile("\n" * line + code, where, "exec"), scope)


def test_every_block_is_found_and_few_are_left_out() -> None:
    for name, page in PAGES.items():
        text = (ROOT / name).read_text(encoding="utf-8")
        assert page.blocks == len(re.findall(r"^ *```py", text, flags=re.MULTILINE)), name
    assert sum(page.blocks for page in PAGES.values()) >= 20
    assert sum(page.not_run for page in PAGES.values()) == NOT_RUN


def test_the_index_names_every_page_once() -> None:
    index = (DOCS / "README.md").read_text(encoding="utf-8")
    linked = re.findall(r"\]\(([\w/-]+\.md)\)", index)
    pages = [path.name for path in DOCS.glob("*.md") if path.name != "README.md"]
    assert sorted(linked) == sorted([*pages, "results/README.md"])


def test_links_between_pages_lead_somewhere() -> None:
    for name in PAGES:
        for link in re.findall(r"\]\(([^)#:\s]+)(?:#[^)]*)?\)", (ROOT / name).read_text("utf-8")):
            assert ((ROOT / name).parent / link).exists(), f"{name}: {link}"


def test_the_reference_is_that_of_the_docstrings(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["make_reference.py", "--check"])
    program = runpy.run_path(str(DOCS / "make_reference.py"))
    assert program["main"]() == 0, capsys.readouterr().err


@pytest.mark.slow
def test_an_opacus_loop_moves_by_changing_five_lines(tmp_path: Path) -> None:
    path = DOCS / "from-opacus.md"
    setup = PAGES["docs/from-opacus.md"].program[0]
    lines = re.search(r"```diff\n(.*?)```", path.read_text("utf-8"), re.DOTALL)[1].splitlines()  # type: ignore[index]
    assert sum(line.startswith("+") for line in lines) <= 5
    found = {}
    for sign in "-+":
        code = "\n".join(line[1:] for line in lines if line[:1] in (" ", sign))
        ast.parse(code)
        folder = tmp_path / ("sfumato" if sign == "+" else "opacus")
        folder.mkdir()
        timed = [("clock", 0, "import time; began = time.monotonic()"), ("diff", 0, code)]
        after = "print(time.monotonic() - began, accuracy(model))"
        said = run([setup, *timed, ("after", 0, after)], folder).split()
        found[folder.name] = epsilon, seconds, accuracy = [float(word) for word in said[-3:]]
        print(f"{folder.name}: epsilon {epsilon:.3f}, {seconds:.1f} s, accuracy {accuracy:.3f}")
        assert 2.7 < epsilon <= 3.01 and accuracy > 0.5
    assert abs(found["opacus"][2] - found["sfumato"][2]) < 0.15
