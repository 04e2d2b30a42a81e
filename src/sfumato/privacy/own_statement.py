"""The privacy statement of a training loop that is not sfumato's own."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence

from sfumato.privacy import statement as words
from sfumato.privacy.accounting.accountants import Step, epsilon
from sfumato.privacy.sampling import PoissonSampler
from sfumato.privacy.statement import filled, upwards

_UNIT = "example"


def own_statement(
    history: Sequence[Step],
    *,
    delta: float,
    data: str,
    sampler: PoissonSampler,
    rule: str,
    views: int,
    seeded: bool,
    checks: bool,
    checked_at_end: bool,
) -> str:
    """What releases of noisy gradients guarantee, and on which conditions, as Markdown.

    Args:
        history: The releases.
        delta: As in (epsilon, delta).
        data: What the examples are called.
        sampler: Where they came from.
        rule: The clipping rule in words.
        views: Rows per example.
        seeded: Whether the noise follows from a seed.
        checks: Whether the model was checked before the first batch and while training.
        checked_at_end: Whether the last batch was checked with the last weights.
    """
    spent = {name: epsilon(history, delta=delta, accountant=name) for name in ("pld", "rdp")}
    events = ", and\n".join(
        f"{s.count} with q = {s.q!r} and σ = {s.noise_multiplier!r}" for s in history
    )
    warning = words.delta_warning(delta, sampler.examples, unit=_UNIT)
    return f"""# Privacy statement

The noisy gradients that were released, and so all weights made of nothing else, satisfy
**({upwards(spent["pld"])}, {delta:g})-differential privacy** with respect to
{words.relation(_UNIT)} of '{data}', if the conditions below were kept.

{filled(words.meaning(spent["pld"], delta, unit=_UNIT))}
{f"{chr(10)}{filled(warning)}{chr(10)}" if warning else ""}
| | |
|---|---|
| unit of privacy | one example |
| neighbouring relation | {words.relation_in_full(_UNIT)} |
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
under the relation that adds or removes one example.

## Several examples of one person

{words.groups(history, delta, _UNIT)}

## Against whom

{words.threat_model(_UNIT)}

## Conditions

The loop was not sfumato's. It must have kept these, which the library cannot see:

- Before each release, the examples of one draw of the sampler were accumulated, each exactly once.
  A shuffled loader with batches of a fixed size is not such a draw.
- Nothing else that depends on the examples entered the weights: no statistics for normalising, no
  buffers, no choice of rates or of the last step by results on them.
- The draws came from `sampler.draw` with a key that nobody else knows, as it takes by default.
- The key of the noise was kept from everybody, if it was kept at all.
{_isolation(checks=checks, at_end=checked_at_end)}
## Randomness

{filled(_noise(seeded=seeded))}

{filled(words.floating_point(_UNIT))}

## Not covered

- The number of training examples, the sampling rate, and the shape of the examples. They are
  treated as public.
- {words.other_releases(_UNIT)}
- {words.tuning("", unit=_UNIT)}
- Losses, accuracies and counts of training batches: they were computed without noise.
- {words.timing(_UNIT)}

## Versions

{words.versions()}
"""


def _noise(*, seeded: bool) -> str:
    """Where the noise came from; the draws are the loop's own."""
    if seeded:
        return words.randomness(seeded=True)
    return (
        "The noise comes from the stream cipher ChaCha20 with a key of 256 bits, and no two "
        "releases of this mechanism have the same noise."
    )


def _isolation(*, checks: bool, at_end: bool) -> str:
    """A condition, as a list item, for what the checks of the model left out; empty if nothing."""
    if not checks:
        said = "No example reached another's gradient: checks of the model were turned off."
    elif not at_end:
        said = (
            "No example reached another's gradient after the last batch that was checked: the "
            "model was frozen, moved or changed since, so the check at the end was left out."
        )
    else:
        return ""
    return textwrap.fill(f"- {said}", 98, subsequent_indent="  ") + "\n"
