"""Batch sizes in which the engine of a model has been checked."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from sfumato.privacy.engines.engine import Engine
from sfumato.privacy.engines.one_at_a_time import OneAtATime
from sfumato.privacy.engines.padding import with_room

_CHECK = 16
"""Batches whose computation is worth the checks of one more batch size."""


class CheckedSizes:
    """The checked batch sizes of each kind of input, with the engine for each.

    A kind of input is whatever the choice of an engine depends on except the batch size, as any
    object that can be a key.
    """

    def __init__(self) -> None:
        self._engines: dict[object, dict[int, Engine]] = {}
        self._repeating: set[object] = set()
        self._proposed: tuple[object, dict[int, Engine]] | None = None
        self._padding = self._used = 0

    def clear(self) -> None:
        """Forget all of them."""
        self._engines.clear()
        self._repeating.clear()

    def of(self, kind: object) -> dict[int, Engine]:
        """The sizes that were checked, with the engine for each."""
        return self._engines.get(kind, {})

    def find(self, kind: object, examples: int, *, padding: bool) -> tuple[Engine, int] | None:
        """The engine for so many examples and the size of the batch to run, or None.

        Args:
            kind: The kind of input.
            examples: Number of examples.
            padding: Fill batches up to a checked size.
        """
        known = self.of(kind)
        if self._proposed is not None and self._proposed[0] == kind:
            known = known | self._proposed[1]
        for size in sorted(known):
            if examples <= size:
                padded = padding and not isinstance(known[size], OneAtATime)
                return known[size], size if padded else examples
        return None

    def add(self, kind: object, size: int, engine: Engine) -> None:
        """Keep the engine for a size."""
        self._engines.setdefault(kind, {})[size] = engine
        self._padding = self._used = 0

    def is_wasteful(self, examples: int, size: int) -> bool:
        """Count padding; tell whether checking a smaller size would have cost less by now."""
        self._padding, self._used = self._padding + size - examples, self._used + examples
        better = with_room(examples)
        return better < size and self._padding > max(self._used // 4, _CHECK * better)

    def add_repeating(self, kind: object) -> None:
        """Keep that the model draws no random numbers for this kind of input."""
        self._repeating.add(kind)

    def repeats(self, kind: object) -> bool:
        """Tell whether the model is known to draw no random numbers for this kind of input."""
        return kind in self._repeating

    @contextmanager
    def proposing(self, kind: object, size: int, engine: Engine) -> Iterator[None]:
        """Use an engine for a size that is not checked, so that a batch can be compared in it."""
        self._proposed = kind, {size: engine}
        try:
            yield
        finally:
            self._proposed = None

    @property
    def has_proposal(self) -> bool:
        """Tell whether an engine is in use for a size that is not checked."""
        return self._proposed is not None
