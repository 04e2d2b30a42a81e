"""Names and sizes of the house: no two modules of one name, no long module, no long function."""

from __future__ import annotations

import ast
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

import sfumato
from sfumato.cli import VERBS

HOUSE = Path(sfumato.__file__).parent
MODULE_LINES = 400
FUNCTION_LINES = 80
ONE_MEANING = {
    ("analysis", "report.analysis"): "numbers about a model, and their pictures",
    ("privacy", "report.privacy"): "the privacy of a run, and how documents state it",
    ("privacy.audit", "report.audit"): "audits, and how documents show them",
    (
        "charts.discrimination",
        "discrimination",
        "report.discrimination",
    ): "ROC and precision-recall curves: their points, their charts, their areas in words",
    (
        "models.equivariant",
        "nn.equivariant",
        "reproduce.papers.equivariant",
    ): "the networks of one paper: models, layers, published rows",
    ("data.units", "privacy.units"): "units of privacy, in a data set and in a batch",
}
"""Modules and packages that share a name because they are about one thing, and what it is."""


def modules() -> dict[str, Path]:
    """Each module and package of the house, by its name after `sfumato.`."""
    found = {}
    for path in sorted(HOUSE.rglob("*.py")):
        named = path.parent if path.name == "__init__.py" else path.with_suffix("")
        found[".".join(named.relative_to(HOUSE).parts)] = path
    return found


def test_no_two_modules_have_one_name_and_two_meanings() -> None:
    """The module of a verb has the verb's name, which may be that of its subject as well."""
    places = defaultdict(list)
    for module in modules().keys() - {f"cli.{verb}" for verb in VERBS}:
        places[module.rpartition(".")[2]].append(module)
    shared = {tuple(sorted(found)) for found in places.values() if len(found) > 1}
    assert shared == ONE_MEANING.keys()


def test_modules_are_short() -> None:
    lines = {
        name: len(path.read_text(encoding="utf-8").splitlines()) for name, path in modules().items()
    }
    assert len(lines) > 400, "the house is seen"
    assert {name: n for name, n in lines.items() if n > MODULE_LINES} == {}


def functions(source: str) -> Iterator[tuple[str, int]]:
    """Each function of a program, with its lines of code: neither signature nor docstring."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            body = node.body if ast.get_docstring(node) is None else node.body[1:]
            first, last = (body[0].lineno, body[-1].end_lineno or 0) if body else (1, 0)
            yield node.name, last - first + 1


def test_functions_are_short() -> None:
    found = [
        (lines, module, name)
        for module, path in modules().items()
        for name, lines in functions(path.read_text(encoding="utf-8"))
    ]
    assert len(found) > 2000, "the functions are seen"
    assert [function for function in found if function[0] > FUNCTION_LINES] == []


def test_lines_of_code_are_those_after_the_docstring() -> None:
    source = (
        "def long(\n    a,\n    b,\n):\n"
        '    """A\n\n    docstring.\n    """\n'
        "    c = a\n\n    def inner():\n        return b\n\n    return c, inner\n"
        'class Named:\n    def described(self):\n        """Nothing else."""\n'
    )
    assert dict(functions(source)) == {"long": 6, "inner": 1, "described": 0}
