from __future__ import annotations

import re
import subprocess
from typing import Any

import pytest

import sfumato
from sfumato import version


@pytest.fixture
def no_history(monkeypatch: pytest.MonkeyPatch) -> None:
    def failed(*_: Any, **__: Any) -> Any:
        raise FileNotFoundError("git")

    monkeypatch.setattr(subprocess, "run", failed)
    monkeypatch.delenv(version.COMMIT, raising=False)


def test_a_copied_tree_has_no_commit(no_history: None) -> None:
    assert version.commit() == version.UNKNOWN


@pytest.mark.parametrize("given", ["0123abc", "0123abc+", "a" * 40, "A" * 40 + "+"])
def test_the_environment_names_the_commit(
    given: str, no_history: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SFUMATO_COMMIT", given)
    assert version.commit() == given


@pytest.mark.parametrize(
    "given", ["", "012345", "a" * 41, "main", "0123abg", "+0123abc", "0123abc++", "0123abc\n"]
)
def test_what_is_no_commit_is_passed_over(
    given: str, no_history: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SFUMATO_COMMIT", given)
    assert version.commit() == version.UNKNOWN


def test_a_checkout_tells_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    def git(words: list[str], **_: Any) -> Any:
        said = "0123456789ab\n" if "rev-parse" in words else " M version.py\n"
        return subprocess.CompletedProcess(words, 0, stdout=said)

    monkeypatch.setattr(subprocess, "run", git)
    monkeypatch.delenv("SFUMATO_COMMIT", raising=False)
    assert version.commit() == "0123456789ab+"


def test_versions_of_packages() -> None:
    assert re.match(r"\d+\.", version.of("torch"))
    assert version.of("no-such-package") == version.UNKNOWN


def test_a_checkout_that_is_not_installed_has_a_version(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(name: str) -> str:
        raise version.PackageNotFoundError(name)

    monkeypatch.setattr(version, "version", missing)
    assert re.fullmatch(r"\d+\.\d+\.\d+\S*", version.of())
    assert version.of("opacus") == version.UNKNOWN
    monkeypatch.setattr(version, "__file__", "/nowhere/src/sfumato/version.py")
    assert version.of() == version.UNKNOWN


def test_the_package_says_its_version() -> None:
    assert sfumato.__version__ == version.of()
    assert re.fullmatch(r"\d+\.\d+\.\d+\S*", sfumato.__version__)
