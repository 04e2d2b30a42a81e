"""Files that commands make are new and whole, or not there."""

from __future__ import annotations

from pathlib import Path

import pytest

from sfumato.errors import UserError
from sfumato.io import new_file


def test_what_could_not_be_made_is_refused_first(tmp_path: Path) -> None:
    there, dangling = tmp_path / "there.png", tmp_path / "dangling.png"
    there.write_text("kept")
    dangling.symlink_to(tmp_path / "nowhere")
    for path in (there, dangling):
        with pytest.raises(UserError, match=r"exists already and is left alone: .* --plot"):
            new_file.check(path, option="--plot")
    with pytest.raises(UserError, match=r"no folder .*missing\. Make it, or give another --out"):
        new_file.check(tmp_path / "missing" / "a.png")
    with pytest.raises(UserError, match=r"must end in \.png, \.svg"):
        new_file.check(tmp_path / "a.txt", endings=(".png", ".svg"))
    new_file.check(tmp_path / "a.PNG", endings=(".png", ".svg"))
    assert sorted(p.name for p in tmp_path.iterdir()) == ["dangling.png", "there.png"]


def test_a_file_is_there_whole(tmp_path: Path) -> None:
    path = tmp_path / "a"
    with new_file.writing(path) as file:
        file.write(b"one")
        assert path.read_bytes() == b"", "its name is taken, and nobody reads a part"
    assert path.read_bytes() == b"one"
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize("error", [KeyboardInterrupt(), OSError(28, "No space left on device")])
def test_or_not_at_all(tmp_path: Path, error: BaseException) -> None:
    expected = UserError if isinstance(error, OSError) else KeyboardInterrupt
    with pytest.raises(expected), new_file.writing(tmp_path / "a") as file:
        file.write(b"part")
        raise error
    assert list(tmp_path.iterdir()) == []


def test_what_came_in_between_is_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "a"
    new_file.check(path)
    path.write_text("another's")
    with pytest.raises(UserError, match="left alone"), new_file.writing(path):
        raise AssertionError("the block must not run")
    assert path.read_text() == "another's"
    with pytest.raises(UserError, match="cannot be written"), new_file.writing(path / "b"):
        raise AssertionError
