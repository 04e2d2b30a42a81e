"""What a recipe says of its own tuning is in the statement, and in the report."""

from __future__ import annotations

from pathlib import Path

from sfumato.privacy import statement_chapters
from sfumato.privacy.statement import tuning
from sfumato.report.runs import gather
from tiny_run import train_run


def test_the_statement_names_the_tuning(tmp_path: Path) -> None:
    words = "three runs at epsilon 3\non a part of the images."
    folder = train_run(tmp_path / "run", {"training.seed": 0, "privacy.tuned": words})
    said = "chosen by three runs at epsilon 3 on a part of the images."
    assert said in " ".join((folder / "statement.md").read_text(encoding="utf-8").split())
    found = gather([folder])[0].guarantee
    assert found is not None and any(said in line for line in statement_chapters.not_covered(found))


def test_a_recipe_that_says_nothing_is_not_quoted() -> None:
    assert "says of itself" not in tuning("")
    assert "the trials spent privacy too" in tuning("")
