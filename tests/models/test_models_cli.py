"""`sfumato models` as a user types it."""

from __future__ import annotations

import sys
from collections.abc import Callable

import pytest

from sfumato import cli, models
from thinning import with_slow


@pytest.fixture
def run(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Callable[..., tuple[int, str, str]]:
    monkeypatch.setenv("COLUMNS", "200")

    def call(*words: object) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["sfumato", "models", *map(str, words)])
        with pytest.raises(SystemExit) as left:
            cli.main()
        out, err = capsys.readouterr()
        return int(left.value.code or 0), out, err

    return call


@pytest.mark.parametrize(
    "names",
    with_slow(
        [("papernot-1", "tanh-cnn", "wrn-16-4"), tuple(models.names())], tuple(models.names())
    ),
    ids=["some", "all"],
)
def test_list_names_every_model_with_its_counts(
    run: Callable[..., tuple[int, str, str]],
    names: tuple[str, ...],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(models, "names", lambda: list(names))
    code, out, _ = run("list")
    lines = {line.split()[0]: line for line in out.splitlines() if line.strip()}
    assert code == 0 and set(models.names()) <= set(lines)
    words = lines["wrn-16-4"].split()
    assert words[1:5] == ["3×32×32", "2,752,506", "392.6M", "2,752,506"]
    assert lines["papernot-1"].split()[1:3] == ["1×28×28", "26,010"]
    assert "wrn-{depth}-{width}" in out


def test_show_counts_the_model_as_asked(run: Callable[..., tuple[int, str, str]]) -> None:
    code, out, _ = run("show", "papernot-1", "--classes", 3, "--channels", 3, "--set", "filters=4")
    count = 3 * 64 * 4 + 4 + 4 * 16 * 4 + 4 + 16 * 4 * 32 + 32 + 32 * 3 + 3
    assert code == 0
    assert f"3×28×28 images, 3 classes: {count:,} trainable parameters (published: over" in out
    assert "filters = None: a whole number of at least 1 and at most 65536 or none" in out
    assert "hidden" in out and "Linear" in out


def test_mistakes_end_with_a_sentence(run: Callable[..., tuple[int, str, str]]) -> None:
    for words, expected in (
        (("show", "resnett9"), "Did you mean 'resnet9'?"),
        (("show", "resnet9", "--size", 4), "at least 8x8 pixels"),
        (("show", "resnet9", "--set", "norm=grup"), "Did you mean 'group'?"),
        (("show", "resnet9", "--set", "norm"), "write option=value"),
    ):
        code, _, err = run(*words)
        assert code == 2 and expected in err and "Traceback" not in err
