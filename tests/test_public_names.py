"""The public names: visible to `dir()` and `help()`, and in the reference."""

from __future__ import annotations

import importlib
import pydoc
import subprocess
import sys

import pytest

PACKAGES = (
    "sfumato", "sfumato.analysis", "sfumato.data", "sfumato.export", "sfumato.models",
    "sfumato.nn", "sfumato.privacy", "sfumato.privacy.accounting", "sfumato.privacy.verify",
    "sfumato.recipes", "sfumato.report",
)  # fmt: skip


@pytest.mark.parametrize("name", PACKAGES)
def test_every_public_name_is_listed_and_there(name: str) -> None:
    package = importlib.import_module(name)
    assert set(package.__all__) <= set(dir(package))
    assert all(getattr(package, public) is not None for public in package.__all__)
    with pytest.raises(AttributeError, match="no_such_name"):
        _ = package.no_such_name


def test_help_describes_the_front_door() -> None:
    text = pydoc.plain(pydoc.render_doc("sfumato"))
    for name in ("train(", "open(", "resume(", "class Run", "class Recipe"):
        assert name in text, name


def test_every_part_is_reached_after_one_import_without_torch() -> None:
    code = (
        "import sys, sfumato; assert {'train', 'load', 'Recipe', 'analysis'} <= set(dir(sfumato));"
        "sfumato.recipes.find('digits'); sfumato.privacy.epsilon; sfumato.analysis; sfumato.report;"
        "sfumato.privacy.verify; sfumato.data.names(); sfumato.__version__;"
        "assert 'torch' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


@pytest.mark.parametrize("part", ["analysis", "data", "models", "nn", "privacy", "recipes"])
def test_a_part_lists_its_public_names_alone(part: str) -> None:
    module = importlib.import_module(f"sfumato.{part}")
    assert {name for name in dir(module) if not name.startswith("__")} == set(module.__all__)
