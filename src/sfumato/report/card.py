"""A model card in Markdown, with the header that the Hugging Face Hub reads.

The guarantee is stated with everything that NIST SP 800-226 and the differential-privacy community
ask for: unit, neighbouring relation, epsilon and delta, accountant, sampler, noise, clipping, what
is not covered, and tuning.

*Guarantee:* The card renders the guarantee that follows from the ledger. It holds no
number that was computed on training batches, and no seed that noise follows from.
"""

from __future__ import annotations

import json
import math
import re
from pathlib import Path
from urllib.parse import quote

from sfumato import version
from sfumato.charts import png
from sfumato.privacy import statement_chapters
from sfumato.privacy.statement import IMAGES, data_of, upwards
from sfumato.report import discrimination, privacy
from sfumato.report.detail import without_seed
from sfumato.report.measure import Measured, disagreement
from sfumato.run import Run
from sfumato.text import percent, printable, quoted_markdown
from sfumato.text import plain_markdown as _plain
from sfumato.training.phases import in_words
from sfumato.training.run_folder import WEIGHTS

_TAGS = ("image-classification", "differential-privacy", "dp-sgd", "pytorch", "sfumato")


def card(run: Run, measured: Measured, *, curves: str = "") -> str:
    """The card of a finished run.

    Args:
        run: The run.
        measured: What `measure` found of it.
        curves: The file beside the card with its ROC and precision-recall curves, if there is one.
    """
    parts = [
        _header(run, measured),
        f"# {_plain(run.recipe.model.name)} on {_plain(run.data)}",
        _summary(run, measured),
        "## How to use it",
        _usage(),
        "## Intended use",
        _intended(run),
        "## Privacy",
        _privacy(run, measured),
        "## Training data",
        _data(run, measured),
        "## Training",
        _training(run, measured),
        "## Evaluation",
        _evaluation(run, measured, curves),
        "## Limitations",
        _limitations(run, measured),
        f"Written by sfumato {version.of()} from the run '{_plain(run.name)}'.",
    ]
    return "\n\n".join(parts) + "\n"


def _header(run: Run, measured: Measured) -> str:
    """YAML, every text of the user's as a JSON string, which YAML reads the same."""
    tags = [tag for tag in _TAGS if run.private or not tag.startswith(("diff", "dp-"))]
    lines = [
        "---",
        "# license: choose one, such as apache-2.0 or cc-by-4.0, and remove the '#'",
        "library_name: sfumato",
        "pipeline_tag: image-classification",
        "tags:",
        *(f"- {tag}" for tag in tags),
    ]
    if run.accuracy is not None:
        metrics = [("accuracy", "test accuracy", run.accuracy)]
        e = measured.evaluation
        if e is not None and not disagreement(run, measured):
            areas = [
                ("roc_auc", "AUROC", "auroc"),
                ("average_precision", "AP", "average_precision"),
            ]
            known = [(kind, name, e.overall(key)) for kind, name, key in areas]
            metrics += [found for found in known if not math.isnan(found[2])]
            metrics.append(("brier_score", "Brier score (0 to 2)", e.brier))
            metrics.append(("expected_calibration_error", "ECE, 15 bins", e.ece))
        lines += [
            "model-index:",
            f"- name: {json.dumps(run.name)}",
            "  results:",
            "  - task:",
            "      type: image-classification",
            "    dataset:",
            f"      name: {json.dumps(run.data)}",
            f"      type: {json.dumps(run.data)}",
            "      split: test",
            "    metrics:",
        ]
        for kind, name, value in metrics:
            lines += [
                f"    - type: {kind}",
                f"      name: {json.dumps(name)}",
                f"      value: {value:.6g}",
            ]
    return "\n".join([*lines, "---"])


def _summary(run: Run, measured: Measured) -> str:
    size = "" if measured.parameters is None else f" of {measured.parameters:,} parameters"
    kinds = "" if measured.classes is None else f" into {measured.classes} classes"
    result = "" if run.accuracy is None else f" Test accuracy: **{100 * run.accuracy:.2f} %**."
    price = (
        f" Privacy: **ε = {upwards(run.spent)}, δ = {run.recipe.privacy.delta:g}** for one "
        f"{run.recipe.data.unit}."
        if run.private and run.spent is not None
        else " **It has no privacy guarantee.**"
    )
    return f"A network{size} that sorts images{kinds}.{result}{price}"


