"""Sentences and numbers of privacy statements, for runs and own loops alike."""

from __future__ import annotations

import math
import textwrap
from collections.abc import Mapping
from decimal import ROUND_CEILING, Decimal, localcontext

from sfumato.privacy.accounting.group_privacy import MOST
from sfumato.privacy.audit.result import AuditResult

_SMALL = 1.0
LARGE = 10.0
"""Above this, epsilon promises next to nothing by itself."""

_NEXT_TO_NOTHING = 20.0
"""Epsilon above which a guess is right with a probability of 1 - 2e-9 under the guarantee."""

_MANY = 0.1
"""Above this, delta times the number of examples is too large."""


IMAGES = ("image", "example")
"""Units of privacy of which one person may have several."""


def temperature(unit: str) -> str:
    """A note on the file that may join a finished run, whose statement cannot change any more."""
    others = "none of the training images" if unit in IMAGES else f"of none of the training {unit}s"
    return (
        "The images that a temperature was fitted on, if `temperature.json` is beside the weights. "
        "`sfumato calibrate` writes it after this statement is sealed: logits are divided by the "
        "exact number in it, which was fitted on the images that it names. They must be "
        f"{others}."
    )


def data_of(unit: str, *, which: str = "these") -> str:
    """The training data, as the units themselves or as the images of units with several."""
    return f"{which} {unit}s" if unit in IMAGES else f"the images of {which} {unit}s"


def several(unit: str) -> str:
    """The heading of the chapter with the guarantee of several units together."""
    return f"Several {unit}s{' of one person' if unit in IMAGES else ''}"


def relation(unit: str) -> str:
    """The neighbouring relation of all guarantees, in words."""
    return f"leaving out one training {unit}"


def meaning(epsilon: float, delta: float, *, unit: str = "image", shown: str | None = None) -> str:
    """The meaning of a guarantee in plain words, weaker ones the larger epsilon is.

    Args:
        epsilon: As in (epsilon, delta).
        delta: The same.
    unit: The word for an example. shown: Delta as it is to be printed.

    *Guarantee:* Nothing is called almost as likely whose odds may change by more than e, and delta
    is never called a chance that epsilon fails: losses above epsilon are likelier than that.
    """
    d = shown or f"{delta:g}"
    bound = (
        f"at most e^ε = {factor(epsilon)} times as likely with any one {unit} in the training set "
        f"as without it, plus δ = {d}, and the other way round"
    )
    guess = (
        f"Whoever guesses whether that {unit} was in it, where a fair coin decided, is right with "
        f"a chance of at most (e^ε + δ)/(1 + e^ε) = {_guess(epsilon, delta)}."
    )
    if epsilon <= _SMALL:
        return (
            f"Whether or not any one {unit} was in the training set, everything that can be learnt "
            f"from the released weights is almost as likely: it is {bound}. {guess}"
        )
    if epsilon <= LARGE:
        return f"Anything that can be learnt from the released weights is {bound}. {guess}"
    return (
        f"By itself, ε = {upwards(epsilon)} promises next to nothing about any one {unit}. What "
        "can be learnt from the released weights may be likelier with it in the training set than "
        f"without it by a factor of {factor(epsilon)} (e^ε), plus δ = {d}."
    )


def filled(text: str) -> str:
    """A paragraph wrapped to the line width of a statement."""
    return textwrap.fill(text, 99, break_on_hyphens=False, break_long_words=False)


def upwards(epsilon: float, digits: int = 4, *, places: int | None = None) -> str:
    """An epsilon to some digits or decimal places, rounded up, so that the stated bound holds.

    One too small for the decimal places has two digits: `2.7e-10`, never `0.000`.
    """
    if epsilon == 0:
        return "0"
    if places is not None and 0 < epsilon < 10.0**-places:
        digits, places = 2, None
    form = f".{digits}g" if places is None else f".{places}f"
    if not epsilon < math.inf:
        return f"{epsilon:{form}}"
    exact = Decimal(epsilon)
    last = exact.adjusted() + 1 - digits if places is None else -places
    with localcontext(prec=400):
        return f"{float(exact.quantize(Decimal(1).scaleb(last), rounding=ROUND_CEILING)):{form}}"


