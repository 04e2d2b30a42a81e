"""The signature of a run's ledger, statement, guarantee, recipe and weights.

The hash chain of a ledger shows that its lines belong together. It cannot show who wrote them:
anyone who can write to the folder can write a consistent ledger anew. A signature (Ed25519) shows
that the holder of a key signed these very files.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import json
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sfumato.errors import UserError
from sfumato.io import json_lines, new_file
from sfumato.training import run_folder

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ed25519 import (
        Ed25519PrivateKey,
        Ed25519PublicKey,
    )

SIGNATURE = "signature.json"
COVERED = (
    run_folder.LEDGER,
    run_folder.STATEMENT,
    run_folder.GUARANTEE,
    run_folder.RECIPE,
    run_folder.WEIGHTS,
)
"""The files that a signature covers; runs of older versions hold no guarantee.json."""

_PURPOSE = "sfumato run signature, version 1"


class BadSignature(UserError):
    """A run without a signature, or with an invalid one."""


def new_key(path: Path) -> Path:
    """Make a key pair: the private key at `path`, the public one beside it with `.pub` added.

    Guarantee: Nobody but the owner of the file can read the private key, and no file is
    overwritten.

    Returns:
        The file of the public key.
    """
    from cryptography.hazmat.primitives import serialization
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

    public = path.with_name(f"{path.name}.pub")
    for file in (path, public):
        new_file.check(file, option="--new-key")
    key = Ed25519PrivateKey.generate()
    private = key.private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.PKCS8,
        serialization.NoEncryption(),
    )
    shared = key.public_key().public_bytes(
        serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo
    )
    for file, content, mode in ((path, private, 0o600), (public, shared, 0o644)):
        # Created with its mode, so that others can never read the private key.
        handle = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode)
        with os.fdopen(handle, "wb") as written:
            written.write(content)
    return public


def sign(folder: Path, key: Path) -> Path:
    """Sign a finished run with a private key, in a new file `signature.json`.

    Raises:
        UserError: If the run has not finished or is signed already, or the key cannot be used.
    """
    path = folder / SIGNATURE
    if path.exists() or path.is_symlink():
        raise UserError(f"{path} exists already and is left alone: remove it to sign again.")
    covered = _covered(folder)
    for name in covered:
        if not (folder / name).is_file():
            raise UserError(
                f"{folder} cannot be signed: it holds no {name}. Give the folder of a finished run."
            )
    private = _private_key(key)
    digests = {name: _digest(folder / name) for name in covered}
    content = {
        "version": 1,
        "algorithm": "ed25519",
        "sha256": digests,
        "signature": base64.b64encode(private.sign(_message(digests))).decode(),
    }
    with new_file.writing(path, option="folder") as file:
        file.write((json.dumps(content, indent=1) + "\n").encode())
    return path


def check(folder: Path, key: Path) -> None:
    """Check that the holder of a key has signed the files of a run as they are now.

    Guarantee: Returns only if the signature is of this key over the SHA-256 of the ledger, the
    statement, the guarantee, the recipe and the weights that the folder holds. No key in the
    folder is trusted.

    Raises:
        BadSignature: If the run is not signed, or the signature is invalid.
        UserError: If the key cannot be read.
    """
    from cryptography.exceptions import InvalidSignature

    public = _public_key(key)
    digests, signature = _read(folder / SIGNATURE)
    try:
        public.verify(signature, _message(digests))
    except InvalidSignature:
        raise BadSignature(
            f"{folder / SIGNATURE} was not made with the key of {key}, or was changed."
        ) from None
    for name in {*_covered(folder), *digests}:
        if not (folder / name).is_file() or _digest(folder / name) != digests.get(name):
            raise BadSignature(
                f"{folder / name} is not the file that was signed: it was changed, replaced or "
                "removed since."
            )


def _covered(folder: Path) -> tuple[str, ...]:
    there = (folder / run_folder.GUARANTEE).is_file()
    return COVERED if there else tuple(name for name in COVERED if name != run_folder.GUARANTEE)


def _message(digests: dict[str, str]) -> bytes:
    """The signed bytes, with their purpose, so that no other signature is mistaken for it."""
    return json.dumps({"purpose": _PURPOSE, "sha256": digests}, sort_keys=True).encode()


def _digest(path: Path) -> str:
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _read(path: Path) -> tuple[dict[str, str], bytes]:
    if not path.is_file():
        raise BadSignature(f"{path.parent} is not signed: it holds no {path.name}.")
    try:
        content: Any = json_lines.parse(path.read_bytes())
        digests, text = content["sha256"], content["signature"]
        if {*digests, run_folder.GUARANTEE} != set(COVERED) or not all(
            isinstance(d, str) for d in digests.values()
        ):
            raise ValueError(f"it is not about {', '.join(COVERED)}")
        return dict(digests), base64.b64decode(text, validate=True)
    except (ValueError, KeyError, TypeError, AttributeError, binascii.Error) as error:
        raise BadSignature(f"{path} cannot be read as a signature: {error}.") from None


def _private_key(path: Path) -> Ed25519PrivateKey:
    from cryptography.hazmat.primitives import serialization
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

    content = _key_bytes(path)
    readers = (serialization.load_pem_private_key, serialization.load_ssh_private_key)
    for read in readers:
        try:
            key = read(content, None)
        except TypeError:
            raise UserError(
                f"{path} is protected by a passphrase: give a key without one."
            ) from None
        except Exception:
            continue
        if isinstance(key, Ed25519PrivateKey):
            return key
    raise UserError(
        f"{path} is not an Ed25519 private key: `sfumato sign --new-key FILE` makes one."
    )


def _public_key(path: Path) -> Ed25519PublicKey:
    from cryptography.hazmat.primitives import serialization
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

    content = _key_bytes(path)
    for read in (serialization.load_pem_public_key, serialization.load_ssh_public_key):
        try:
            key = read(content)
        except Exception:
            continue
        if isinstance(key, Ed25519PublicKey):
            return key
    raise UserError(
        f"{path} is not an Ed25519 public key: --key takes the file that ends in .pub, of whoever "
        "signed the run."
    )


def _key_bytes(path: Path) -> bytes:
    try:
        return path.read_bytes()[: 1 << 16]
    except OSError as error:
        raise UserError(f"The key {path} cannot be read: {error.strerror}.") from None
