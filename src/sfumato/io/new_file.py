"""Files that a command makes: new, whole, and never in place of what is there."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import IO

from sfumato.errors import UserError


def check(path: Path, *, option: str = "--out", endings: Sequence[str] = ()) -> None:
    """Refuse, before the work is done, a file that could not be made after it.

    Args:
        path: The file.
        option: What the user named it with.
        endings: What its name may end in; anything if empty.
    """
    if endings and path.suffix.lower() not in endings:
        raise UserError(f"{path}: a name given to {option} must end in {', '.join(endings)}.")
    if path.exists() or path.is_symlink():
        raise UserError(_there(path, option))
    folder = path.absolute().parent
    if not folder.is_dir():
        raise UserError(f"{path}: there is no folder {folder}. Make it, or give another {option}.")
    if not os.access(folder, os.W_OK | os.X_OK):
        raise UserError(f"{path}: the folder {folder} cannot be written to. Give another {option}.")


@contextmanager
def writing(path: Path, *, option: str = "--out") -> Iterator[IO[bytes]]:
    """A new file, which is there whole when the block ends well, and not at all otherwise."""
    try:
        path.touch(exist_ok=False)
    except FileExistsError:
        raise UserError(_there(path, option)) from None
    except OSError as error:
        raise UserError(
            f"{path} cannot be written ({error.strerror}): give another {option}."
        ) from None
    name = ""
    try:
        handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
        with open(handle, "wb") as file:
            yield file
        shutil.copymode(path, name)
        os.replace(name, path)
    except BaseException as error:
        path.unlink(missing_ok=True)
        if name:
            Path(name).unlink(missing_ok=True)
        if isinstance(error, OSError):
            raise UserError(f"{path} cannot be written: {error.strerror}.") from None
        raise


def _there(path: Path, option: str) -> str:
    return f"{path} exists already and is left alone: give another {option}."
