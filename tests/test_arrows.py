"""Arrows go one way: what each part of the house may import."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

import sfumato

HOUSE = Path(sfumato.__file__).parent
ANYONE = {
    "errors", "version", "io", "live", "memory", "device_copy", "text", "discrimination", "_lazy",
    "environment",
}  # fmt: skip
BELOW = {
    "io": set(),
    "nn": set(),
    "kernels": set(),
    "charts": set(),
    "data": set(),
    "starts": set(),
    "distributed": set(),
    "models": {"nn"},
    "privacy": {"kernels", "nn", "distributed"},
    "training": {
        "privacy", "models", "nn", "data", "charts", "recipe", "settings", "starts", "distributed",
    },
    "recipes": {"recipe"},
    "run": {"training", "privacy", "models", "data", "recipe", "recipes"},
    "analysis": {"run", "training", "privacy", "models", "data", "nn"},
    "report": {
        "run", "analysis", "training", "privacy", "models", "data", "charts", "recipe", "recipes",
    },
    "export": {"run", "report", "training", "models", "data", "nn"},
    "reproduce": {
        "run", "analysis", "training", "privacy", "models", "data", "charts", "recipe", "recipes",
        "starts",
    },
    "guide": {"training", "privacy", "data", "recipe", "recipes", "settings"},
    "api": {"run", "training", "models", "data", "recipe", "recipes", "distributed"},
    "bench": {"training", "privacy", "models", "data", "charts", "recipe"},
}  # fmt: skip
PARTS = sorted(path.parent.name for path in HOUSE.glob("*/__init__.py"))
REACHES_UP = {("run.py", "report")}
"""Imports of a method that is a shortcut to a part above."""


def imported(part: str) -> Iterator[tuple[str, str]]:
    """Each file of a part, with the name of another part that it imports."""
    for path in sorted([*(HOUSE / part).rglob("*.py"), *HOUSE.glob(f"{part}.py")]):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            names = []
            if isinstance(node, ast.Import):
                names = [alias.name for alias in node.names]
            elif isinstance(node, ast.ImportFrom) and node.module == "sfumato":
                names = [f"sfumato.{alias.name}" for alias in node.names]
            elif isinstance(node, ast.ImportFrom):
                names = [node.module or ""]
            for top, _, rest in (name.partition(".") for name in names):
                if top == "sfumato" and rest and rest.split(".")[0] != part:
                    yield path.name, rest.split(".")[0]


@pytest.mark.parametrize("part", BELOW)
def test_a_part_imports_only_what_is_below_it(part: str) -> None:
    found = {(file, other) for file, other in imported(part) if other not in ANYONE}
    assert {(file, other) for file, other in found if other not in BELOW[part]} <= REACHES_UP


def test_every_part_has_its_place() -> None:
    assert {*PARTS, "run", "api"} == {*BELOW, "cli"}


def test_the_imports_are_seen() -> None:
    assert ("release.py", "charts") in imported("training")
    assert ("convolution_gradients.py", "kernels") in imported("privacy")


@pytest.mark.parametrize("part", [part for part in PARTS if part != "cli"])
def test_nothing_imports_the_command_line(part: str) -> None:
    assert "cli" not in {other for _, other in imported(part)}


ROOMS = {
    "accounting": set(),
    "numerics": set(),
    "engines": {"numerics"},
    "checks": {"engines", "numerics"},
    "units": {"checks", "engines", "numerics"},
    "draws": {"accounting", "engines", "numerics", "units"},
    "audit": {"accounting", "numerics"},
    "verify": {"checks", "engines", "numerics"},
}
"""The folders of `privacy`, and what each imports of the others."""

PRIVACY = HOUSE / "privacy"
ABOVE = {"mechanism", "per_example"}
"""Modules of `privacy` that put the folders together."""


def modules_in(room: str) -> Iterator[tuple[str, str]]:
    """Each file of a folder of `privacy`, with the full name of a module that it imports."""
    for path in sorted((PRIVACY / room).rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Import):
                yield from ((path.name, alias.name) for alias in node.names)
            elif isinstance(node, ast.ImportFrom):
                yield path.name, node.module or ""


@pytest.mark.parametrize("room", ROOMS)
def test_a_folder_of_privacy_imports_only_what_is_below_it(room: str) -> None:
    allowed = {*ROOMS[room], room} | (ABOVE if room in ("verify", "checks") else set())
    found = {
        (file, name.split(".")[2])
        for file, name in modules_in(room)
        if name.startswith("sfumato.privacy.")
    }
    assert {(f, other) for f, other in found if other in {*ROOMS, *ABOVE} - allowed} == set()


def test_every_folder_of_privacy_has_its_place() -> None:
    assert {path.parent.name for path in PRIVACY.glob("*/__init__.py")} == set(ROOMS)


def test_accounting_needs_no_torch() -> None:
    names = {name.split(".")[0] for _, name in modules_in("accounting")}
    assert "torch" not in names and "dp_accounting" in names
