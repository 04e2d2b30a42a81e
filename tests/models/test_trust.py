"""The gate for code outside sfumato, attacked by names and modules of every kind."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from torch import nn

import sfumato
from sfumato.errors import UntrustedCodeError, UserError
from sfumato.models import Trust, create, create_trusted

MINE = """
import functools, pathlib, subprocess
from subprocess import Popen, getoutput
from torch import nn
from torch.nn import Identity

pathlib.Path(__file__).with_suffix(".ran").touch()

def net(classes=2):
    return nn.Linear(1, classes)

@functools.lru_cache
def cached(): return nn.Identity()

@functools.wraps(net)
def wrapped(classes): return nn.Identity()

class Net(nn.Module): pass
class Plain: pass

partial = functools.partial(net, classes=3)
disguised = eval("lambda: getoutput('true')", vars(subprocess))
disguised.__module__ = __name__
class _Callable:
    __class__ = type(net)
    def __call__(self): return nn.Identity()
called = _Callable()
"""


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    before = set(sys.modules)
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("SFUMATO_MODELS", raising=False)
    yield tmp_path
    for name in set(sys.modules) - before:
        del sys.modules[name]


def build(name: str, trust: Trust, **options: object) -> nn.Module:
    return create_trusted(name, options, classes=2, channels=1, size=4, trust=trust)


@pytest.mark.parametrize("trusted", [(), ("trust_b",), ("trust_mine.net",), ("trust_mine:Net",)])
def test_a_module_that_the_user_did_not_name_is_not_imported(
    place: Path, trusted: tuple[str, ...]
) -> None:
    (place / "trust_mine.py").write_text(MINE)
    with pytest.raises(UntrustedCodeError, match="--trust-code trust_mine "):
        build("trust_mine:net", Trust(trusted))
    assert not (place / "trust_mine.ran").exists() and "trust_mine" not in sys.modules


def test_a_module_that_the_user_named_is(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (place / "trust_mine.py").write_text(MINE)
    assert isinstance(build("trust_mine:net", Trust(("trust_mine",))), nn.Linear)
    assert isinstance(build("trust_mine:net", Trust(("trust_mine:net",))), nn.Linear)
    assert isinstance(build("trust_mine:Identity", Trust(("trust_mine",))), nn.Identity)
    assert isinstance(build("trust_mine:wrapped", Trust(("trust_mine",))), nn.Identity)
    with pytest.raises(UntrustedCodeError):
        build("trust_mine:net", Trust())
    monkeypatch.setenv("SFUMATO_MODELS", "others, trust_mine")
    assert isinstance(build("trust_mine:net", Trust()), nn.Linear)


def test_a_package_does_not_vouch_for_what_is_in_it(place: Path) -> None:
    with pytest.raises(UntrustedCodeError, match=r"--trust-code torch\.hub "):
        build("torch.hub:load", Trust(("torch",)), repo_or_dir="someone/something", model="m")


@pytest.mark.parametrize(
    "attribute", ["Popen", "getoutput", "disguised", "partial", "Plain", "called", "cached"]
)
def test_only_own_functions_and_modules_of_a_trusted_module_are_called(
    place: Path, attribute: str
) -> None:
    (place / "trust_mine.py").write_text(MINE)
    with pytest.raises(UserError, match=r"must be a Python function|only imports from another"):
        build(f"trust_mine:{attribute}", Trust(("trust_mine",)))


def test_a_function_from_elsewhere_is_called_if_named_in_full(
    place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (place / "trust_there.py").write_text("from torch import nn\ndef f(): return nn.Identity()\n")
    (place / "trust_here.py").write_text("from trust_there import f\n")
    with pytest.raises(UserError, match=r"--trust-code trust_here:f[.]"):
        build("trust_here:f", Trust(("trust_here", "trust_there")))
    assert isinstance(build("trust_here:f", Trust(("trust_here:f",))), nn.Identity)
    assert isinstance(create("trust_here:f"), nn.Identity), "typed by the user himself"
    monkeypatch.setenv("SFUMATO_MODELS", "trust_here:f")
    assert isinstance(build("trust_here:f", Trust()), nn.Identity)


@pytest.mark.parametrize(
    "name",
    [
        ".net:Net", "..net:Net", ":Net", "net:", "net:a.b", "net:a:b", "a..b:c", "a/b:c", "a b:c",
        "subprocess:Popen.__init__", "net:__class__()", "\x1b[2Jnet:Net", "ne\nt:Net", "-m:net",
    ],
)  # fmt: skip
def test_names_that_are_none(place: Path, name: str) -> None:
    with pytest.raises(UserError, match="write ") as found:
        build(name, Trust(("net", "subprocess", "a")))
    assert not isinstance(found.value, UntrustedCodeError)


@pytest.mark.parametrize(
    "name", ["builtins:exec", "builtins:eval", "os:system", "subprocess:Popen"]
)
def test_what_is_no_python_function_is_never_called(place: Path, name: str) -> None:
    with pytest.raises(UserError, match="must be a Python function"):
        build(name, Trust((name, name.partition(":")[0])), args="true")


@pytest.mark.parametrize("word", ["./net.py", "net.py/", "", "a b", "net:", "*"])
def test_a_trusted_name_is_a_module_s(word: str) -> None:
    with pytest.raises(UserError, match="--trust-code takes the name of a module"):
        Trust((word,))


def evil(folder: Path, name: str = "trust_evil.py") -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / name).write_text(MINE)
    return folder


def ran(place: Path) -> bool:
    return any(place.rglob("*.ran"))


@pytest.mark.parametrize("how", ["cwd", "below", "package", "path", "linked run", "link to it"])
def test_no_code_comes_from_the_run_s_own_folder(
    place: Path, monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    run, name = place / "trust_run", "trust_evil"
    evil(run)
    given = run
    if how == "cwd":
        monkeypatch.chdir(run)
    elif how == "below":
        name = "trust_run.trust_evil"
    elif how == "package":
        evil(run, "__init__.py")
        name = "trust_run"
    elif how == "path":
        monkeypatch.syspath_prepend(str(run))
    elif how == "linked run":
        (place / "link").symlink_to(run)
        given = place / "link"
        monkeypatch.chdir(run)
    else:
        (place / "trust_evil.py").symlink_to(run / "trust_evil.py")
    with pytest.raises(UserError, match="lies in the run folder"):
        build(f"{name}:net", Trust((name,), folders=(given,)))
    assert not ran(place)


def test_a_folder_with_a_ledger_is_a_run_whoever_names_it(place: Path) -> None:
    evil(place / "trust_other")
    (place / "trust_other" / "ledger.jsonl").touch()
    with pytest.raises(UserError, match="lies in the run folder"):
        build(
            "trust_other.trust_evil:net",
            Trust(("trust_other.trust_evil",), marks=("ledger.jsonl",)),
        )
    assert not ran(place)


def test_trusted_code_imports_nothing_from_the_run_either(
    place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    home, run = place / "home", evil(place / "run")
    home.mkdir()
    (home / "trust_good.py").write_text(
        "from torch import nn\n"
        "try:\n    import trust_evil\nexcept ImportError:\n    trust_evil = None\n"
        "def net():\n"
        "    try:\n        import trust_evil\n"
        "    except ImportError:\n        return nn.Identity()\n"
    )
    monkeypatch.syspath_prepend(str(home))
    monkeypatch.chdir(run)
    found = build("trust_good:net", Trust(("trust_good",), folders=(run,)))
    assert isinstance(found, nn.Identity) and not ran(place)
    hooks = [type(finder).__name__ for finder in sys.meta_path]
    assert "_OutsideOfRuns" not in hooks


def test_what_was_imported_before_is_judged_by_where_it_lies(
    place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = evil(place / "run")
    monkeypatch.syspath_prepend(str(run))
    __import__("trust_evil")
    with pytest.raises(UserError, match="lies in the run folder"):
        build("trust_evil:net", Trust(("trust_evil",), folders=(run,)))


def test_names_read_from_files_always_go_through_the_gate() -> None:
    """`create`, which trusts the name that it is given, is for names that a user typed."""
    home = Path(sfumato.__file__).parent
    typed = {"cli/verify.py", "bench/feed.py", "models/_summary.py"}
    found = set()
    for path in home.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Call) and ast.unparse(node.func) in ("models.create", "create"):
                found.add(path.relative_to(home).as_posix())
    assert found == typed


def test_python_m_takes_nothing_from_the_current_folder(tmp_path: Path) -> None:
    mark = tmp_path / "ran"
    for name in ("typer", "rich", "torch"):
        (tmp_path / f"{name}.py").write_text(f"open({str(mark)!r}, 'w')\n")
    done = subprocess.run(
        [sys.executable, "-m", "sfumato", "--version"], cwd=tmp_path, capture_output=True, text=True
    )
    assert not mark.exists() and done.returncode == 0, done.stderr
