"""Signs of life between ranks, so that one that hangs or vanishes ends the run on all."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from datetime import timedelta

from torch.distributed import TCPStore  # type: ignore[attr-defined]
from torch.distributed.distributed_c10d import Store

from sfumato.distributed.ranks import Ranks

SECONDS = 5.0
"""Time between two signs of life."""

MISSED = 10
"""Signs of life that a rank may miss. It is then known to all ranks within a minute."""

_ENDED = 1 << 40


@contextmanager
def watched(ranks: Ranks, lost: Callable[[str], None]) -> Iterator[None]:
    """Watch the next rank during a `with` block, as the rank before watches this one.

    A process that ends closes its connections, which the others notice at once. One that is
    stopped, or whose machine is switched off or disconnected, does not. The ranks form a ring: of
    any that vanish, at least one is watched by a rank that is left.

    Args:
        ranks: The ranks, which have met at the address that the environment names.
        lost: Called in another thread with a sentence if the next rank gives no sign of life for
            `MISSED` times `SECONDS`. It ends the process.
    """
    host, port = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
    store = TCPStore(host, port, is_master=False, timeout=timedelta(seconds=30))
    watch = _Watch(ranks, store, lost)
    for work in (watch.exchange_signs, watch.count_missed):
        threading.Thread(target=work, daemon=True).start()
    try:
        yield
    finally:
        watch.end()


class _Watch:
    """One rank's signs of life, and those of the next rank."""

    def __init__(self, ranks: Ranks, store: Store, lost: Callable[[str], None]) -> None:
        self._ranks, self._store, self._lost = ranks, store, lost
        self._next = (ranks.rank + 1) % ranks.size
        self._done = threading.Event()
        self._missed = 0

    def exchange_signs(self) -> None:
        """Count up the number of this rank in the store, and look at that of the next one."""
        last = -1
        while not self._done.is_set():
            # A store that does not answer is a sign that is missed.
            with suppress(RuntimeError):
                self._store.add(self._key(self._ranks.rank), 1)
                seen = self._store.add(self._key(self._next), 0)
                if seen >= _ENDED:
                    return self._done.set()
                if seen != last:
                    last, self._missed = seen, 0
            self._done.wait(SECONDS)

    def count_missed(self) -> None:
        """Count intervals without a sign of the next rank, since the store may never answer.

        Intervals are counted rather than seconds, because time passes for a process that is stopped
        with all others and goes on with them.
        """
        while not self._done.wait(SECONDS):
            self._missed += 1
            if self._missed > MISSED:
                self._done.set()
                self._lost(
                    f"Rank {self._next} of {self._ranks.size} has given no sign of life for "
                    f"{MISSED * SECONDS:g} seconds, and the run cannot go on without it. If the "
                    "run has a folder, `sfumato train --resume FOLDER` continues it with any "
                    "number of processes."
                )

    def end(self) -> None:
        """Tell the rank that watches this one not to wait for it any more."""
        self._done.set()
        with suppress(RuntimeError):
            self._store.add(self._key(self._ranks.rank), _ENDED)

    def _key(self, rank: int) -> str:
        return f"alive/{os.environ.get('TORCHELASTIC_RESTART_COUNT', '0')}/{rank}"
