"""Checkpoints: one safetensors file each, written whole, checked by a hash when read."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Tensor

from sfumato.errors import UserError
from sfumato.io import json_lines
from sfumato.io.atomic import write_whole

KEEP = 2


@dataclass
class Checkpoint:
    """The state of a run after a step.

    Attributes:
        step: Steps done.
        tensors: Every tensor, under names such as `model/conv.weight`.
        numbers: Everything else, as plain values.
    """

    step: int
    tensors: dict[str, Tensor]
    numbers: dict[str, Any]

    def part(self, prefix: str) -> dict[str, Tensor]:
        """The tensors under a prefix, without it."""
        start = f"{prefix}/"
        return {n[len(start) :]: t for n, t in self.tensors.items() if n.startswith(start)}

    def number(self, key: str) -> float:
        """One of the plain values, which must be a number of at least 1.

        Raises:
            UserError: If it is not.
        """
        value: Any = self.numbers.get(key)
        if type(value) not in (int, float) or not 1 <= value < 2**53:
            raise UserError(
                f"The checkpoint of step {self.step} is damaged: its {key} is {value!r}. Remove it "
                "to go on from the one before."
            )
        return cast(float, value)


@contextmanager
def explained(state: Checkpoint, folder: Path) -> Iterator[None]:
    """Turn errors about a checkpoint's content into a `UserError`."""
    try:
        yield
    except (KeyError, TypeError, ValueError, AttributeError, IndexError, RuntimeError) as error:
        raise UserError(
            f"The checkpoint of step {state.step} in {folder} cannot be used "
            f"({type(error).__name__}: {error}). Remove it to go on from the one before."
        ) from None


def _digest(tensors: Mapping[str, Tensor], numbers: str) -> str:
    total = hashlib.sha256(numbers.encode())
    for name in sorted(tensors):
        tensor = tensors[name]
        total.update(f"{name}{tensor.dtype}{tuple(tensor.shape)}".encode())
        total.update(tensor.cpu().contiguous().reshape(-1).view(torch.uint8).numpy().data)
    return total.hexdigest()


def write(folder: Path, checkpoint: Checkpoint) -> Path:
    """Write a checkpoint and remove all but the last two."""
    tensors = {n: t.detach().cpu().contiguous().clone() for n, t in checkpoint.tensors.items()}
    numbers = json.dumps({"step": checkpoint.step, **checkpoint.numbers}, sort_keys=True)
    metadata = {"numbers": numbers, "digest": _digest(tensors, numbers)}
    path = folder / f"step-{checkpoint.step:07d}.safetensors"
    write_whole(path, save(tensors, metadata=metadata))
    for old in _all(folder)[:-KEEP]:
        old.unlink(missing_ok=True)
    return path


def read(path: Path) -> Checkpoint | None:
    """A checkpoint, or None if the file is truncated or damaged."""
    try:
        with safe_open(path, framework="pt") as file:
            metadata = file.metadata() or {}
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
        numbers = metadata["numbers"]
        if metadata["digest"] != _digest(tensors, numbers):
            return None
        content = json_lines.parse(numbers)
        step = content.pop("step")
        return Checkpoint(step, tensors, content) if isinstance(step, int) and step >= 0 else None
    except (SafetensorError, OSError, KeyError, ValueError, TypeError, AttributeError):
        return None


def latest(folder: Path) -> tuple[Checkpoint | None, list[Path]]:
    """The newest checkpoint that is whole, and the damaged ones that are newer."""
    damaged: list[Path] = []
    for path in reversed(_all(folder)):
        checkpoint = read(path)
        if checkpoint is not None:
            return checkpoint, damaged
        damaged.append(path)
    return None, damaged


def newest_step(folder: Path) -> int:
    """The step that the newest checkpoint is named after, 0 if there is none; nothing is read."""
    steps = (path.stem.removeprefix("step-") for path in _all(folder))
    return max((int(step) for step in steps if step.isdecimal()), default=0)


def _all(folder: Path) -> list[Path]:
    return sorted(folder.glob("step-*.safetensors"))


def optimizer_state(optimizer: torch.optim.Optimizer) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """An optimizer's state as tensors (under `optimizer/`) and plain numbers."""
    state = optimizer.state_dict()["state"]
    tensors: dict[str, Tensor] = {}
    numbers: dict[str, dict[str, Any]] = {}
    for index, entries in state.items():
        for key, value in entries.items():
            if isinstance(value, Tensor):
                tensors[f"optimizer/{index}/{key}"] = value
            else:
                numbers.setdefault(str(index), {})[key] = value
    return tensors, {"optimizer": numbers}


def restore_optimizer(optimizer: torch.optim.Optimizer, checkpoint: Checkpoint) -> None:
    """Restore the state that `optimizer_state` returned."""
    state: dict[int, dict[str, Any]] = {
        int(index): dict(entries) for index, entries in checkpoint.numbers["optimizer"].items()
    }
    for name, tensor in checkpoint.part("optimizer").items():
        index, key = name.split("/")
        state.setdefault(int(index), {})[key] = tensor
    groups, first = [], 0
    for group in optimizer.param_groups:
        count = len(group["params"])
        groups.append(group | {"params": list(range(first, first + count))})
        first += count
    optimizer.load_state_dict({"state": state, "param_groups": groups})
