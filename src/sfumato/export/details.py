"""The details that an exported file holds about itself: inputs, outputs, classes, guarantee."""

from __future__ import annotations

from typing import Any

from sfumato import version
from sfumato.export.program import INPUT, OUTPUT
from sfumato.training.classifier import Description
from sfumato.training.temperature import Temperature

_GUARANTEE = ("private", "epsilon", "delta", "unit")


def guarantee_of(description: Description) -> dict[str, Any]:
    """The guarantee that a file states: whether there is one, epsilon, delta and the unit."""
    return {key: description.guarantee[key] for key in _GUARANTEE if key in description.guarantee}


def temperature_of(temperature: Temperature | None) -> dict[str, Any]:
    """The words of a file on the temperature inside it; none if there is none."""
    if temperature is None:
        return {}
    return {"temperature": {"value": temperature.value, "about": temperature.sentence}}


def details(
    description: Description,
    *,
    format: str,
    opset: int | None,
    statement: str | None,
    temperature: Temperature | None = None,
) -> dict[str, Any]:
    """Plain values for the JSON in a file; docs/export.md lists them.

    Args:
        description: The model's.
        format: The name of the file's format.
        opset: Of an ONNX file.
        statement: SHA-256 of the run's statement, if it is known.
        temperature: The temperature, if there is one.
    """
    d = description
    content: dict[str, Any] = {"sfumato": version.of(), "format": format}
    if opset is not None:
        content["opset"] = opset
    return content | {
        "model": d.model,
        "classes": list(d.classes),
        "input": {
            "name": INPUT,
            "dtype": "float32",
            "shape": ["batch", d.channels, *d.size],
            "range": [0, 1],
            "normalisation": {"inside": True, "mean": list(d.mean), "std": list(d.std)},
        },
        "output": {
            "name": OUTPUT,
            "dtype": "float32",
            "shape": ["batch", len(d.classes)],
            "kind": "softmax",
            "views": d.test_views,
            **temperature_of(temperature),
        },
        "guarantee": guarantee_of(d),
        "statement_sha256": statement,
    }
