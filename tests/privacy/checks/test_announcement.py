"""Announcements of work that takes long."""

from __future__ import annotations

import threading
import time

import pytest

from sfumato.privacy.checks import announcement
from sfumato.privacy.checks.announcement import announced


def test_work_that_takes_long_is_announced(monkeypatch: pytest.MonkeyPatch) -> None:
    said: list[str] = []
    with announced("quick", said.append):
        pass
    monkeypatch.setattr(announcement, "AFTER", 0.01)
    with announced("slow", said.append):
        time.sleep(0.2)
    assert said == ["slow"]


def test_work_goes_on_where_no_thread_can_be_started(monkeypatch: pytest.MonkeyPatch) -> None:
    def start(self: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", start)
    done = []
    with announced("work", lambda message: None):
        done.append(1)
    assert done == [1]
