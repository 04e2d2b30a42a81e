"""Reproduction of the papers' results: published numbers, our runs, and both side by side."""

from __future__ import annotations

from sfumato.reproduce.lookup import find
from sfumato.reproduce.results_file import Entry, append, read
from sfumato.reproduce.row import Paper, Row
from sfumato.reproduce.rows import PAPERS

__all__ = ["PAPERS", "Entry", "Paper", "Row", "append", "find", "read"]
