"""Features of fixed layers that several runs in one process use, one after the other.

Runs that differ in their rate or in their seed compute the same features, which takes most of their
time on a CPU. Outside of `sharing_features` nothing is kept.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar

import torch
from torch import Tensor, nn
from torch.nn.utils.parametrize import type_before_parametrizations

from sfumato.data.store import ImageStore

Rows = tuple[Tensor, Tensor]
"""Features and labels."""
Network = tuple[str, tuple[type, ...]]
"""The digest of a network, and the classes of its modules: classes of one name may differ."""

_ROWS = 256
"""Images whose digest is computed at once."""


class _Shared:
    """Features of one network at a time, by the images, and whether they are for training."""

    def __init__(self) -> None:
        self._network: Network | None = None
        self._of_images: dict[tuple[bool, str], Rows] = {}

    def rows(
        self,
        network: Network,
        images: tuple[bool, str],
        same: Callable[[Rows], bool],
        compute: Callable[[], Rows],
    ) -> Rows:
        """Features that are known and the same, or computed ones."""
        if network != self._network:
            self._network, self._of_images = network, {}
        known = self._of_images.get(images)
        if known is None or not same(known):
            self._of_images.pop(images, None)  # Free memory before it is needed again.
            known = self._of_images[images] = compute()
        return known


_CURRENT: ContextVar[_Shared | None] = ContextVar("shared features", default=None)


@contextmanager
def sharing_features() -> Iterator[None]:
    """Keep the features of the newest network for other runs, until the context ends."""
    if _CURRENT.get() is not None:
        yield
        return
    token = _CURRENT.set(_Shared())
    try:
        yield
    finally:
        _CURRENT.reset(token)


def shared_rows(
    model: nn.Module,
    path: str,
    store: ImageStore,
    *,
    same: Callable[[Rows], bool],
    compute: Callable[[], Rows],
) -> Rows:
    """Inputs of the trained end for these images, from an earlier run that had the same ones.

    Args:
        model: The network.
        path: Name of the end in the network; its weights do not count.
        store: The images.
        same: Compares known features of these images with what the network makes of some now.
        compute: Computes the features.
    """
    shared = _CURRENT.get()
    if shared is None:
        return compute()
    images = model.training, _digest_of_images(store)
    return shared.rows(_identity(model, path), images, same, compute)


def _identity(model: nn.Module, path: str) -> Network:
    digest = hashlib.sha256(f"{path} {model}".encode())
    for name, t in model.state_dict(keep_vars=True).items():
        if not name.startswith(f"{path}."):
            digest.update(f"{name} {t.dtype} {t.device} {tuple(t.shape)}".encode())
            digest.update(_bytes(t))
    # A parametrised module has a class of its own, made for it alone.
    classes = tuple(type_before_parametrizations(module) for module in model.modules())
    return digest.hexdigest(), classes


def _digest_of_images(store: ImageStore) -> str:
    digest = hashlib.sha256(f"{len(store)} {store.device}".encode())
    for start in range(0, len(store), _ROWS):
        images, labels = store.gather(torch.arange(start, min(start + _ROWS, len(store))))
        if not start:
            digest.update(_bytes(store.normalise(images[:1] * 0)))  # Mean and deviation.
            digest.update(_bytes(store.normalise(torch.ones_like(images[:1]))))
        digest.update(f"{images.dtype} {tuple(images.shape)}".encode())
        digest.update(_bytes(images))
        digest.update(_bytes(labels))
    return digest.hexdigest()


def _bytes(t: Tensor) -> bytes:
    return t.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes()
