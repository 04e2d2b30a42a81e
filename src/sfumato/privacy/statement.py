"""The privacy statement: what is guaranteed, on what grounds, and what is not covered."""

from __future__ import annotations

import math
import textwrap
from dataclasses import dataclass
from decimal import ROUND_CEILING, Decimal, localcontext

from sfumato.privacy.accounting import Step
from sfumato.privacy.composition import Exposure

RELATION = "adding or removing one training image"
_SMALL = 1.0
LARGE = 10.0
"""Above this, epsilon promises next to nothing by itself."""


@dataclass(frozen=True)
class Facts:
    """What a statement is made from.

    Attributes:
        private: False for a run without noise.
        epsilon: Spent, by accountant.
        budget: The epsilon that was asked for.
        delta: As in (epsilon, delta).
        accountant: The one that calibrated the noise and stopped the run.
        examples: Number of training images; treated as public.
        batch: Expected batch.
        rate: Sampling probability of an image in a step.
        steps: Steps counted.
        noise_multiplier: Sigma.
        rule: The clipping rule in words, with its sensitivity.
        views: Augmented views per image.
        averaged: Whether averaged weights were released.
        seeded: Whether the random numbers follow from a stated seed.
        train_metrics: Whether metrics of private batches were written.
        validation: Images held out of the training set for validation.
        data: Name of the data.
        version: Of sfumato.
        public: Whether the user declared the training images public.
        start: Where the first weights came from and which were trained; empty if from scratch.
        exposures: Other data sets that the first weights depend on.
        before: Steps that the start took on these images; `epsilon` counts them.
        before_epsilon: What those alone cost, by the accountant that calibrated the run.
        before_seeded: Whether their noise follows from a stated seed.
        before_names: Other data sets, by name, on which some of them were taken.
        before_looked: What was decided then by looking at images without noise, a sentence each.
        schedule: The steps by noise multiplier, where it was not the same for all.
        looked: What was decided by looking at images without noise, a sentence each.
        tuned: What the settings were tried out by, in the recipe's words; empty if it has none.
        taken: Steps taken; fewer than those counted where results decided when to stop.
    """

    private: bool
    epsilon: dict[str, float]
    budget: float
    delta: float
    accountant: str
    examples: int
    batch: float
    rate: float
    steps: int
    noise_multiplier: float
    rule: str
    views: int
    averaged: bool
    seeded: bool
    train_metrics: bool
    validation: int
    data: str
    version: str
    public: bool = False
    start: str = ""
    exposures: tuple[Exposure, ...] = ()
    before: tuple[Step, ...] = ()
    before_epsilon: float = 0.0
    before_seeded: bool = False
    before_names: tuple[str, ...] = ()
    before_looked: tuple[str, ...] = ()
    schedule: tuple[Step, ...] = ()
    looked: tuple[str, ...] = ()
    tuned: str = ""
    taken: int | None = None


def meaning(epsilon: float, delta: str) -> str:
    """What a guarantee means in plain words, which are the weaker the larger epsilon is.

    Args:
        epsilon: As in (epsilon, delta).
        delta: As it is to be printed.

    *Guarantee:* Nothing is called almost as likely whose odds may change by more than e.
    """
    if epsilon <= _SMALL:
        return (
            "Whether or not any one image was in the training set, everything that can be learnt "
            "from the released weights is almost as likely: the odds of any conclusion about that "
            f"image change by at most a factor of e^ε = {factor(epsilon)}, except with a chance of "
            f"about δ = {delta}."
        )
    if epsilon <= LARGE:
        return (
            "Anything that can be learnt from the released weights is at most e^ε = "
            f"{factor(epsilon)} times as likely with any one image in the training set as without "
            "it, or the other way round. Whoever guesses whether that image was in it, where a "
            "fair coin decided, is right with a chance of at most e^ε/(1 + e^ε) = "
            f"{_guess(epsilon)}. Both hold except with a chance of about δ = {delta}."
        )
    return (
        f"By itself, ε = {upwards(epsilon)} promises next to nothing about any one image. What can "
        "be learnt from the released weights may be likelier with it in the training set than "
        f"without it by a factor of {factor(epsilon)} (e^ε), and by more with a chance of about "
        f"δ = {delta}."
    )


