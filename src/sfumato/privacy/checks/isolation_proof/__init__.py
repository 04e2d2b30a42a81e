"""A proof that no operator of a model and its loss lets one example reach another."""

from __future__ import annotations

from typing import TYPE_CHECKING

from sfumato.privacy.checks.isolation_proof.outcome import Proof

if TYPE_CHECKING:
    from torch import Tensor, nn

    from sfumato.privacy.engines.objective import Loss


def prove_isolation(model: nn.Module, loss: Loss, x: Tensor, y: Tensor) -> Proof:
    """Try to prove isolation; see `sfumato.privacy.checks.isolation_proof.proof`.

    The tracing of PyTorch takes seconds to import, and its parts have no fixed names: where a
    version has others, nothing is proved.
    """
    try:
        from sfumato.privacy.checks.isolation_proof import proof
    except ImportError as error:
        return Proof(False, 0, f"this version of PyTorch traces in another way ({error.name})")
    return proof.prove_isolation(model, loss, x, y)


__all__ = ["Proof", "prove_isolation"]
