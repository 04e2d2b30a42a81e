"""The privacy statement, rendered from a `Guarantee`: lead, table of numbers, and chapters.

Names and words of users are escaped here: nothing in a guarantee becomes markup of a statement.
"""

from __future__ import annotations

import textwrap

from sfumato.privacy import statement as words
from sfumato.privacy.accounting.selection import Selection
from sfumato.privacy.guarantee import Guarantee
from sfumato.privacy.statement import filled, upwards
from sfumato.text import words_in_markdown as escaped

START = "Where the first weights came from"
CHOICE = "The choice among several runs"
AGAINST = "Against whom"
RANDOMNESS = "Randomness"
NOT_COVERED = "Not covered"
_CLASSES_SHOWN = 20
"""Classes whose rates a statement lists."""

ACCOUNTANTS = {"pld": "PLD (privacy loss distribution)", "rdp": "RDP (Rényi)"}


def statement(g: Guarantee) -> str:
    """The whole statement as Markdown."""
    title = "# Privacy statement"
    body = [f"## {heading}\n\n{text}" for heading, text in chapters(g).items()]
    if not g.private:
        return "\n\n".join([title, _without_privacy(g), *body]) + "\n"
    table = "\n".join(f"| {name} | {value} |" for name, value in rows(g))
    warning = words.delta_warning(g.delta, g.examples, unit=g.unit)
    meaning = words.meaning(g.spent, g.delta, unit=g.unit)
    parts = [
        title,
        _headline(g),
        filled(f"In plain words: {meaning[0].lower()}{meaning[1:]}"),
        *([filled(warning)] if warning else []),
        f"| | |\n|---|---|\n{table}",
        _composition(g),
        *([] if g.own_loop else [_covered(g)]),
        *body,
    ]
    return "\n\n".join(parts) + "\n"


def headlines(epsilon: float, delta: float) -> tuple[str, str]:
    """Epsilon, rounded up, and delta, as the first sentence of a statement prints them."""
    end = f", {delta:g})-differential privacy**"
    return f"**({upwards(epsilon)}{end}", f"**({epsilon:.4g}{end}"


def chapters(g: Guarantee) -> dict[str, str]:
    """The chapters of the statement as Markdown, by heading, in order."""
    start = {START: "\n\n".join(_start(g))} if g.start else {}
    if not g.private:
        return start
    one, selected = {1: g.spent if g.selection else g.epsilon["pld"]}, g.selection is not None
    return {
        **({CHOICE: _choice(g, g.selection)} if g.selection else {}),
        **({"Audit": words.audit(g.audit)} if g.audit else {}),
        words.several(g.unit): words.groups(
            {**one, **g.group_epsilon}, g.delta, g.unit, selected=selected
        ),
        AGAINST: words.threat_model(g.unit),
        **({"Conditions": _conditions(g)} if g.own_loop else {}),
        **start,
        NOT_COVERED: "\n".join(f"- {line}" for line in not_covered(g)),
        RANDOMNESS: _randomness(g),
        "Versions": ", ".join(f"{name} {value}" for name, value in g.versions.items()),
    }


def quoted(g: Guarantee, *, ended: bool = False) -> dict[str, str]:
    """The chapters of the statement that pages and cards show as they are.

    Args:
        g: The guarantee.
        ended: Also the chapter on random numbers, which is about a run that has ended.
    """
    shown = [CHOICE, words.several(g.unit), AGAINST, START, NOT_COVERED]
    shown += [RANDOMNESS] if ended else []
    return {heading: text for heading, text in chapters(g).items() if heading in shown}