def factor(epsilon: float) -> str:
    """e^epsilon in a readable form, rounded up."""
    if epsilon >= 50:
        return "more than 10²¹"
    rounded = float(upwards(math.exp(epsilon), 3))
    return f"{rounded:g}" if rounded < 1000 else f"{rounded:,.0f}".replace(",", "\u202f")


def _guess(epsilon: float, delta: float) -> str:
    """The largest chance of a right guess by somebody with even odds before, rounded up."""
    digits = 1 if epsilon < 4 else 3
    chance = min(100.0, 100 * (1 + delta * math.exp(-epsilon)) / (1 + math.exp(-epsilon)))
    return f"{math.ceil(chance * 10**digits) / 10**digits:.{digits}f} %"


def tuning(words: str, *, unit: str = "image") -> str:
    """A warning that the choice of a recipe may have cost privacy, with what is known of it.

    Args:
        words: The recipe's own words about its tuning, or nothing.
        unit: The word for an example.
    """
    said = " ".join(words.split()).rstrip(".")
    known = f" This one says of itself that it was chosen by {said}." if said else ""
    return (
        f"The choice of the recipe. If several were tried on {data_of(unit)} and the best was "
        f"kept, the trials spent privacy too; their cost is not in the numbers above.{known}"
    )


def search_space(unit: str) -> str:
    """A note that what several runs differed in was decided before them."""
    return (
        f"What was decided before the first run, if by looking at {data_of(unit)}: the model, the "
        "settings that all runs share, and the lists and ranges that the others were drawn from."
    )


def chosen_among(mean: float, distribution: str) -> str:
    """The choice of a run as the best of several, in words."""
    law = "Poisson" if distribution == "poisson" else distribution
    return f"the best of a number of runs that was drawn ({law} distribution, mean {mean:g})"


def scoring(noise: float | None, unit: str) -> str:
    """The data that several runs were compared on, and what protects it."""
    if noise is None:
        public = unit if unit in IMAGES else "image"
        return (
            f"The runs were compared by exact results on other {public}s, which the user declared "
            f"to be public: nothing here protects those {public}s."
        )
    return (
        f"The runs were compared by the number of right predictions on {unit}s that none of them "
        f"was trained on, each with Gaussian noise of standard deviation {noise:g}. Every {unit} "
        f"was either trained on or held out for that, never both, so that ε above holds for the "
        f"{unit}s held out as well."
    )


def groups(values: Mapping[int, float], delta: float, unit: str, *, selected: bool = False) -> str:
    """The guarantee for people with several examples, as a Markdown table.

    Args:
        values: Epsilon by number of examples.
        delta: As in (epsilon, delta). unit: The word for an example.
        selected: True if they are those of the best of several runs.
    """
    how = (
        "From ε of one at smaller δ (not tight)"
        if selected
        else "From the same steps (PLD of a mixture of Gaussians)"
    )
    shown = [upwards(v, 3) if v <= MOST else f"over {MOST:g}" for v in values.values()]
    who, whose = "Somebody with several", "of one person"
    if unit not in IMAGES:
        who, whose = "A family or another group of several", "together"
    text = (
        f"The unit of privacy is one {unit}. {who} {unit}s in the training set is "
        f"protected for all of them together by a larger ε, which is not k times ε of one. {how}, "
        f"at the same δ = {delta:g}:"
    )
    return f"""{filled(text)}

| {unit}s {whose} | {" | ".join(map(str, values))} |
|---|{"---|" * len(shown)}
| ε | {" | ".join(shown)} |"""


