"""The privacy statement of a training loop that is not sfumato's own."""

from __future__ import annotations

from collections.abc import Sequence

from sfumato import version
from sfumato.privacy.accounting import Step, epsilon
from sfumato.privacy.sampling import PoissonSampler
from sfumato.privacy.statement import tuning, upwards

_RELATION = "adding or removing one training example"


def own_statement(
    history: Sequence[Step],
    *,
    delta: float,
    data: str,
    sampler: PoissonSampler,
    rule: str,
    views: int,
) -> str:
    """What releases of noisy gradients guarantee, and on which conditions, as Markdown.

    Args:
        history: The releases.
        delta: As in (epsilon, delta).
        data: What the examples are called.
        sampler: Where they came from.
        rule: The clipping rule in words.
        views: Rows per example.
    """
    spent = {name: epsilon(history, delta=delta, accountant=name) for name in ("pld", "rdp")}
    events = ", and\n".join(
        f"{s.count} with q = {s.q!r} and σ = {s.noise_multiplier!r}" for s in history
    )
    return f"""# Privacy statement

The noisy gradients that were released, and so all weights made of nothing else, satisfy
**({upwards(spent["pld"])}, {delta:g})-differential privacy** with respect to {_RELATION}
of '{data}', if the conditions below were kept.

| | |
|---|---|
| unit of privacy | one example |
| neighbouring relation | {_RELATION} |
| ε by PLD (privacy loss distribution) | {upwards(spent["pld"], places=4)} |
| ε by RDP (Rényi), for comparison | {upwards(spent["rdp"], places=4)} |
| δ | {delta:g} |
| training examples | {sampler.examples} |
| expected batch | {sampler.batch:g} |
| releases | {sum(s.count for s in history)} |
| clipping | {rule} |
| views per example | {views} |

To check it with another library, compose Poisson-subsampled Gaussian mechanisms,
{events or "none"},
under {_RELATION}.

## Conditions

The loop was not sfumato's. It must have kept these, which the library cannot see:

- Before each release, the examples of one draw of the sampler were accumulated, each exactly once.
  A shuffled loader with batches of a fixed size is not such a draw.
- Nothing else that depends on the examples entered the weights: no statistics for normalising, no
  buffers, no choice of rates or of the last step by results on them.
- The noise came from a generator whose seed nobody else knows or can guess, and no two releases had
  the same noise.

## Not covered

- The number of training examples, which is treated as public.
- {tuning("")}
- Losses, accuracies and counts of training batches: they were computed without noise.

sfumato {version.of()}
"""