def rows(g: Guarantee) -> list[tuple[str, str]]:
    """The guarantee and the mechanism in numbers, a row each."""
    other = {"pld": "rdp", "rdp": "pld"}[g.accountant]
    role = "" if g.own_loop else ", which calibrated the run"
    most, balanced = ("at most ", " before balancing") if g.balance else ("", "")
    sampling = (
        f"Poisson: each {g.unit} in each step with probability {most}q = {g.rate:.6g} "
        f"(expected batch {g.batch:g}{balanced})"
    )
    found = [
        ("unit of privacy", f"one {g.unit}{_images(g)}"),
        ("neighbouring relation", g.relation),
        (f"ε by {ACCOUNTANTS[g.accountant]}{role}", upwards(g.spent, places=4)),
        *(
            [(f"ε by {ACCOUNTANTS[other]}, for comparison", upwards(g.epsilon[other], places=4))]
            if other in g.epsilon
            else []
        ),
        *(_choice_rows(g, g.selection) if g.selection else []),
        *([("budget asked for", f"{g.budget:g}")] if g.budget is not None else []),
        ("δ", f"{g.delta:g}"),
        (f"training {g.unit}s N", f"{g.examples}{_canaries(g)}"),
        ("sampling", sampling),
        *([("balance of classes", _balance(g))] if g.balance else []),
        ("steps", steps(g)),
        *([("trained", escaped("; ".join(g.phases)))] if g.phases else []),
        ("clipping", escaped(g.clipping)),
        ("noise multiplier σ", _sigma(g)),
        (
            f"views per {g.unit if g.unit in words.IMAGES else 'image'}",
            f"{g.views}{', averaged before clipping' if g.views > 1 else ''}",
        ),
    ]
    if g.batchnorm_to:
        found.append(("model", f"every BatchNorm replaced by {escaped(g.batchnorm_to)}"))
    if g.start_steps:
        before = sum(step.count for step in g.start_steps)
        alone = f"{before}, ε = {upwards(g.start_epsilon, places=4)} alone"
        found.append(("steps of the start, counted above", alone))
    return found


def _balance(g: Guarantee) -> str:
    """The rates of classes beside q, and whose rate epsilon counts."""
    shown = [f"{rate:.3g}" for rate in g.balance[:_CLASSES_SHOWN]]
    more = ["…"] if len(g.balance) > _CLASSES_SHOWN else []
    return (
        f"{g.unit}s of a class enter a step with probability q times {', '.join([*shown, *more])} "
        "(in the order of classes; settings, not counted from the data); ε counts q for all"
    )


def _images(g: Guarantee) -> str:
    """The number of images that one unit has in a step, in parentheses."""
    if g.unit in words.IMAGES:
        return ""
    most = f"at most {g.images_per_unit}" if g.images_per_unit else "all"
    return f" ({most} images each step, averaged before clipping)"


def _choice_rows(g: Guarantee, selection: Selection) -> list[tuple[str, str]]:
    """The choice among several runs, and the cost of one of them."""
    chosen = words.chosen_among(selection.mean, selection.distribution)
    alone = ", ".join(f"{upwards(v, places=4)} by {k.upper()}" for k, v in g.run_epsilon.items())
    return [("this run is", f"{chosen}; ε above counts that"), ("ε of one such run", alone)]


def _choice(g: Guarantee, selection: Selection) -> str:
    """The way in which a run was chosen among several, and what the choice rests on."""
    chosen = words.chosen_among(selection.mean, selection.distribution)
    return "\n\n".join(
        filled(paragraph)
        for paragraph in (
            f"This run is {chosen}. How many there were is not known, and ε holds whatever their "
            "number was (Papernot & Steinke, 2022): it is the cost of all of them and of the "
            "choice. Their settings were drawn independently from fixed lists and ranges.",
            words.scoring(selection.score_noise, g.unit),
            "This holds towards people who see this run and its score, but nothing of the other "
            "runs, which were deleted, and not how long all of them took together.",
        )
    )


def steps(g: Guarantee) -> str:
    """The number of steps taken and planned, and how they were counted."""
    if g.taken < g.counted:
        return f"{g.taken}, counted as all {g.counted} that were planned"
    return f"{g.taken} of {g.planned}" if g.taken < (g.planned or 0) else f"{g.taken}"


