"""The version of this package, also where it runs from its sources without being installed."""

from __future__ import annotations

from importlib.metadata import PackageNotFoundError, version

UNKNOWN = "unknown"


def of(package: str = "sfumato") -> str:
    """The installed version of a package, or `unknown`."""
    try:
        return version(package)
    except PackageNotFoundError:
        return UNKNOWN