def _usage() -> str:
    return f"""```python
import torch
import sfumato

classifier = sfumato.load("{WEIGHTS}")
about = classifier.description
images = torch.zeros(2, about.channels, *about.size, dtype=torch.uint8)  # yours, (N, C, H, W)
probabilities = classifier.predict(images)  # uint8, or floats from 0 to 1; normalised for you
names = [classifier.classes[k] for k in probabilities.argmax(1).tolist()]
```

Image files are read, turned and scaled as in training by
`sfumato predict {WEIGHTS} FOLDER`. The file holds tensors and a description of itself; nothing in
it is executed."""


def _intended(run: Run) -> str:
    return (
        f"Sorting images of the kind of '{_plain(run.data)}' into its classes. [Say who is to use "
        "it, for what decisions, and who checks them.]\n\n"
        "Not for images of another kind, for classes it was not trained on, or as the only ground "
        "of a decision about a person."
    )


def _privacy(run: Run, measured: Measured) -> str:
    parts = [f"> {quoted_markdown(' '.join(line.split()))}" for line in privacy.warnings(run)]
    parts.append(_plain(privacy.lead(run)))
    g = run.guarantee
    if g is not None and g.private:
        rows = "\n".join(
            f"| {name} | {quoted_markdown(value)} |" for name, value in statement_chapters.rows(g)
        )
        parts.append(f"| | |\n|---|---|\n{rows}")
        parts.append(
            "The mechanism is DP-SGD: each step is a Poisson-subsampled Gaussian mechanism. Every "
            "step was recorded in a ledger before anything that depends on it was "
            "released, and ε is computed from that ledger. Trust model: central; whoever trained "
            "the model saw the images."
        )
    for title, text in (statement_chapters.quoted(g) if g is not None else {}).items():
        parts += [f"### {title}", quoted_markdown(text)]
    if measured.temperature:
        parts += ["### Temperature", _plain(measured.temperature)]
    if g is not None and g.private and g.selection is None:
        parts += [
            "### Tuning",
            "[Say how the settings were chosen: on public data, or how many runs on "
            f"{data_of(g.unit)} came before this one and what each spent.] ε above is that of "
            "this run alone.",
        ]
    return "\n\n".join(parts)


def _data(run: Run, measured: Measured) -> str:
    d = run.recipe.data
    known = [f"'{_plain(run.data)}'"]
    if run.examples is not None:
        known.append(f"{run.examples:,} training {d.unit}s")
    if measured.classes is not None:
        known.append(f"{measured.classes} classes")
    held = f" {100 * d.validation:g} % were held out for validation." if d.validation else ""
    declared = " They were declared public." if d.public else ""
    consent = "with what consent, and how many may show one person"
    if d.unit not in IMAGES:
        consent = "and with what consent"
    return (
        f"{', '.join(known)}.{held}{declared} [Say where the images come from, whom they show, "
        f"{consent}: the unit of privacy is one {d.unit}.]"
    )


def _training(run: Run, measured: Measured) -> str:
    o, t = run.recipe.optimizer, run.recipe.training
    scaled = ""
    if o.effective_noise:
        scaled = f" × ({o.effective_noise:g} B / σ)^{o.noise_power:g}"
    phases = in_words(run.recipe, run.planned) if run.planned else ()
    rows = [
        ("network", run.recipe.model.name),
        ("parameters", "unknown" if measured.parameters is None else f"{measured.parameters:,}"),
        ("optimizer", f"{o.name}, learning rate {o.lr:g}{scaled}, {o.schedule}"),
        ("expected batch", "unknown" if run.batch is None else f"{run.batch:g}"),
        ("steps", privacy.steps(run)),
        *([("trained", "; ".join(phases))] if phases else []),
        ("views per image", str(t.views + t.self_mix)),
        ("averaged weights", f"{t.average_kind}, {t.average:g}" if t.average else "no"),
        ("precision", t.precision),
    ]
    if run.seconds is not None:
        rows.append(("training time", f"{run.seconds / 60:.1f} minutes"))
    table = "\n".join(f"| {_plain(name)} | {_plain(value)} |" for name, value in rows)
    toml = printable(without_seed(run).to_toml())
    fence = "`" * max(3, 1 + max((len(m) for m in re.findall(r"`+", toml)), default=0))
    return (
        f"| | |\n|---|---|\n{table}\n\n<details><summary>The recipe; <code>sfumato train "
        f"recipe.toml</code> trains it again</summary>\n\n{fence}toml\n{toml}{fence}\n\n</details>"
    )


