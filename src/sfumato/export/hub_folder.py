"""A trained model as a folder in the form of the Hugging Face Hub.

It holds `model.safetensors` as the run has it, `config.json`, the model card as `README.md`,
`statement.md` and, if there is one, the temperature. `sfumato.load` reads the folder, and
`safetensors` alone its tensors.
"""

from __future__ import annotations

import json
import os
import shutil
import tempfile
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from sfumato import version
from sfumato.errors import UserError
from sfumato.export.details import guarantee_of, temperature_of
from sfumato.export.model_file import checked_run
from sfumato.models import Code
from sfumato.report.card import card
from sfumato.report.measure import measure
from sfumato.training import temperature
from sfumato.training.classifier import Classifier, check_head, load, statement_of
from sfumato.training.run_folder import STATEMENT, WEIGHTS

CONFIG = "config.json"
CARD = "README.md"


def check_folder(out: Path) -> None:
    """Refuse, before the work is done, a folder that could not be made after it.

    Raises:
        UserError: If it holds something, or there is no folder to make it in.
    """
    if out.is_symlink() or (out.exists() and (not out.is_dir() or any(out.iterdir()))):
        raise UserError(f"{out} exists already and is left alone: give another --out.")
    parent = out.absolute().parent
    if not parent.is_dir() or not os.access(parent, os.W_OK | os.X_OK):
        raise UserError(
            f"{out} cannot be made in {parent}: make that folder, or give another --out."
        )


def write_folder(
    source: str | Path,
    out: str | Path,
    *,
    data: object = None,
    root: str | Path | None = None,
    trust_code: Iterable[Code] = (),
) -> tuple[Path, str]:
    """Write a new folder in the form of the Hugging Face Hub, whole or not at all.

    *Guarantee:* The folder holds released files of the run, and numbers on test images in the card;
    neither the ledger nor the recipe's seed.

    Args:
        source: A finished run folder.
        out: The new folder.
        data: Data to evaluate on for the card, instead of the run's own.
        root: Where to look for data sets first.
        trust_code: As for `sfumato.load`.

    Returns:
        The folder, and why the card has no test results, in a sentence; empty if it has.

    Raises:
        UserError: If the run has not finished or its files contradict each other, or the folder
            exists.
    """
    source, out, trusted = Path(source), Path(out), tuple(trust_code)
    check_folder(out)
    classifier = load(source, trust_code=trusted)
    check_head(source, classifier.description)
    run = checked_run(source, data=data, root=root, trust_code=trusted)
    if run is None or not run.finished:
        raise UserError(
            f"{source} is not a finished run folder, and a model card needs one: its recipe, "
            "ledger and statement."
        )
    (measured,) = measure([run], data=data, root=root, trust_code=trusted)
    made = Path(tempfile.mkdtemp(dir=out.absolute().parent, prefix=f".{out.name}."))
    try:
        kept = (temperature.FILE,) if classifier.temperature else ()
        for name in (WEIGHTS, STATEMENT, *kept):
            shutil.copyfile(source / name, made / name)
        config = json.dumps(_config(classifier, statement_of(source)), indent=2)
        (made / CONFIG).write_text(f"{config}\n", encoding="utf-8")
        (made / CARD).write_text(card(run, measured), encoding="utf-8", errors="replace")
        load(made, trust_code=trusted)
        made.chmod(0o755)
        made.rename(out)
    except BaseException as error:
        shutil.rmtree(made, ignore_errors=True)
        if isinstance(error, OSError):
            raise UserError(f"{out} cannot be written: {error.strerror}.") from None
        raise
    return out, measured.missing


def _config(classifier: Classifier, statement: str | None) -> dict[str, Any]:
    """The content of `config.json`, from which the Hub knows the model."""
    d = classifier.description
    return {
        "library_name": "sfumato",
        "model_type": "sfumato",
        "architectures": [d.model],
        "model_options": d.options,
        "num_labels": len(d.classes),
        "id2label": {str(k): name for k, name in enumerate(d.classes)},
        "label2id": {name: k for k, name in enumerate(d.classes)},
        "num_channels": d.channels,
        "image_size": list(d.size),
        "image_mean": list(d.mean),
        "image_std": list(d.std),
        "test_views": d.test_views,
        **temperature_of(classifier.temperature),
        "guarantee": guarantee_of(d),
        "statement_sha256": statement,
        "sfumato_version": version.of(),
    }
