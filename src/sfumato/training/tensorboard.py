"""Stream of a run's metrics to TensorBoard, in `RUN/tensorboard` beside `metrics.jsonl`."""

from __future__ import annotations

import importlib.util
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from sfumato.errors import UserError
from sfumato.training import metrics

FOLDER = "tensorboard"

_GROUPS = {
    "loss": "loss/training batches",
    "validation_loss": "loss/validation",
    "train_accuracy": "accuracy/training batches",
    "validation_accuracy": "accuracy/validation",
    "validation_accuracy_last": "accuracy/validation, not averaged",
    "test_accuracy": "accuracy/test, at the end",
    "test_accuracy_last": "accuracy/test, at the end, not averaged",
    "epsilon": "privacy/epsilon spent",
    "clipped": "privacy/clipped fraction",
    "clip": "privacy/clipping norm",
    "not_finite": "privacy/gradients not finite",
    "lr": "training/learning rate",
    "views_per_second": "training/views per second",
    "seconds": "training/seconds",
}


class Stream:
    """Writer of the records of one run.

    When an interrupted run resumes, TensorBoard drops the records of later steps, as
    `metrics.jsonl` does.
    """

    def __init__(self) -> None:
        self._writer: Any = None
        self._began = time.time()

    def __call__(self, folder: Path, record: Mapping[str, Any]) -> None:
        """Write the numbers of a record of the run in `folder`.

        *Guarantee:* numbers of a record without a time get that of the run's beginning, so that
        nothing is revealed about how long steps took.
        """
        step = int(record["step"])
        when = None if "time" in record else self._began
        if self._writer is None:
            from torch.utils.tensorboard import SummaryWriter

            self._writer = SummaryWriter(str(folder / FOLDER), purge_step=step)
        for key, value in record.items():
            if key == "step" or isinstance(value, bool) or not isinstance(value, int | float):
                continue
            self._writer.add_scalar(_GROUPS.get(key, f"other/{key}"), value, step, walltime=when)
        self._writer.flush()

    def close(self) -> None:
        """Close the file."""
        if self._writer is not None:
            self._writer.close()


@contextmanager
def streaming() -> Iterator[None]:
    """Stream the metrics of the run that is trained inside this block.

    Raises:
        UserError: If TensorBoard is not installed.
    """
    if importlib.util.find_spec("tensorboard") is None:
        raise UserError(
            "--tensorboard needs TensorBoard, which is not installed: `pip install tensorboard`. "
            "Without it the same numbers are in the run's metrics.jsonl."
        )
    stream = Stream()
    try:
        with metrics.listening(stream):
            yield
    finally:
        stream.close()
