"""Failed allocations: their detection, and work in smaller parts because of them."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TypeVar

Found = TypeVar("Found")

_WORDS = re.compile(
    "out of memory"  # CUDA, HIP, MPS
    "|not enough memory"  # PyTorch's CPU allocator on Windows
    "|allocate memory"  # PyTorch's CPU allocator elsewhere, and the system calls of Unix
    "|ALLOC_FAILED"  # cuDNN, cuBLAS, cuFFT, cuSOLVER
    "|bad_alloc"  # C++
    "|could not (create|execute) a (primitive|memory)(?! desc)"  # oneDNN
    "|RESOURCE_EXHAUSTED"  # JAX
)


def out_of_memory(error: BaseException) -> bool:
    """Tell whether an allocation failed, so that less work at once may help."""
    if isinstance(error, MemoryError):  # Python's, and NumPy's.
        return True
    torch = sys.modules.get("torch")
    if torch is not None and isinstance(error, torch.OutOfMemoryError):
        return True
    return isinstance(error, RuntimeError | OSError) and bool(_WORDS.search(str(error)))


@dataclass
class BatchSize:
    """A batch size that is halved whenever the memory does not suffice.

    Attributes:
        rows: How many rows to work on at once.
    """

    rows: int

    def attempt(self, work: Callable[[int], Found]) -> Found:
        """Call `work` with the batch size, and again with half of it if the memory runs out.

        Raises:
            Exception: What `work` raises, if it is something else, or there is only one row.
        """
        while True:
            try:
                return work(self.rows)
            except Exception as error:
                if not out_of_memory(error) or self.rows <= 1:
                    raise
            # Past the handler nothing holds on to the tensors of the call that failed.
            give_back()
            self.rows //= 2

    def parts(self, count: int, work: Callable[[slice], Found]) -> Iterator[Found]:
        """Results of `work` for each part of `count` rows, one after the other."""
        first = 0

        def part(rows: int) -> Found:
            return work(slice(first, first + rows))

        while first < count:
            yield self.attempt(part)
            first += self.rows


def give_back() -> None:
    """Return the memory that PyTorch keeps for later to the GPU."""
    torch = sys.modules.get("torch")
    if torch is not None and torch.cuda.is_initialized():
        torch.cuda.empty_cache()
