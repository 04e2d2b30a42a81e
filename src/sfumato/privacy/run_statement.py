"""The privacy statement of a run: what is guaranteed, on what grounds, and what is not covered."""

from __future__ import annotations

from dataclasses import dataclass

from sfumato.privacy import statement as words
from sfumato.privacy.accounting.accountants import Step
from sfumato.privacy.accounting.exposure import Exposure
from sfumato.privacy.statement import filled, upwards

UNIT = "image"
_NAMES = {"pld": "PLD (privacy loss distribution)", "rdp": "RDP (Rényi)"}


@dataclass(frozen=True)
class Facts:
    """Facts that a statement is made from.

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
        rates_looked: Whether the learning rates were among that.
        tuned: What the settings were tried out by, in the recipe's words; empty if it has none.
        split: How images were held out, in a sentence; empty if it is not known.
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
    rates_looked: bool = False
    tuned: str = ""
    split: str = ""
    taken: int | None = None

    @property
    def history(self) -> tuple[Step, ...]:
        """Every step that epsilon counts."""
        own = self.schedule or (Step(self.rate, self.noise_multiplier, self.steps),)
        return (*self.before, *own)


def statement(facts: Facts) -> str:
    """The statement as Markdown."""
    if not facts.private:
        return _without_privacy(facts)
    f = facts
    after = [
        "the optimizer" if f.rates_looked else "the optimizer and its learning rates",
        *(["the averaging of weights"] if f.averaged else []),
        "anything done with the weights later",
    ]
    warning = words.delta_warning(f.delta, f.examples)
    return f"""# Privacy statement

The weights in `model.safetensors`, together with all weights that training passed through (those in
checkpoints and snapshots), satisfy
**({upwards(f.epsilon[f.accountant])}, {f.delta:g})-differential privacy** with respect to
{words.relation(UNIT)} of '{f.data}'.

{_in_plain_words(f)}
{f"{chr(10)}{filled(warning)}{chr(10)}" if warning else ""}
{_table(f)}
Each step is a Poisson-subsampled Gaussian mechanism. Every step was written to `ledger.jsonl`
before anything that depends on it was, and ε is computed from that ledger alone. To check it with
another library, compose {_events(f)},
under the relation that adds or removes one example. The ledger's hash chain shows that its lines
are consistent, not who wrote them; `sfumato verify RUN --key FILE` checks a signature.

Covered at no further cost, because they only use released gradients: {"; ".join(after)}.

## Several images of one person

{words.groups(f.history, f.delta, UNIT)}

## Against whom

{words.threat_model(UNIT)}
{_beginning(f)}
## Not covered

{chr(10).join(f"- {line}" for line in _not_covered(f))}

## Randomness

{_randomness(f)}

## Versions

{words.versions()}
"""


def _table(f: Facts) -> str:
    """The guarantee and the mechanism in numbers."""
    other = {"pld": "rdp", "rdp": "pld"}[f.accountant]
    here, there = (upwards(f.epsilon[name], places=4) for name in (f.accountant, other))
    sigma = f"{f.noise_multiplier:.6g}"
    if f.schedule:
        sigma += f" at first, {f.schedule[-1].noise_multiplier:.6g} at last, by a fixed plan"
    taken = f"{f.steps}"
    if f.taken is not None and f.taken < f.steps:
        taken = f"{f.taken}, counted as all {f.steps} that were planned"
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
    return f"""| | |
|---|---|
| unit of privacy | one {UNIT} |
| neighbouring relation | {words.relation_in_full(UNIT)} |
| ε by {_NAMES[f.accountant]}, which calibrated the run | {here} |
| ε by {_NAMES[other]}, for comparison | {there} |
| budget asked for | {f.budget:g} |
| δ | {f.delta:g} |
| training images N | {f.examples} |
| sampling | {sampling} |
| steps | {taken} |
| clipping | {f.rule} |
| noise multiplier σ | {sigma} |
| views per image | {f.views}{", averaged before clipping" if f.views > 1 else ""} |
{counted}"""


def _events(f: Facts) -> str:
    """The mechanisms that epsilon is composed of, for another library."""
    total = f"{f.steps} Poisson-subsampled Gaussian mechanisms with q = {f.rate!r} and\n"
    if f.schedule:
        total += ", ".join(f"σ = {s.noise_multiplier!r} ({s.count} times)" for s in f.schedule)
    else:
        total += f"σ = {f.noise_multiplier!r}"
    for step in f.before:
        total += f", and {step.count} with q = {step.q!r} and σ = {step.noise_multiplier!r}"
    return total


def _not_covered(f: Facts) -> list[str]:
    """Sentences about everything that epsilon does not count."""
    lines = [
        "What all images decide together, which is treated as public: the number of training "
        "images, the names of the classes, size and channels of the images, and what follows from "
        f"these where the recipe leaves it open (batch, steps).{f' {f.split}' if f.split else ''}",
        words.other_releases(UNIT),
        words.tuning(f.tuned),
    ]
    if f.train_metrics:
        lines.append(
            "`metrics.jsonl`, `curves.png` and `tensorboard/`: loss and accuracy in them were "
            "computed on training batches without noise, and so was the count of examples left out "
            "of steps, which checkpoints have too; their clock tells how many images steps drew. "
            "They were asked for (`training.train_metrics`): keep them inside."
        )
    if f.validation:
        lines.append(
            f"{f.validation} images held out for validation, and the test images: they were not "
            "trained on, but results on them, in `metrics.jsonl` and checkpoints, are exact."
        )
    else:
        lines.append("The test images: accuracies measured on them are exact.")
    lines += f.looked
    lines += [f"Of the start's training: {w[0].lower()}{w[1:]}" for w in f.before_looked if w]
    if f.start:
        lines.append("The choice of the start, if it was made by looking at these images.")
    return [*lines, words.timing(UNIT)]


def _randomness(f: Facts) -> str:
    said = words.randomness(seeded=f.seeded)
    if f.before_seeded and not f.seeded:
        said += (
            " **The noise of the start, however, follows from a seed**: towards people who know "
            "it, the steps of the start are not private."
        )
    return f"{said}\n\n{words.floating_point(UNIT)}"


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
    """The meaning of epsilon and delta, in lines as long as the others."""
    said = words.meaning(f.epsilon[f.accountant], f.delta)
    return filled(f"In plain words: {said[0].lower()}{said[1:]}")
