"""Signatures of runs: what they find, and how keys are kept."""

from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path

import pytest
from cli_result import Run, refused

from sfumato.privacy.ledger import Ledger, read
from sfumato.training.signature import COVERED, SIGNATURE
from tiny_run import train_run


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return train_run(tmp_path_factory.mktemp("runs") / "run", {"privacy.accountant": "rdp"})


@pytest.fixture
def signed(sfumato: Run, trained: Path, tmp_path: Path) -> Path:
    """A signed run, the key in `me` and `me.pub`."""
    run = Path(shutil.copytree(trained, tmp_path / "run"))
    assert sfumato("sign", "--new-key", "me").code == 0
    result = sfumato("sign", "run", "--key", "me")
    assert result.code == 0 and "sfumato verify run --key me.pub" in result.out, result
    return run


def test_a_signed_run_holds(sfumato: Run, signed: Path) -> None:
    result = sfumato("verify", "run", "--key", "me.pub")
    assert result.code == 0, result
    assert "of the holder of me.pub" in result.out and "does not mean genuine" not in result.out
    unasked = sfumato("verify", "run")
    assert unasked.code == 0 and "whoever can write to the folder" in " ".join(unasked.out.split())


@pytest.mark.parametrize("name", COVERED)
@pytest.mark.parametrize("how", ["changed", "removed"])
def test_every_covered_file_is_checked(sfumato: Run, signed: Path, name: str, how: str) -> None:
    if how == "removed":
        (signed / name).unlink()
    else:
        content = bytearray((signed / name).read_bytes())
        content[-2] ^= 1
        (signed / name).write_bytes(content)
    result = sfumato("verify", "run", "--key", "me.pub")
    if (name, how) == ("recipe.toml", "changed") and result.code == 2:
        refused(result, "recipe.toml")
        return
    assert result.code == 1, result
    assert "is not the file that was signed" in " ".join(result.out.split())


def test_a_ledger_written_anew_is_consistent_but_not_signed(sfumato: Run, signed: Path) -> None:
    """The forgery that a hash chain cannot show: fewer steps, and hashes that fit."""
    header, steps = read(signed / "ledger.jsonl")
    (signed / "ledger.jsonl").unlink()
    header = {k: v for k, v in header.items() if k not in ("kind", "previous")}
    with Ledger.create(signed / "ledger.jsonl", header) as ledger:
        for number, step in enumerate(steps[:-1], start=1):
            ledger.record(number, step)
    result = sfumato("verify", "run", "--key", "me.pub")
    assert result.code == 1 and "every line follows" in result.out
    assert "ledger.jsonl is not the file that was signed" in " ".join(result.out.split())


def test_a_missing_signature_is_a_sentence(sfumato: Run, signed: Path) -> None:
    (signed / SIGNATURE).unlink()
    result = sfumato("verify", "run", "--key", "me.pub")
    assert result.code == 1 and "run is not signed" in result.out, result


def test_a_signature_by_somebody_else(sfumato: Run, signed: Path) -> None:
    assert sfumato("sign", "--new-key", "you").code == 0
    result = sfumato("verify", "run", "--key", "you.pub")
    assert result.code == 1 and "was not made with the key of you.pub" in result.out
    (signed / SIGNATURE).unlink()
    assert sfumato("sign", "run", "--key", "you").code == 0
    assert sfumato("verify", "run", "--key", "me.pub").code == 1


@pytest.mark.parametrize(
    "content",
    ["", "null", "[]", "{}", "[" * 100_000, '{"sha256": null, "signature": 1}', '{"sha256": {}}'],
)
def test_signatures_that_are_none(sfumato: Run, signed: Path, content: str) -> None:
    (signed / SIGNATURE).write_text(content)
    result = sfumato("verify", "run", "--key", "me.pub")
    assert result.code == 1 and "cannot be read as a signature" in result.out, result


def test_a_signature_about_fewer_files(sfumato: Run, signed: Path) -> None:
    content = json.loads((signed / SIGNATURE).read_text())
    del content["sha256"]["ledger.jsonl"]
    (signed / SIGNATURE).write_text(json.dumps(content))
    assert sfumato("verify", "run", "--key", "me.pub").code == 1


def test_keys_are_kept(sfumato: Run, signed: Path, tmp_path: Path) -> None:
    assert Path("me").stat().st_mode & 0o777 == 0o600
    before = Path("me").read_bytes(), Path("me.pub").read_bytes()
    refused(sfumato("sign", "--new-key", "me"), "exists already")
    Path("other.pub").write_text("mine")
    refused(sfumato("sign", "--new-key", "other"), "other.pub exists already")
    assert not Path("other").exists()
    (tmp_path / "link").symlink_to(tmp_path / "elsewhere")
    refused(sfumato("sign", "--new-key", "link"), "exists already")
    assert (Path("me").read_bytes(), Path("me.pub").read_bytes()) == before
    refused(sfumato("sign", "run", "--key", "me"), "exists already", SIGNATURE)


def test_mistakes_are_sentences(sfumato: Run, signed: Path) -> None:
    Path("text").write_text("no key")
    for key in ("text", "me", "run"):
        refused(sfumato("verify", "run", "--key", key), key)
    refused(sfumato("verify", "run", "--key", "nowhere"), "nowhere cannot be read")
    refused(sfumato("verify", "tanh-cnn", "--key", "me.pub"), "not a folder")
    (signed / SIGNATURE).unlink()
    refused(sfumato("sign", "run", "--key", "me.pub"), "not an Ed25519 private key")
    refused(sfumato("sign", "run"), "sfumato sign RUN --key FILE")
    refused(sfumato("sign", "run", "--new-key", "x"), "leave RUN and --key away")
    (signed / "statement.md").unlink()
    refused(sfumato("sign", "run", "--key", "me"), "no statement.md")


def test_a_run_that_is_not_consistent_is_not_signed(sfumato: Run, signed: Path) -> None:
    (signed / SIGNATURE).unlink()
    ledger = signed / "ledger.jsonl"
    ledger.write_bytes(ledger.read_bytes().replace(b'"q"', b'"p"', 1))
    refused(sfumato("sign", "run", "--key", "me"), "not consistent")


@pytest.mark.skipif(shutil.which("ssh-keygen") is None, reason="no ssh-keygen")
def test_keys_of_ssh_will_do(sfumato: Run, signed: Path) -> None:
    (signed / SIGNATURE).unlink()
    subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", "ssh"], check=True)
    assert sfumato("sign", "run", "--key", "ssh").code == 0
    assert sfumato("verify", "run", "--key", "ssh.pub").code == 0
