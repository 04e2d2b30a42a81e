"""The Hessian of the mean loss in the trained parameters: products with vectors, and its trace.

Nothing larger than a few vectors of the parameters' length is ever held;
`sfumato.analysis.spectrum` finds eigenvalues from products alone.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.overrides import TorchFunctionMode

from sfumato.errors import UserError
from sfumato.memory import BatchSize
from sfumato.privacy.numerics.precision import full_precision, widest

Loss = Callable[[Tensor, Tensor], Tensor]
Advance = Callable[[int], None]

PHYSICAL_BATCH = 128
"""Examples differentiated at once."""


def mean_cross_entropy(outputs: Tensor, targets: Tensor) -> Tensor:
    """Cross-entropy, averaged over examples."""
    return F.cross_entropy(outputs, targets)


class _TwiceDifferentiable(TorchFunctionMode):
    """Writes Mish out: PyTorch's own second derivative of it is NaN in float32 from 89 on."""

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: object,
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        if func is F.mish:
            x = args[0] if args else (kwargs or {})["input"]
            return x * torch.tanh(F.softplus(x))
        return func(*args, **(kwargs or {}))


class Hessian:
    """The second derivatives of a model's mean loss over some examples, as a linear map.

    The model is used in eval mode and left as it was. Reparametrised weights are differentiated
    through, so the coordinates are those that training moves.

    Args:
        model: Any twice differentiable module from inputs to outputs.
        x: Inputs `(n, ...)`.
        y: Targets `(n, ...)`.
        loss: From outputs and targets to the *mean* loss of the rows given.
        dtype: Compute in this precision, on a copy of the model; the model's own if None.
        physical_batch: Rows differentiated at once; fewer if the memory does not suffice. If all
            rows fit into one, its graph is kept, which halves the time of every product.

    Attributes:
        size: The number of trainable parameters n; the Hessian is n by n.
        products: Products taken so far.
    """

    def __init__(
        self,
        model: nn.Module,
        x: Tensor,
        y: Tensor,
        *,
        loss: Loss = mean_cross_entropy,
        dtype: torch.dtype | None = None,
        physical_batch: int = PHYSICAL_BATCH,
    ) -> None:
        if not len(y):
            raise UserError("There are no images to take the curvature on.")
        if physical_batch < 1:
            raise ValueError(
                f"physical_batch = {physical_batch}, but at least one example is needed"
            )
        if dtype is not None and any(p.dtype != dtype for p in model.parameters()):
            model = copy.deepcopy(model).to(dtype)
        like = next(model.parameters())
        self.model, self.loss, self._batch = model, loss, BatchSize(physical_batch)
        self.x, self.y = x.to(like.device, like.dtype), y.to(like.device)
        self.parameters = [p for p in model.parameters() if p.requires_grad]
        if not self.parameters:
            raise UserError("The model has no trainable parameters, so its loss has no curvature.")
        self.size = sum(p.numel() for p in self.parameters)
        self.device, self.dtype = like.device, like.dtype
        self.products = 0
        self._kept: tuple[Tensor, ...] | None = None

    def __matmul__(self, vector: Tensor) -> Tensor:
        """H v, for `v` of shape `(size,)`."""
        parts = self._split(vector.to(self.device, self.dtype))

        def product(slopes: tuple[Tensor, ...]) -> Tensor | None:
            if not any(s.requires_grad for s in slopes):
                return None
            products = torch.autograd.grad(
                [s for s in slopes if s.requires_grad],
                self.parameters,
                [v for s, v in zip(slopes, parts, strict=True) if s.requires_grad],
                retain_graph=self._kept is not None,
                materialize_grads=True,
            )
            return _flat(products)

        total = self._mean(product)
        self.products += 1
        if not bool(torch.isfinite(total).all()):
            raise UserError(
                "The curvature is not finite: the weights have diverged, or an image holds NaN."
            )
        return total

    def gradient(self) -> Tensor:
        """The gradient of the mean loss, flattened like the rows of the Hessian."""
        return self._mean(lambda slopes: _flat(slopes).detach())

    def _mean(self, of: Callable[[tuple[Tensor, ...]], Tensor | None]) -> Tensor:
        """The mean over all rows of a function of each part's gradient; None counts as zero."""

        def mean(rows: int) -> Tensor:
            if rows < len(self.y):
                self._kept = None
            total = torch.zeros(self.size, device=self.device, dtype=self.dtype)
            for share, slopes in self._slopes(rows):
                if (part := of(slopes)) is not None:
                    total += share * part
            return total

        with self._quiet():
            return self._batch.attempt(mean)

    def dense(self, *, advance: Advance | None = None) -> Tensor:
        """The whole matrix, symmetrised; for small models only."""
        rows = []
        for k in range(self.size):
            unit = torch.zeros(self.size, device=self.device, dtype=self.dtype)
            unit[k] = 1
            rows.append(self @ unit)
            if advance:
                advance(1)
        matrix = torch.stack(rows)
        return (matrix + matrix.T) / 2

    def _slopes(self, rows: int) -> Iterator[tuple[float, tuple[Tensor, ...]]]:
        """The gradient of each part's mean loss with its graph, and the part's share of rows."""
        if self._kept is not None:
            yield 1.0, self._kept
            return
        for x, y in zip(torch.split(self.x, rows), torch.split(self.y, rows), strict=True):
            with _TwiceDifferentiable():
                loss = self.loss(self.model(x), y)
            if loss.dim():
                raise ValueError("the loss must be the mean over rows, a single number")
            slopes = torch.autograd.grad(
                loss, self.parameters, create_graph=True, materialize_grads=True
            )
            if len(y) == len(self.y):
                self._kept = slopes
            yield len(y) / len(self.y), slopes

    def _split(self, vector: Tensor) -> list[Tensor]:
        if vector.shape != (self.size,):
            raise ValueError(f"a vector of shape ({self.size},) is needed, not {vector.shape}")
        pieces = torch.split(vector, [p.numel() for p in self.parameters])
        return [v.view_as(p) for v, p in zip(pieces, self.parameters, strict=True)]

    @contextmanager
    def _quiet(self) -> Iterator[None]:
        """Eval mode, gradients on, full precision, and attention that has second derivatives."""
        modes = {module: module.training for module in self.model.modules()}
        self.model.eval()
        with ExitStack() as stack:
            stack.enter_context(torch.enable_grad())
            stack.enter_context(full_precision(self.device))
            stack.enter_context(sdpa_kernel(SDPBackend.MATH))
            try:
                yield
            finally:
                for module, mode in modes.items():
                    module.training = mode


