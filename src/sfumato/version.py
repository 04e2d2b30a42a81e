"""Version and commit of this package, also where it runs from its sources, not installed."""

from __future__ import annotations

import subprocess
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

UNKNOWN = "unknown"


def of(package: str = "sfumato") -> str:
    """The installed version of a package, or `unknown`."""
    try:
        return version(package)
    except PackageNotFoundError:
        return UNKNOWN


def commit() -> str:
    """The commit of the checkout that the package lies in, with `+` if the package was changed."""
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