def curves_picture(measured: Measured, path: Path) -> bool:
    """Draw the ROC and precision-recall curves into a PNG file.

    Returns:
        Whether there are any.
    """
    if measured.evaluation is None or not measured.evaluation.curves:
        return False
    png.draw([discrimination.charts(measured.evaluation)], path, width=10.0, height=4.4)
    return True


def _evaluation(run: Run, measured: Measured, curves: str) -> str:
    e = measured.evaluation
    if e is None:
        reported = "" if run.accuracy is None else f"Test accuracy: {100 * run.accuracy:.2f} %.\n\n"
        return f"{reported}{_plain(measured.missing)}"
    rows = [
        ("accuracy", discrimination.overall(e, "accuracy")),
        ("balanced accuracy", discrimination.overall(e, "balanced_accuracy")),
        *discrimination.rows(e),
        ("negative log-likelihood", f"{e.nll:.4f}"),
        ("Brier score (0 to 2)", f"{e.brier:.4f}"),
        ("expected calibration error, 15 bins", f"{e.ece:.4f}"),
    ]
    table = "\n".join(f"| {name} | {value} |" for name, value in rows)
    of = f" of '{_plain(measured.data)}'" if measured.data else ""
    text = f"On {e.n:,} test images{of}:\n\n| | |\n|---|---|\n{table}"
    if words := disagreement(run, measured):
        text = f"> {_plain(words)}\n\n{text}"
    said = f"AUROC, average precision and sensitivity: {discrimination.meaning(e)}."
    text += "\n\n" + _plain(" ".join([said, *discrimination.notes(e)]))
    if len(e.classes) > 100:
        return text
    by_rank = ("auroc", "average_precision", "sensitivity")
    lines = [
        f"| {_plain(name)} | {percent(e.precision[k])} | {percent(e.recall[k])} | "
        f"{percent(e.f1[k])} | {' | '.join(discrimination.of_class(e, v, k) for v in by_rank)} | "
        f"{int(e.support[k])} |"
        for k, name in enumerate(e.classes)
    ]
    head = (
        "| class | precision | recall | F1 | AUROC | average precision | sensitivity | images |\n"
        f"|{'---|' * 8}"
    )
    text = f"{text}\n\n{head}\n" + "\n".join(lines)
    return f"{text}\n\n![ROC and precision-recall curves]({quote(curves)})" if curves else text


def _limitations(run: Run, measured: Measured) -> str:
    lines = []
    if run.private:
        lines.append(
            "Noise and clipping cost accuracy, and most of it where examples are few: rare classes "
            "and unusual images are learnt less well than common ones."
        )
        lines.append(
            f"The guarantee is about training {run.recipe.data.unit}s, one at a time. It does not "
            "keep predictions from being wrong, unfair or informative about what is true of people "
            "in general."
        )
    e = measured.evaluation
    if e is not None and len(e.classes) > 2:
        known = [k for k in range(len(e.classes)) if e.support[k] > 0]
        worst, best = (f(known, key=lambda k: float(e.recall[k])) for f in (min, max))
        least, most = percent(e.recall[worst]), percent(e.recall[best])
        if least != most:
            lines.append(
                f"Recall differs between classes: {least} for '{_plain(e.classes[worst])}', "
                f"{most} for '{_plain(e.classes[best])}'."
            )
        lines.append(
            f"Its confidence is off by {100 * e.ece:.1f} percentage points on average (ECE)."
        )
    lines.append("Accuracy on other images than those of the test set is not known.")
    return "\n".join(f"- {line}" for line in lines)
