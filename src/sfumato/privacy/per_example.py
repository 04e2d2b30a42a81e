"""Per-example gradients of any model: every layer takes the fastest path that is right for it.

The methods are those of `sfumato.privacy.engines.layered`, and the compiled pass where it is asked
for. Which one is right is found out on the model itself before the first batch counts.
"""

from __future__ import annotations

import warnings

import torch
from torch import Tensor, nn

from sfumato.errors import UserError
from sfumato.privacy.checks.compiled_pass import compiled_pass
from sfumato.privacy.checks.isolation_proof import Proof, prove_isolation
from sfumato.privacy.checks.method_choice import choose_method, holds_at_size
from sfumato.privacy.checks.model_state import hook_keys
from sfumato.privacy.engines.compiled import Compiled, Fused
from sfumato.privacy.engines.expanded_weights import NotPerLayer
from sfumato.privacy.engines.layered import METHODS, Layered
from sfumato.privacy.engines.losses import Loss, cross_entropy, per_example_losses
from sfumato.privacy.engines.paths import Path
from sfumato.privacy.engines.results import Gradients, PerExampleGradients

_MOST_PADDING = 1.25
"""A batch runs in a size that was checked if that is larger by this at most."""


class PerExample(Layered):
    """Takes per-example gradients of a model's loss, in physical batches.

    Args:
        model: Any module from `(rows, ...)` to outputs; frozen parameters are left alone.
        loss: From outputs and targets to one loss per row.
        views: Rows per example, in example-major order. The loss of an example is the mean over
            its views, so its gradient is averaged over them before anything is clipped.
        check: Compare with the one-example-at-a-time reference before the first batch.
        precision: Compute in this precision where a compiled pass fits the model; norms and sums
            are in float32 whatever it is. None for the model's own precision, not compiled.

    Attributes:
        method: How the last batch was run: one of `layered.METHODS`.
        passed_over: Faster methods that were not used, and why.
        narrowest: The least precise floating-point type that the model computes in.
        proof: Whether isolation is proved besides being tested; None until `prove` is called.

    Guarantee: Before the first batch of a new input shape, and again before one of another size
    (batches are padded to few sizes; an example of padding adds exactly nothing), on random inputs
    and targets, this very model is run with one example changed (no other output and no
    state that the model keeps may move, else a `UserError`), and its per-example gradients are
    compared with one-example-at-a-time autograd; a method that disagrees, or whose gradients of one
    example move with another, is never used. Layers known to mix examples are refused by name.
    """

    def __init__(
        self,
        model: nn.Module,
        *,
        loss: Loss = cross_entropy,
        views: int = 1,
        check: bool = True,
        precision: torch.dtype | None = None,
    ) -> None:
        super().__init__(model, loss=loss, views=views, check=check, precision=precision)
        self._compiled: dict[object, Compiled | None] = {}
        self._checked: dict[object, dict[int, str]] = {}
        self._said = False
        self.proof: Proof | None = None

    def prove(self, x: Tensor, y: Tensor) -> Proof:
        """Try to prove, for all inputs like these, that examples do not reach each other."""
        self.proof = prove_isolation(self.model, self.loss, x, y)
        return self.proof

    def __call__(self, x: Tensor, y: Tensor) -> PerExampleGradients:
        """Per-example gradients for `len(y)` examples of `views` rows each."""
        _check_inputs(x, y, self.views)
        parameters = self.trainable
        examples = y.shape[0]
        if examples == 0:
            return self._empty(x, parameters)
        chosen = self._chosen(x, y, tuple(parameters))
        if chosen is None:
            chosen = self._choose(x, y)
            parameters = self.trainable  # A model may add or freeze some when it is first called.
        self.method, size = chosen
        if size > examples:
            x, y = _padded(x, y, size, self.views)
        before = [(p._version, p.data_ptr()) for p in parameters.values()]
        found = self._pass(self.method, x, y, parameters)
        for (name, p), own in zip(parameters.items(), before, strict=True):
            if (p._version, p.data_ptr()) != own:
                raise UserError(
                    f"The model writes into its parameter '{name}' when it runs: what it has seen "
                    "of the data would be released without noise. Training cannot go on."
                )
        return found.first(examples) if size > examples else found

    def knows(self, x: Tensor, y: Tensor) -> bool:
        """Tell whether batches like this one have been checked, with the model as it is now."""
        return self._chosen(x, y, tuple(self.trainable)) is not None

    def as_run(self, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        """Inputs and targets as they run, padded to a size that was checked."""
        chosen = self._chosen(x, y, tuple(self.trainable))
        return _padded(x, y, chosen[1] if chosen else y.shape[0], self.views)

    def settle(self, x: Tensor, y: Tensor) -> None:
        """Choose and check the method for batches like this one, unless it was done before."""
        _check_inputs(x, y, self.views)
        if not self.knows(x, y):
            self._choose(x, y)

    def _pass(
        self, method: str, x: Tensor, y: Tensor, parameters: dict[str, nn.Parameter]
    ) -> Gradients | Fused:
        compiled = self._compiled_for(x, y, tuple(parameters)) if method == "layers" else None
        if compiled is not None:
            return compiled(x, y)
        try:
            return self._run(method, x, y, parameters)
        except NotPerLayer:
            # What these very inputs make the model do was not seen in the checks.
            return self._run("loop", x, y)

    def _signature(self, x: Tensor, names: tuple[str, ...]) -> object:
        """What a choice of method holds for, but for the size of the batch."""
        return (
            tuple(x.shape[1:]),
            x.dtype,
            x.device,
            x.dim() == 4 and x.is_contiguous(memory_format=torch.channels_last),
            tuple((module, module.training) for module in self.model.modules()),
            hook_keys(self.model),
            names,
        )

    def _chosen(self, x: Tensor, y: Tensor, names: tuple[str, ...]) -> tuple[str, int] | None:
        """The method for inputs like these, and the size that was checked and is to be run."""
        examples = y.shape[0]
        known = self._checked.get(self._signature(x, names), {})
        for size in sorted(known):
            if size == examples or (known[size] == "loop" and examples < size):
                return known[size], examples
            if examples <= size and (not self.check or size <= _MOST_PADDING * examples):
                return known[size], size if self.check else examples
        return None

    def _choose(self, x: Tensor, y: Tensor) -> tuple[str, int]:
        """Choose and check the method for inputs like these, and the size to run them in.

        The first batch runs as it is. Others are padded to one of a few sizes, so that only few
        have to be checked.
        """
        known = self._checked.setdefault(self._signature(x, tuple(self.trainable)), {})
        size = _rung(y.shape[0]) if known and self.check else y.shape[0]
        x, y = _padded(x, y, size, self.views)
        self.prepare(x)
        method = known[max(known)] if known else METHODS[-1]
        if not known or method == METHODS[-1] or not holds_at_size(self, method, x, y):
            method = choose_method(self, x, y)
        # The model may have changed when it was first called.
        signature = self._signature(x, tuple(self.trainable))
        self._checked.setdefault(signature, {})[size] = method
        if method == "loop" and not self._said:
            self._said = True
            reasons = "; ".join(f"{way}: {why}" for way, why in self.passed_over.items())
            warnings.warn(
                f"Examples run through this model one at a time, which is slow, because no "
                f"faster way was right for it ({reasons}).",
                stacklevel=4,
            )
        return method, size

    def _method_for(self, x: Tensor, y: Tensor) -> str:
        """The method for inputs like these, chosen and checked now unless it was before."""
        chosen = self._chosen(x, y, tuple(self.trainable)) or self._choose(x, y)
        self.method = chosen[0]
        return self.method

    def _compiled_for(self, x: Tensor, y: Tensor, names: tuple[str, ...]) -> Compiled | None:
        """The compiled pass for batches like this one, if it is asked for and fits the model."""
        if self.precision is None:
            return None
        key = (x.shape[0], self.precision, self._signature(x, names))
        if key not in self._compiled:
            self._compiled[key] = compiled_pass(self, x, y, self.precision)
        return self._compiled[key]


def _rung(examples: int) -> int:
    """The next of eight sizes per power of two, at most an eighth larger."""
    step: int = 1 << max(0, examples.bit_length() - 4)
    return -(-examples // step) * step


def _padded(x: Tensor, y: Tensor, size: int, views: int) -> tuple[Tensor, Tensor]:
    """Inputs and targets of `size` examples, the last of which repeat the first."""
    examples = y.shape[0]
    if size == examples:
        return x, y
    more = torch.arange(size - examples, device=y.device) % examples
    rows = torch.arange((size - examples) * views, device=x.device) % x.shape[0]
    padded = torch.cat([x, x[rows]])
    if x.dim() == 4 and x.is_contiguous(memory_format=torch.channels_last):
        padded = padded.contiguous(memory_format=torch.channels_last)
    return padded, torch.cat([y, y[more]])


def _check_inputs(x: object, y: object, views: int) -> None:
    """Say what is wrong with inputs of a kind that gradients cannot be taken of."""
    if not isinstance(x, Tensor) or not isinstance(y, Tensor):
        kinds = f"{type(x).__name__} and {type(y).__name__}"
        raise UserError(f"Inputs and targets must be tensors, not {kinds}.")
    if torch.is_inference_mode_enabled() or x.is_inference() or y.is_inference():
        raise UserError(
            "Gradients cannot be taken in torch.inference_mode, nor of tensors made in it."
        )
    if x.shape[0] != y.shape[0] * views:
        raise ValueError(
            f"{y.shape[0]} targets with {views} views each need {y.shape[0] * views} rows, not "
            f"{x.shape[0]}"
        )


__all__ = ["Gradients", "Loss", "Path", "PerExample", "cross_entropy", "per_example_losses"]