def not_covered(g: Guarantee) -> list[str]:
    """Everything that epsilon does not cover, as Markdown, one or two sentences each."""
    unit = g.unit
    counted = "example" if unit in words.IMAGES else unit
    if g.own_loop:
        return [
            f"The number of training {counted}s, the sampling rate, and the shape of the examples. "
            "They are treated as public.",
            words.other_releases(unit),
            words.tuning(escaped(g.tuned), unit=unit),
            "Losses, accuracies and counts of training batches: they were computed without noise.",
            words.timing(unit),
        ]
    tuned = words.tuning(escaped(g.tuned), unit=unit)
    lines = [
        f"What all {unit}s decide together, which is treated as public: the number of training "
        f"{unit}s, the names of the classes, size and channels of the images, and what follows "
        "from these where the recipe leaves it open (batch, steps)."
        f"{f' {g.split}' if g.split else ''}",
        words.other_releases(unit),
        tuned if g.selection is None else words.search_space(unit),
    ]
    if g.train_metrics:
        lines.append(
            "`metrics.jsonl`, `curves.png` and `tensorboard/`: loss and accuracy in them were "
            "computed on training batches without noise, and so was the count of examples left out "
            f"of steps, which checkpoints have too; their clock tells how many {unit}s steps drew. "
            "They were asked for (`training.train_metrics`): keep them inside."
        )
    if g.validation == 0:
        lines.append("The test images: accuracies measured on them are exact.")
    else:
        held = "Images" if g.validation is None else f"{g.validation} images"
        lines.append(
            f"{held} held out for validation, and the test images: they were not trained on, but "
            "results on them, in `metrics.jsonl` and checkpoints, are exact."
        )
    lines += g.looked
    before = [escaped(sentence) for sentence in g.start_looked if sentence]
    lines += [f"Of the start's training: {w[0].lower()}{w[1:]}" for w in before]
    if g.start:
        seen = words.data_of(unit)
        lines.append(f"The choice of the start, if it was made by looking at {seen}.")
    return [*lines, words.temperature(unit), words.timing(unit)]


def _canaries(g: Guarantee) -> str:
    return f", {g.canaries} canaries of an audit among them" if g.canaries else ""


def _headline(g: Guarantee) -> str:
    relation = f"{words.relation(g.unit)} of '{escaped(g.data)}'"
    stated, _ = headlines(g.spent, g.delta)
    if g.own_loop:
        return (
            "The noisy gradients that were released, and so all weights made of nothing else, "
            f"satisfy\n{stated} with respect to\n{relation}, if the conditions below "
            "were kept."
        )
    return (
        "The weights in `model.safetensors`, together with all weights that training passed "
        f"through (those in\ncheckpoints and snapshots), satisfy\n{stated} with "
        f"respect to\n{relation}."
    )


def _composition(g: Guarantee) -> str:
    """Instructions for checking epsilon with another library, and what the ledger shows."""
    events = ", and\n".join(
        f"{s.count} with q = {s.q!r} and σ = {s.noise_multiplier!r}"
        for s in (*g.steps, *g.start_steps)
    )
    composed = (
        "To check it with another library, compose Poisson-subsampled Gaussian mechanisms,\n"
        f"{events or 'none'},\nunder the relation that adds or removes one example."
    )
    if g.selection:
        shape = {"logarithmic": 0, "geometric": 1, "poisson": "infinity"}[g.selection.distribution]
        once = " those of the start being taken once," if g.start_steps else ""
        composed += (
            f"\nThis is one run;{once} the choice is a `RepeatAndSelectDpEvent` of dp_accounting "
            f"around it,\nwith mean {g.selection.mean!r} and shape {shape}, by RDP."
        )
    if g.own_loop:
        return composed
    return (
        "Each step is a Poisson-subsampled Gaussian mechanism. Every step was written to "
        "`ledger.jsonl`\nbefore anything that depends on it was, and ε is computed from that "
        f"ledger alone.\n{composed}\nThe ledger's hash chain shows that its lines are consistent, "
        "not who wrote them;\n`sfumato verify RUN --key FILE` checks a signature."
    )


def _covered(g: Guarantee) -> str:
    after = [
        "the optimizer" if g.rates_looked else "the optimizer and its learning rates",
        *(["the averaging of weights"] if g.averaged else []),
        "anything done with the weights later",
    ]
    said = "Covered at no further cost, because they only use released gradients: "
    return f"{said}{'; '.join(after)}."


def _sigma(g: Guarantee) -> str:
    if not g.steps:
        return "none yet"
    first, last = g.steps[0].noise_multiplier, g.steps[-1].noise_multiplier
    if g.own_loop or len(g.steps) == 1:
        return ", ".join(f"{step.noise_multiplier:.6g}" for step in g.steps)
    return f"{first:.6g} at first, {last:.6g} at last, by a fixed plan"


