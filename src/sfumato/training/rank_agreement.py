"""Agreement of the ranks of a run: the same recipe, versions, device, data, weights and state."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable

from safetensors.torch import load, save
from torch import device as Device
from torch import nn

from sfumato.data import Dataset
from sfumato.distributed.ranks import Ranks
from sfumato.errors import UserError
from sfumato.privacy.guarantee import current_versions
from sfumato.privacy.numerics.randomness import Randomness
from sfumato.recipe import Recipe, differences
from sfumato.training.checkpoint import Checkpoint
from sfumato.training.classifier import weights_digest


def check_alike(ranks: Ranks, recipe: Recipe, device: Device) -> None:
    """Refuse to train on ranks with different versions, devices or recipes.

    Raises:
        UserError: On every rank, with what differs.
    """
    if ranks.size == 1:
        return
    versions = current_versions()
    ranks.agree({**{f"version of {n}": v for n, v in versions.items()}, "device": _kind(device)})
    recipes = ranks.exchange(recipe.to_dict())
    for rank, theirs in enumerate(recipes):
        if changed := differences(recipes[0], theirs):
            names = ", ".join(change.split()[0] for change in changed)
            raise UserError(
                f"Rank {rank} of {ranks.size} has another recipe than rank 0: they differ in "
                f"{names}. Give all ranks the same."
            )


def load_in_turns(ranks: Ranks, read: Callable[[], Dataset]) -> Dataset:
    """Data that one rank of each machine reads first, so that the others find it decoded."""
    first = int(os.environ.get("LOCAL_RANK", ranks.rank)) == 0
    found = read() if first or ranks.size == 1 else None
    ranks.exchange()
    return read() if found is None else found


def check_data(ranks: Ranks, recipe: Recipe, data: str, model: nn.Module) -> dict[str, str]:
    """Refuse to train on ranks with different training data or initial weights.

    Args:
        ranks: The ranks.
        recipe: The recipe as this rank has it.
        data: Tag of the training data of this rank.
        model: The model as this rank has it.

    Returns:
        Digests of recipe and training data, for ranks to compare before every further release.
    """
    if ranks.size == 1:
        return {}
    written = json.dumps(recipe.to_dict(), sort_keys=True, default=str).encode()
    common = {"recipe": hashlib.sha256(written).hexdigest()[:16], "training set": data[:16]}
    ranks.agree(common | {"initial model": weights_digest(model)[:16]})
    return common


def randomness_from_leader(ranks: Ranks, own: Randomness | None) -> Randomness:
    """The randomness that rank 0 has, on every rank and in memory only."""
    if ranks.size == 1 and own is not None:
        return own
    found = ranks.from_leader(None if own is None else [own.key.hex(), own.seeded])
    return Randomness(bytes.fromhex(found[0]), bool(found[1]))


def checkpoint_from_leader(ranks: Ranks, own: Checkpoint | None) -> Checkpoint | None:
    """The checkpoint that rank 0 has read, on every rank."""
    if ranks.size == 1:
        return own
    found = ranks.from_leader(None if own is None else [own.step, own.numbers])
    if found is None:
        return None
    tensors = ranks.bytes_from_leader(b"" if own is None else save(own.tensors))
    return own or Checkpoint(found[0], load(tensors), found[1])


def _kind(device: Device) -> str:
    """The name of a device, of which noise and rounding depend."""
    if device.type != "cuda":
        return device.type
    from torch.cuda import get_device_name

    return get_device_name(device)