@dataclass(frozen=True)
class Trace:
    """An estimate of the Hessian's trace.

    Attributes:
        value: The mean over probes.
        error: Its standard error.
        probes: How many.
    """

    value: float
    error: float
    probes: int

    def to_dict(self) -> dict[str, Any]:
        """Plain values for JSON."""
        return {"value": self.value, "error": self.error, "probes": self.probes}


def rademacher(size: int, generator: torch.Generator, like: Tensor | Hessian) -> Tensor:
    """A random vector of +1 and -1, drawn on the CPU so that it is the same on every device."""
    signs = torch.randint(0, 2, (size,), generator=generator, dtype=torch.int8)
    return (2 * signs - 1).to(device=like.device, dtype=like.dtype)


def trace_of(
    hessian: Hessian,
    *,
    probes: int = 100,
    tolerance: float = 0.01,
    least: int = 10,
    seed: int = 0,
    advance: Advance | None = None,
) -> Trace:
    """Hutchinson's estimate: the mean of v'Hv over random signs v, which is unbiased.

    Args:
        hessian: The matrix, as a linear map.
        probes: The most vectors to use.
        tolerance: Stop when the standard error is below this fraction of the estimate.
        least: Vectors to use before looking.
        seed: Of the vectors.
        advance: Called with 1 after each product.
    """
    if probes < 2:
        raise UserError(f"A trace needs at least 2 probes for a standard error, not {probes}.")
    generator = torch.Generator().manual_seed(seed)
    wide = widest(hessian.device)
    found: list[float] = []
    value = error = math.nan
    for _ in range(probes):
        v = rademacher(hessian.size, generator, hessian)
        found.append(float(((hessian @ v).to(wide) * v).sum()))
        if advance:
            advance(1)
        if len(found) >= 2:
            value = math.fsum(found) / len(found)
            spread = math.fsum((f - value) ** 2 for f in found) / (len(found) - 1)
            error = math.sqrt(spread / len(found))
            if len(found) >= least and error <= tolerance * abs(value):
                break
    return Trace(value, error, len(found))


def _flat(tensors: tuple[Tensor, ...]) -> Tensor:
    return torch.cat([t.reshape(-1) for t in tensors])
