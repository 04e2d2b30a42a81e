"""Weights that come with sfumato, to start from: `NAME/MODEL.safetensors`.

None of them has seen an image of the world, see `sfumato.training.initial.prior`.
"""

from __future__ import annotations

import hashlib
from pathlib import Path

from sfumato.errors import UserError

_ROOT = Path(__file__).parent


def packaged() -> dict[str, list[str]]:
    """The models that there are packaged weights of, by the name of the start."""
    found: dict[str, list[str]] = {}
    for path in sorted(_ROOT.glob("*/*.safetensors")):
        found.setdefault(path.parent.name, []).append(path.stem)
    return found


def find(name: str, model: str) -> Path | None:
    """The packaged weights of a model, or None if that is not the name of a packaged start.

    Raises:
        UserError: If there are such weights, but not of this model.
    """
    models = packaged().get(name)
    if models is None:
        return None
    if model not in models:
        raise UserError(
            f"The start '{name}' is packaged for {', '.join(models)}, not for '{model}': choose "
            f"`--model {models[0]}`, or make one with `sfumato pretrain --data {name} --model "
            f"{model}` and start from its folder."
        )
    return _ROOT / name / f"{model}.safetensors"


def digest(path: Path) -> str:
    """SHA-256 of a weights file."""
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