def upwards(epsilon: float, digits: int = 4, *, places: int | None = None) -> str:
    """An epsilon to some digits, or decimal places, rounded up: what is stated must hold."""
    form = f".{digits}g" if places is None else f".{places}f"
    if not 0 < epsilon < math.inf:
        return f"{epsilon:{form}}"
    exact = Decimal(epsilon)
    last = exact.adjusted() + 1 - digits if places is None else -places
    with localcontext(prec=400):
        return f"{float(exact.quantize(Decimal(1).scaleb(last), rounding=ROUND_CEILING)):{form}}"


def factor(epsilon: float) -> str:
    """e^epsilon as people write it, rounded up."""
    if epsilon >= 50:
        return "more than 10²¹"
    rounded = float(upwards(math.exp(epsilon), 3))
    return f"{rounded:g}" if rounded < 1000 else f"{rounded:,.0f}".replace(",", "\u202f")


def _guess(epsilon: float) -> str:
    """The largest chance of a right guess by somebody who had even odds before, rounded up."""
    digits = 1 if epsilon < 4 else 3
    chance = 100 / (1 + math.exp(-epsilon))
    return f"{math.ceil(chance * 10**digits) / 10**digits:.{digits}f} %"


def tuning(words: str) -> str:
    """That choosing a recipe may have cost privacy too, and what is known of it.

    Args:
        words: What the recipe says of its tuning, or nothing.
    """
    said = " ".join(words.split()).rstrip(".")
    known = f" This one says of itself that it was chosen by {said}." if said else ""
    return (
        "The choice of the recipe. If several recipes were tried on these images and the best was "
        f"kept, the trials spent privacy too; their cost is not in the numbers above.{known}"
    )


def statement(facts: Facts) -> str:
    """The statement as Markdown."""
    if not facts.private:
        return _without_privacy(facts)
    f = facts
    other = {"pld": "rdp", "rdp": "pld"}[f.accountant]
    names = {"pld": "PLD (privacy loss distribution)", "rdp": "RDP (Rényi)"}
    not_covered = [
        "The number of training images and the names of the classes, which are treated as public.",
        tuning(f.tuned),
    ]
    if f.train_metrics:
        not_covered.append(
            "`metrics.jsonl`, `curves.png` and `tensorboard/`: loss and accuracy in them were "
            "computed on training batches without noise, and so was the count of examples left out "
            "of steps, which checkpoints have too; their clock tells how many images steps drew. "
            "They were asked for (`training.train_metrics`): keep them inside."
        )
    if f.validation:
        not_covered.append(
            f"{f.validation} images held out for validation, and the test images: they were not "
            "trained on, but accuracies measured on them are exact."
        )
    else:
        not_covered.append("The test images: accuracies measured on them are exact.")
    not_covered += f.looked
    not_covered += [f"Of the start's training: {w[0].lower()}{w[1:]}" for w in f.before_looked if w]
    if f.start:
        not_covered.append("The choice of the start, if it was made by looking at these images.")
    randomness = (
        "**All random numbers, the noise among them, follow from the seed in the recipe.** Whoever "
        "knows the seed can subtract the noise, and so can whoever sees two models of one seed: "
        "the noise in them is the same. The guarantee holds only towards people who do neither. "
        "Train without a seed before releasing a model of secret images."
        if f.seeded
        else "Random numbers follow from a 256-bit key drawn from the operating system, which was "
        "deleted when training ended. They come from PyTorch's generator, which is not a "
        "cryptographic one."
    )
    if f.before_seeded and not f.seeded:
        randomness += (
            " **The noise of the start, however, follows from a seed**: towards people who know "
            "it, the steps of the start are not private."
        )
    total = f"{f.steps} Poisson-subsampled Gaussian mechanisms with q = {f.rate!r} and\n"
    sigma = f"{f.noise_multiplier:.6g}"
    if f.schedule:
        total += ", ".join(f"σ = {s.noise_multiplier!r} ({s.count} times)" for s in f.schedule)
        sigma += f" at first, {f.schedule[-1].noise_multiplier:.6g} at last, by a fixed plan"
    else:
        total += f"σ = {f.noise_multiplier!r}"
    for step in f.before:
        total += f", and {step.count} with q = {step.q!r} and σ = {step.noise_multiplier!r}"
    sampling = (
        f"Poisson: each image in each step with probability q = {f.rate:.6g} "
        f"(expected batch {f.batch:g})"
    )
    counted = ""
    if f.before:
        counted = (
            f"| steps of the start, counted above | {sum(s.count for s in f.before)}, "
            f"ε = {upwards(f.before_epsilon, places=4)} alone |\n"
        )
    here, there = (upwards(f.epsilon[name], places=4) for name in (f.accountant, other))
    taken = f"{f.steps}"
    if f.taken is not None and f.taken < f.steps:
        taken = f"{f.taken}, counted as all {f.steps} that were planned"
    after = [
        "the optimizer and its learning rates",
        *(["the averaging of weights"] if f.averaged else []),
        "anything done with the weights later",
    ]
    return f"""# Privacy statement

The weights in `model.safetensors` (and those in every checkpoint) satisfy
**({upwards(f.epsilon[f.accountant])}, {f.delta:g})-differential privacy** with respect to
{RELATION} of '{f.data}'.

{_in_plain_words(f)}

| | |
|---|---|
| unit of privacy | one image |
| neighbouring relation | {RELATION} |
| ε by {names[f.accountant]}, which calibrated the run | {here} |
| ε by {names[other]}, for comparison | {there} |
| budget asked for | {f.budget:g} |
| δ | {f.delta:g} |
| training images | {f.examples} |
| sampling | {sampling} |
| steps | {taken} |
| clipping | {f.rule} |
| noise multiplier σ | {sigma} |
| views per image | {f.views}{", averaged before clipping" if f.views > 1 else ""} |
{counted}
Each step is a Poisson-subsampled Gaussian mechanism. Every step was written to `ledger.jsonl`
before anything that depends on it was, and ε is computed from that ledger alone. To check it with
another library, compose {total},
under {RELATION}.

Covered at no further cost, because they only use released gradients: {"; ".join(after)}.
{_beginning(f)}
## Not covered

{chr(10).join(f"- {line}" for line in not_covered)}

## Randomness

{randomness}

sfumato {f.version}
"""