def audit(found: AuditResult) -> str:
    """The result of an audit, and why the audited model is not the one to publish."""
    a = found
    done = (
        f"This run was audited. It was trained with {a.canaries} canaries, {a.included} of them in "
        f"by the toss of a coin; N and q above count all of them. By {a.score}, the coins of "
        f"{a.guesses} were guessed, a number that was fixed in advance, and {a.correct} guesses "
        f"were right."
    )
    bound = (
        f"With {100 * a.confidence:g} % confidence ε is at least {downwards(a.epsilon)} at "
        f"δ = {a.delta:g} (exact order statistics; {downwards(a.epsilon_f_dp)} by the trade-off "
        f"function, {downwards(a.epsilon_one_run)} by (ε, δ) alone), and the steps claim "
        f"{upwards(a.claim)}."
    )
    verdict = (
        f"**The bound is above the claim: the guarantee does not hold.** If it did, so many right "
        f"guesses would have a probability of at most {a.p_value:.2g}."
        if a.exceeds
        else "The bound is not above the claim, so the audit does not contradict it. It cannot "
        "prove it: a lower bound says what an attack found, not what none can find."
    )
    after = (
        "A model with canaries is not the one to publish: they take a part of every draw, and what "
        "they leave in the weights is noise. Train once more without an audit."
    )
    return "\n\n".join(filled(part) for part in (f"{done} {bound}", verdict, after))


def epsilon_warning(epsilon: float) -> str:
    """A sentence on a budget that is too large to promise anything; empty for any other."""
    if epsilon <= _NEXT_TO_NOTHING:
        return ""
    return (
        f"Epsilon {epsilon:g} promises next to nothing: most published work has epsilon 10 or less."
    )


def downwards(epsilon: float) -> str:
    """A lower bound to three decimal places, rounded down, so that it holds."""
    return f"{math.floor(epsilon * 1000) / 1000:.3f}"


def threat_model(unit: str) -> str:
    """The adversary that the numbers hold against, and the limits of what they say."""
    every, used = f"every other {unit}", "it was used"
    if unit not in IMAGES:
        every, used = f"all images of {every}", f"images of that {unit} were used"
    return filled(
        "The numbers hold against somebody who sees the weights after every single step, knows the "
        f"recipe and {every}, cannot break the cipher ChaCha20, and does not know the "
        f"run's random numbers. They say what such a person can find out about one {unit} because "
        f"{used}. They do not keep a model from learning what is true of many people, and do "
        f"not keep predictions secret. Whoever trained the model had {data_of(unit, which='the')}: "
        "the guarantee is towards everybody else, who gets the weights and not the computer."
    )


def randomness(*, seeded: bool, unit: str = "image") -> str:
    """The source of the random numbers, and how the noise was added."""
    if seeded:
        return (
            "**Not private: anyone who knows or guesses the seed can subtract the noise.** All "
            "random numbers, the noise among them, follow from the seed. So can "
            "whoever sees two models of one seed: the noise in them is the same. The guarantee "
            "holds only towards people who do neither. Train without a seed before releasing a "
            "model of secret images."
        )
    drawn = f"{unit}s a step draws" + ("" if unit in IMAGES else " and which of their images")
    return (
        f"Which {drawn}, and its noise, come from the stream cipher ChaCha20 with a key of 256 "
        "bits from the operating system, which was deleted when training ended."
    )


def floating_point(unit: str) -> str:
    """The gap between the arithmetic of a computer and that of the proof."""
    return (
        "The proofs are about real numbers. Here, noise is added in float64 and the noisy sum is "
        "rounded to a fixed grid, so that the same results are possible with and without any one "
        f"{unit}; `docs/mechanism.md` states the bound."
    )


def timing(unit: str) -> str:
    """A note that timing and load during training are not covered."""
    return (
        f"Timing. How long a step takes, and how busy the computer is, depends on how many {unit}s "
        "it drew. Nothing of it is in the weights; who can watch the computer while it trains sees "
        "more than the guarantee allows for."
    )


def other_releases(unit: str) -> str:
    """A note that other models of the same examples are not counted."""
    return (
        f"Other releases from the same {unit}s. Every further model or number that is published "
        "about them spends more, whoever made it: together at most the sum of their epsilons and "
        "of their deltas, if each is private. This statement counts one alone."
    )


def delta_warning(delta: float, examples: int, *, unit: str = "image") -> str:
    """A warning if delta is too large for this number of examples, or an empty string."""
    if delta * examples <= _MANY:
        return ""
    return (
        f"**δ is large for {examples} training {unit}s.** A program that publishes each {unit} in "
        f"full with a chance of δ has the same δ: of these, {delta * examples:.2g} on average "
        f"(δ·N). Choose δ of at most {_MANY / examples:.1g}."
    )
