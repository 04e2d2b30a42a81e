"""Features of fixed layers, computed once where only a network's end is trained.

Fixed are frozen layers, and all layers before a last linear layer that alone has parameters. The
images must not change from step to step.

The input of the trained end is then the same for an image in every step. It is computed for all
images before the first step, and steps use it instead of the images; so does the evaluation of
held-out images. Runs that share features (`shared_features`) compute them once.

*Guarantee:* Before any feature is stored, the outputs of the whole network pass the checks that
come before a first batch, at the number of images that are run together, so that the features of an
image depend on that image alone; and the end's output on them must be the network's output on the
image. Features of an earlier run have passed these checks there, are of the same network and
images, and are what the network makes of the first images now. Gradients are taken of the end,
which is checked before its own first batch; no gradient of the fixed layers is used.
"""

from __future__ import annotations

import secrets
from typing import Any

import torch
from torch import Tensor, nn

from sfumato.data.augment import Augment
from sfumato.data.progress_bar import progress
from sfumato.data.store import ImageStore
from sfumato.data.views import Views
from sfumato.errors import UserError
from sfumato.live import working
from sfumato.privacy.checks.engine_choice import refuse_mixing_outputs
from sfumato.privacy.checks.spot_check import same_among_others
from sfumato.privacy.engines.objective import Objective
from sfumato.privacy.numerics.distance import distance
from sfumato.training.initial.shared_features import shared_rows

_MOST = 4 << 30
"""Most bytes that features may take."""

_ROWS = 256
"""Most images that are run at once."""

_FEW = 3
"""Number of images that show whether features can be stored."""

_CHECKED = 32
"""Average number of batches per check, in which a batch is run again among other images."""

_MIXING = (
    "This model cannot be trained with differential privacy: what fixed layers make of an image "
    "depends on the images beside it. Look for statistics, sorts or rolls along the batch "
    "(`sfumato verify` shows the details)."
)


class Features:
    """Inputs of the trained end of a network, for every training image.

    Args:
        model: The network, on the store's device.
        path: Name of the end in the network.
        store: The training images.

    Attributes:
        end: The end, with its parameters' names in the network.
    """

    def __init__(self, model: nn.Module, path: str, store: ImageStore) -> None:
        self.path, self.end = path, End(path, model.get_submodule(path))
        self._model, self._store = model, store
        self._kept: tuple[Tensor, Tensor] | None = None

    def gather(self, indices: Tensor) -> tuple[Tensor, Tensor]:
        """Features and labels at these positions, which may repeat.

        The first call runs the fixed layers on all images, with their weights at that time.
        """
        rows, labels = self._kept = self._kept or self._all()
        where = indices.to(rows.device)
        return rows.index_select(0, where), labels.index_select(0, where)

    def held_out(self, store: ImageStore) -> tuple[Tensor, Tensor]:
        """Features and labels of held-out images, for evaluation."""
        self._model.eval()
        try:
            return self._shared(store)
        finally:
            self._model.train()

    def fits(self) -> bool:
        """Tell whether features can be stored: one tensor enters the end, which is last."""
        x, _ = _images(self._store, 0, _FEW)
        (once, output), (again, _) = self._entering(x), self._entering(x)
        if once is None or again is None or not torch.equal(once, again):
            return False
        if once.shape[0] != len(x) or once[0].numel() * 4 * len(self._store) > _MOST:
            return False
        if torch.equal(once.flatten(1), x.flatten(1)):
            return False  # No layer precedes the end.
        with torch.no_grad():
            return distance(output, self.end(once)) == 0

    def _entering(self, x: Tensor) -> tuple[Tensor | None, Tensor]:
        return entering(self._model, self.path, x)

    def _all(self) -> tuple[Tensor, Tensor]:
        with working("checking fixed layers"):
            refuse_mixing_outputs(Objective(self._model), *_images(self._store, 0))
        return self._shared(self._store, check=True)

    def _shared(self, store: ImageStore, *, check: bool = False) -> tuple[Tensor, Tensor]:
        """Inputs of the trained end for all images, computed now or in an earlier run."""

        def same(known: tuple[Tensor, Tensor]) -> bool:
            found = self._one_row_each(_images(store, 0)[0])
            return torch.equal(found, known[0][: len(found)])

        return shared_rows(
            self._model, self.path, store,
            same=same, compute=lambda: self._rows(store, check=check),
        )  # fmt: skip

    def _rows(self, store: ImageStore, *, check: bool = False) -> tuple[Tensor, Tensor]:
        """Inputs of the trained end for all images, computed in batches of one size.

        With `check`, the first batch, the last and some others run once more with half of their
        images replaced.
        """
        rows, labels = [], []
        size = store.at_once(_ROWS)
        last = max(0, len(store) - size)
        with progress("fixed layers", len(store)) as advance:
            for first in range(0, len(store), size):
                start = min(first, last)
                x, y = _images(store, start)
                found = self._one_row_each(x)
                due = start in (0, last) or secrets.randbelow(_CHECKED) == 0
                if check and due and not same_among_others(self._one_row_each, x, found):
                    raise UserError(_MIXING)
                rows.append(found[first - start :])
                labels.append(y[first - start :])
                advance(len(x) - (first - start))
        return torch.cat(rows), torch.cat(labels)

    def _one_row_each(self, x: Tensor) -> Tensor:
        found, _ = self._entering(x.clone())
        if found is None or len(found) != len(x):
            raise RuntimeError(f"what enters {self.path} is not one row for each image")
        return found


