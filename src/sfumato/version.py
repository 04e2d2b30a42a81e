"""Version and commit of this package, also where it runs from its sources, not installed."""

from __future__ import annotations

import os
import re
import subprocess
import tomllib
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

UNKNOWN = "unknown"
COMMIT = "SFUMATO_COMMIT"
"""The environment variable that names the commit of sources whose history did not come along."""


def of(package: str = "sfumato") -> str:
    """The installed version of a package; of this one also where it is not installed."""
    try:
        return version(package)
    except PackageNotFoundError:
        return _written() if package == "sfumato" else UNKNOWN


def _written() -> str:
    """The version that the checkout states, if this is one."""
    try:
        content = (Path(__file__).resolve().parents[2] / "pyproject.toml").read_text("utf-8")
        project = tomllib.loads(content)["project"]
        return str(project["version"]) if project["name"] == "sfumato" else UNKNOWN
    except (OSError, KeyError, tomllib.TOMLDecodeError):
        return UNKNOWN


__version__ = of()


def commit() -> str:
    """The commit of the checkout that the package lies in, with `+` if the package was changed.

    `SFUMATO_COMMIT` comes first, if it is 7 to 40 hexadecimal digits with or without a `+`.
    """
    given = os.environ.get(COMMIT, "")
    if re.fullmatch(r"[0-9a-fA-F]{7,40}\+?", given):
        return given
    here = Path(__file__).resolve().parent

    def git(*words: str) -> str:
        done = subprocess.run(
            ["git", "-C", str(here), *words], capture_output=True, text=True, timeout=10, check=True
        )
        return done.stdout.strip()

    try:
        name = git("rev-parse", "--short=12", "HEAD")
        changed = git("status", "--porcelain", "--untracked-files=no", "--", ".")
    except (OSError, subprocess.SubprocessError):
        return UNKNOWN
    return f"{name}+" if changed else name
