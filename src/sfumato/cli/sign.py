"""`sfumato sign`: vouch for a run with a key of one's own."""

from __future__ import annotations

import shlex
from pathlib import Path

import typer

from sfumato.cli.terminal import echo
from sfumato.errors import UserError


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command()(sign)


def sign(
    run: Path = typer.Argument(None, metavar="RUN", help="A finished run folder."),
    key: Path = typer.Option(None, metavar="FILE", help="Your private key (Ed25519)."),
    new_key: Path = typer.Option(
        None, metavar="FILE", help="Make a key pair instead: FILE and FILE.pub."
    ),
) -> None:
    """Sign a run's ledger, statement, guarantee, recipe and weights, so that others can check.

    Whoever has your public key checks them with `sfumato verify RUN --key FILE.pub`.
    """
    from sfumato.report.runs import gather
    from sfumato.training import signature

    if new_key is not None:
        if run is not None or key is not None:
            raise UserError("--new-key FILE makes a key pair: leave RUN and --key away.")
        public = signature.new_key(new_key)
        echo(f"Written: {new_key} (keep it secret) and {public} (give it to others).")
        return
    if run is None or key is None:
        raise UserError(
            "Give a run and your private key: `sfumato sign RUN --key FILE`. `sfumato sign "
            "--new-key FILE` makes a key."
        )
    (found,) = gather([run])
    if found.problems:
        raise UserError(f"{run} is not signed, because it is not consistent: {found.problems[0]}")
    path = signature.sign(run, key)
    check = f"sfumato verify {shlex.quote(str(run))} --key {shlex.quote(f'{key}.pub')}"
    echo(f"Written: {path}. To check it: {check}")