def _images(store: ImageStore, first: int, most: int = _ROWS) -> tuple[Tensor, Tensor]:
    """Some images as a step uses them, and their labels."""
    device = store.device
    where = torch.arange(first, min(first + store.at_once(most), len(store)), device=device)
    return _AS_THEY_ARE.fetch(store, where, _AS_THEY_ARE.draw(len(where)).to(device))


def entering(model: nn.Module, path: str, x: Tensor) -> tuple[Tensor | None, Tensor]:
    """The input of a part of a network, if that is one tensor in one call; and the output.

    Args:
        model: The network.
        path: Name of the part.
        x: Inputs of the network.
    """
    caught: list[tuple[tuple[Any, ...], dict[str, Any]]] = []

    def catch(_: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        caught.append((args, kwargs))

    hook = model.get_submodule(path).register_forward_pre_hook(catch, with_kwargs=True)
    try:
        with torch.no_grad():
            output: Tensor = model(x)
    finally:
        hook.remove()
    if len(caught) != 1 or len(caught[0][0]) != 1 or caught[0][1]:
        return None, output
    found = caught[0][0][0]
    return found if isinstance(found, Tensor) else None, output


class End(nn.Module):
    """A part of a network by itself; its parameters keep their names in the network."""

    def __init__(self, path: str, part: nn.Module) -> None:
        super().__init__()
        self.path = path
        holder: nn.Module = self
        *above, own = path.split(".")
        for name in above:
            holder.add_module(name, nn.Module())
            holder = holder.get_submodule(name)
        holder.add_module(own, part)

    def forward(self, x: Tensor) -> Tensor:
        """The part's output."""
        result: Tensor = self.get_submodule(self.path)(x)
        return result


def trained_end(model: nn.Module) -> str:
    """The innermost module that has all trainable parameters; empty for the model itself."""
    path, module = "", model
    while True:
        if any(p.requires_grad for p in module.parameters(recurse=False)):
            return path
        inside = [
            (name, child)
            for name, child in module.named_children()
            if any(p.requires_grad for p in child.parameters())
        ]
        if len(inside) != 1:
            return path
        name, module = inside[0]
        path = f"{path}.{name}" if path else name


def frozen_features(model: nn.Module, store: ImageStore, views: Views) -> Features | None:
    """The inputs of the trained end for every stored image, or None if they cannot be stored.

    Args:
        model: On the store's device.
        store: The training images.
        views: The views of an image in a step.
    """
    if not features_apply(model, views) or not len(store):
        return None
    found = Features(model, trained_end(model), store)
    return found if found.fits() else None


def features_apply(model: nn.Module, views: Views) -> bool:
    """Tell whether the fixed layers of a model need to run only once, if their outputs fit."""
    path = trained_end(model)
    last = isinstance(model.get_submodule(path), nn.Linear)
    frozen = any(not p.requires_grad for p in model.parameters())
    return bool(path) and (frozen or last) and views == _AS_THEY_ARE


_AS_THEY_ARE = Views(augment=Augment())