def _without_privacy(f: Facts) -> str:
    if f.public:
        text = (
            f"**There is no privacy guarantee.** This model was trained without privacy on "
            f"'{f.data}', which the user declared to be public. If any of those images is not, "
            "treat the weights like the images."
        )
    else:
        text = (
            f"**There is no privacy guarantee.** This model was trained on '{f.data}' with privacy "
            "switched off, for comparison. Treat its weights like the training images."
        )
    return f"# Privacy statement\n\n{text}\n{_beginning(f)}"


def _beginning(f: Facts) -> str:
    """Where the first weights came from, and what was treated as public."""
    if not f.start:
        return ""
    lines = [f.start]
    if f.before:
        known = " and ".join(f"'{name}'" for name in f.before_names)
        lines.append(
            "The start was trained with noise on these same images, as the user declared. Its "
            "steps are counted in ε above."
            + (f" Some of them were taken on what was then called {known}." if known else "")
        )
    for e in f.exposures:
        if e.noisy:
            cost = ", ".join(f"{upwards(v)} by {k.upper()}" for k, v in e.epsilon.items())
            seed = ", with noise from a seed" if e.seeded else ""
            lines.append(
                f"The start also depends on '{e.data}', with ε = {cost} at δ = {e.delta:g}{seed}. "
                "This run released nothing more about those images, provided that none of them is "
                f"in '{f.data}' too, as the user declared."
            )
        elif e.drawn:
            lines.append(
                f"The start was trained on '{e.data}': images that a program drew at random, in "
                "which there is nobody. It depends on no data, and nothing was spent for it."
            )
        elif e.public:
            lines.append(
                f"**'{e.data}' was treated as public**, as the user declared: the start was "
                "trained on it without privacy, and nothing here protects those images."
            )
        else:
            lines.append(
                f"The start was trained on '{e.data}' without privacy, and nobody declared it "
                "public: treat the weights like those images too."
            )
    return "\n## Where the first weights came from\n\n" + "\n\n".join(lines) + "\n"


def _in_plain_words(f: Facts) -> str:
    """`meaning`, in lines as long as the others."""
    words = meaning(f.epsilon[f.accountant], f"{f.delta:g}")
    text = f"In plain words: {words[0].lower()}{words[1:]}"
    return textwrap.fill(text, 99, break_on_hyphens=False, break_long_words=False)
