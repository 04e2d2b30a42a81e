from __future__ import annotations

import pytest


@pytest.fixture(autouse=True)
def _rendered(real_pictures: None) -> None:
    """Here pictures themselves are tested."""
