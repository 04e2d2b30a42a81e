"""A temperature kept with the weights: fitted rightly, used by all, and removed without a trace."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch

from sfumato import UserError, analysis, export
from sfumato.training import temperature as temperatures
from sfumato.training.classifier import load
from tiny_run import make_run


def drawn(temperature: float, *, n: int = 20_000, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Logits that are too certain by a temperature, and labels drawn from the right ones."""
    random = np.random.default_rng(seed)
    right = 2 * random.normal(size=(n, 4))
    noise = random.gumbel(size=right.shape)
    return temperature * right, (right + noise).argmax(1)


@pytest.mark.parametrize("wanted", [0.5, 3.0])
def test_the_temperature_is_recovered(tmp_path: Path, wanted: float) -> None:
    run = make_run(tmp_path / "run")
    found = analysis.keep_temperature(run, *drawn(wanted), fitted_on="drawn images")
    assert found.value == pytest.approx(wanted, rel=0.05)
    assert found.after["nll"] <= found.before["nll"] and found.after["ece"] < 0.02
    z, y = drawn(wanted, seed=1)
    after = analysis.scores(analysis.softmax(z, found.value), y)
    assert after.nll <= analysis.scores(analysis.softmax(z), y).nll + 1e-4


def test_every_user_of_the_weights_divides_by_it(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run")
    images = torch.rand(50, 1, 8, 8)
    plain = load(run)
    before = {path.name: path.read_bytes() for path in run.iterdir()}
    found = analysis.keep_temperature(run, *drawn(3.0), fitted_on="drawn images")
    for source in (run, run / "model.safetensors"):
        warm = load(source)
        assert warm.temperature == found
        torch.testing.assert_close(warm.logits(images), plain.logits(images) / found.value)
        assert torch.equal(warm.predict(images).argmax(1), plain.predict(images).argmax(1))
        assert warm.predict(images).max() < plain.predict(images).max()
    export.write(run, tmp_path / "m.pt", to="torchscript")
    program = torch.jit.load(tmp_path / "m.pt")
    torch.testing.assert_close(program(images), load(run).predict(images))
    (tmp_path / "moved").mkdir()
    (tmp_path / "moved" / "model.safetensors").write_bytes(before["model.safetensors"])
    assert load(tmp_path / "moved").temperature is None
    temperatures.remove(run / "model.safetensors")
    assert {path.name: path.read_bytes() for path in run.iterdir()} == before
    assert torch.equal(load(run).predict(images), plain.predict(images))


def test_nothing_is_overwritten_and_strange_files_are_refused(tmp_path: Path) -> None:
    run, other = make_run(tmp_path / "run"), make_run(tmp_path / "other")
    weights = run / "model.safetensors"
    analysis.keep_temperature(run, *drawn(3.0), fitted_on="drawn images")
    kept = (run / "temperature.json").read_bytes()
    with pytest.raises(UserError, match="left alone"):
        analysis.keep_temperature(run, *drawn(2.0), fitted_on="others")
    assert (run / "temperature.json").read_bytes() == kept
    content = json.loads(kept)
    for wrong in (
        b"{", b"[]", json.dumps(content | {"value": 0}).encode(),
        json.dumps(content | {"value": True}).encode(),
        json.dumps(content | {"value": "NaN"}).encode(),
        json.dumps(content | {"more": 1}).encode(),
        json.dumps(content | {"before": {"nll": None}}).encode(),
    ):  # fmt: skip
        (run / "temperature.json").write_bytes(wrong)
        with pytest.raises(UserError, match="cannot be read as a temperature"):
            load(weights)
    (other / "temperature.json").write_bytes(json.dumps(content | {"weights": "ab"}).encode())
    with pytest.raises(UserError, match="fitted for other weights"):
        load(other)


def test_perfect_and_useless_predictions_have_no_temperature(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run")
    with pytest.raises(UserError, match="every prediction is right"):
        analysis.keep_temperature(run, np.eye(4), np.arange(4), fitted_on="four images")
    with pytest.raises(UserError, match="no better than chance"):
        analysis.keep_temperature(run, -np.eye(4), np.arange(4), fitted_on="four images")
    assert not (run / "temperature.json").exists()
    with pytest.raises(UserError, match="no temperature"):
        temperatures.remove(run / "model.safetensors")
