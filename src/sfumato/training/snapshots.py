"""Snapshots: the weights at evenly spaced steps of a run, for analysis.

They are stored in the run folder as `snapshots/step-NNNNNNN.safetensors`, with the network's own
names.

*Guarantee:* The weights after a step are made of noisy gradients that the ledger already counts, so
storing, reading and publishing any number of them costs no privacy. The caller has the ledger on
disk before the snapshot of a step is written, as for every file that depends on the step.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path

from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Tensor, nn

from sfumato.errors import UserError
from sfumato.io.atomic import write_whole
from sfumato.training.run_folder import without_clock

SNAPSHOTS = "snapshots"
_NAME = re.compile(r"step-(\d{7,})\.safetensors")


def due(step: int, steps: int, count: int) -> bool:
    """Tell whether the weights after `step` of `steps` are among `count` evenly spaced ones.

    The first snapshot is that of step 0, before training, and the last that of step `steps`; a
    single one is the last. Where there are fewer steps than snapshots every step is due.
    """
    if count < 1 or not 0 <= step <= steps:
        return False
    gaps = count - 1
    if gaps == 0 or steps == 0:
        return step == steps
    if gaps >= steps:
        return True
    nearest = step * gaps // steps
    return any(_position(k, steps, gaps) == step for k in (nearest, nearest + 1))


def _position(index: int, steps: int, gaps: int) -> int:
    """The step of a snapshot, rounded to the nearest integer."""
    return (2 * index * steps + gaps) // (2 * gaps)


def keep(folder: Path, model: nn.Module, step: int, steps: int, count: int) -> None:
    """Write the snapshot of a step if it is due; call with step 0 before training, then after each.

    Args:
        folder: The run folder.
        model: The network after the step.
        step: Steps taken.
        steps: Steps that the run will take.
        count: Number of snapshots (`training.snapshots`).
    """
    if due(step, steps, count):
        without_clock(write(folder, step, model.state_dict()), folder)


def write(folder: Path, step: int, state: Mapping[str, Tensor]) -> Path:
    """Write one snapshot, whole or not at all; an existing one is left as it is."""
    where = folder / SNAPSHOTS
    path = where / f"step-{step:07d}.safetensors"
    if path.exists():
        return path
    where.mkdir(exist_ok=True)
    for left in where.glob(".*.????????"):
        left.unlink(missing_ok=True)
    tensors = {name: t.detach().cpu().contiguous().clone() for name, t in state.items()}
    write_whole(path, save(tensors, metadata={"step": str(step)}))
    return path


def forget(folder: Path, *, after: int) -> None:
    """Remove the snapshots of later steps, which a resumed run is about to take again.

    Their noise will be the same, but sums may be rounded differently: the difference of two
    versions of a step would hold no noise.
    """
    for step, path in read(folder):
        if step > after:
            path.unlink()


def read(folder: Path) -> list[tuple[int, Path]]:
    """The snapshots of a run folder as steps and files, in the order of steps."""
    found = []
    for path in (folder / SNAPSHOTS).glob("step-*.safetensors"):
        match = _NAME.fullmatch(path.name)
        if match and path.is_file():
            found.append((int(match[1]), path))
    return sorted(found)


def tensors(path: Path) -> dict[str, Tensor]:
    """The weights of one snapshot.

    Raises:
        UserError: If the file cannot be read.
    """
    try:
        with safe_open(path, framework="pt") as file:
            return {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    except (SafetensorError, OSError) as error:
        raise UserError(f"The snapshot {path} cannot be read: {error}.") from None
