"""Isolation proved: no operator of a model and its loss lets one example reach another."""

from sfumato.privacy.isolation_proof.proof import Proof, prove_isolation

__all__ = ["Proof", "prove_isolation"]