def _conditions(g: Guarantee) -> str:
    """The conditions that an own loop must have kept."""
    isolation = ""
    if not g.checked:
        isolation = "No example reached another's gradient: checks of the model were turned off."
    elif not g.checked_at_end:
        isolation = (
            "No example reached another's gradient after the last batch that was checked: the "
            "model was frozen, moved or changed since, so the check at the end was left out."
        )
    if isolation:
        isolation = "\n" + textwrap.fill(f"- {isolation}", 98, subsequent_indent="  ")
    return f"""The loop was not sfumato's. It must have kept these, which the library cannot see:

- Before each release, the examples of one draw of the sampler were accumulated, each exactly once.
  A shuffled loader with batches of a fixed size is not such a draw.
- Nothing else that depends on the examples entered the weights: no statistics for normalising, no
  buffers, no choice of rates or of the last step by results on them.
- The draws came from `sampler.draw` with a key that nobody else knows, as it takes by default.
- The key of the noise was kept from everybody, if it was kept at all.{isolation}"""


def _randomness(g: Guarantee) -> str:
    said = words.randomness(seeded=g.seeded, unit=g.unit)
    if g.own_loop and not g.seeded:
        said = (
            "The noise comes from the stream cipher ChaCha20 with a key of 256 bits, and no two "
            "releases of this mechanism have the same noise."
        )
    if not g.noise_source and not g.seeded:
        said = (
            "This run began with a version of sfumato that did not record where its random numbers "
            "came from: not all of them come from a cipher."
        )
    if g.start_seeded and not g.seeded:
        said += (
            " **The noise of the start, however, follows from a seed**: towards people who know "
            "it, the steps of the start are not private."
        )
    rounding = f"\n\n{filled(words.floating_point(g.unit))}" if g.noise_source else ""
    return f"{filled(said)}{rounding}"


def _without_privacy(g: Guarantee) -> str:
    data = escaped(g.data)
    if g.public:
        return (
            f"**There is no privacy guarantee.** This model was trained without privacy on "
            f"'{data}', which the user declared to be public. If any of those images is not, "
            "treat the weights like the images."
        )
    return (
        f"**There is no privacy guarantee.** This model was trained on '{data}' with privacy "
        "switched off, for comparison. Treat its weights like the training images."
    )


def _start(g: Guarantee) -> list[str]:
    """The origin of the initial weights, and what was treated as public, in paragraphs."""
    lines = [escaped(g.start)]
    none = "none of them" if g.unit in words.IMAGES else f"no {g.unit} that they are of"
    if g.start_steps:
        known = " and ".join(f"'{escaped(name)}'" for name in g.start_names)
        lines.append(
            f"The start was trained with noise on {words.data_of(g.unit, which='these same')}, as "
            "the user declared. Its steps are counted in ε above."
            + (f" Some of them were taken on what was then called {known}." if known else "")
        )
    for e in g.exposures[1:]:
        data = escaped(e.data)
        if e.noisy:
            cost = ", ".join(f"{upwards(v)} by {k.upper()}" for k, v in e.epsilon.items())
            whose = "" if e.unit == g.unit == "image" else f" for one {escaped(e.unit)}"
            whose += ", with noise from a seed" if e.seeded else ""
            lines.append(
                f"The start also depends on '{data}', with ε = {cost} at δ = {e.delta:g}{whose}. "
                f"This run released nothing more about those images, provided that {none} is "
                f"in '{escaped(g.data)}' too, as the user declared."
            )
        elif e.drawn:
            lines.append(
                f"The start was trained on '{data}': images that a program drew at random, in "
                "which there is nobody. It depends on no data, and nothing was spent for it."
            )
        elif e.public:
            lines.append(
                f"**'{data}' was treated as public**, as the user declared: the start was "
                "trained on it without privacy, and nothing here protects those images."
            )
        else:
            lines.append(
                f"The start was trained on '{data}' without privacy, and nobody declared it "
                "public: treat the weights like those images too."
            )
    return lines
