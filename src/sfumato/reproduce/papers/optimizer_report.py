"""Radhakrishna and Hegde (2024): adaptive and per-layer clipping, weight standardisation."""

from __future__ import annotations

from functools import partial

from sfumato.reproduce.papers.common import DE, row
from sfumato.reproduce.row import Paper

_row = partial(row, "optimizer-report")


def paper() -> Paper:
    """The paper with its rows."""
    changed = (
        "the report changed optimizer, rate, batch and epochs on the way; here one line changes at "
        "a time"
    )
    lost = "figure 7 shows the value as a bar without a number"
    chain = (
        ("1-baseline", 41.32),
        ("2-adaptive-clipping", 46.94),
        ("3-weight-standardisation", 54.98),
        ("4-larger-batch", 60.97),
        ("5-per-layer-clipping", None),
        ("6-plateau", 62.39),
    )
    missed = {
        "4-larger-batch": "The report's 60.97 is not this one change: with the batch, its learning "
        "rate went from 0.001 to 0.5, its optimizer from RMSProp to SGD and its epochs from 15 to "
        "25 (41.32, 46.94 and 54.98 are from before). Here the batch alone grows, so one run "
        "takes 580 steps in the place of 4639 at the same rate, and its validation accuracy still "
        "rises when they end, from 55.6 % at step 490 to 57.9 %. All changes together are the row "
        "resnet20-interim-cifar10-eps3. One seed; other rates were not tried in this row.",
        "6-plateau": "The report's 62.39 is of 50 epochs with other rates, and the best of "
        "several runs; its scheduler halves the rate around epochs 20 and 30. Here the scheduler "
        "sees the accuracy on 2 500 validation images, whose noise of a point hides the progress "
        "of an epoch of 11 steps: the rate has fallen so far by step 300 of 580 that the accuracy "
        "stays at 52 % from there on, while step 5, the same without the scheduler, goes on to "
        "56.0 %. One seed; a longer patience was not tried. The row resnet20-cifar10-eps3 reaches "
        "the number by other means.",
    }
    fewer = DE | {
        "privacy.tuned": "the validation accuracy of six runs at epsilon 3 on 5 000 of CIFAR-10's "
        "50 000 training images, with 4 views and a sixteenth of batch and noise: ResNet-20 for "
        "1000 steps with rates of 1, 2 and 4, WRN-16-4 for 1600 steps with 1 and 2, C of 0.1 and 1",
        "training.batch": 2048,
        "training.steps": 2000,
    }
    small = fewer | {"training.views": 4}
    wide = fewer | {
        "model.options.norm_order": "activation-norm",
        "training.views": 2,
        "training.steps": 1000,
        "training.test_views": "shifts",
    }
    several, mean = "the best of several runs", "mean; the best is 55.61"
    rows = [
        _row("section 7", "resnet20-cifar10-eps3", 62.39, several, best=small),
        _row("section 7", "resnet20-cifar10-eps5", None, lost, best=small),
        _row("section 7", "resnet20-cifar10-eps8", None, lost, best=small),
        _row(
            "table 1", "resnet20-interim-cifar10-eps3", 60.82, "mean; the best is 60.97", best=small
        ),
        _row("table 1", "wrn-16-4-cifar10-eps3", 54.59, mean, best=wide),
        _row("table 1", "wrn-16-4-cifar10-eps5", None, "not in the report"),
        _row("table 1", "wrn-16-4-cifar10-eps8", None, "not in the report"),
    ]
    for what, value in chain:
        rdp = {"privacy.accountant": "rdp"}
        source = "sections 2 and 7, step by step"
        why = missed.get(what, "")
        rows.append(_row(source, what, value, changes=rdp, missed=why))
    return Paper(
        key="optimizer-report",
        title="CSCI 8960: privacy-preserving data analysis, interim and final report",
        authors="Radhakrishna and Hegde (2024)",
        measured="Published accuracies are on the test set. The published clipping norms follow "
        f"quantiles without noise, which its epsilon does not cover; ours are noised and covered. "
        f"Step by step, {changed}.",
        rows=tuple(rows),
    )
