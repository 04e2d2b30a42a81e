"""Exported files: what they compute, what they hold, and what is refused."""

from __future__ import annotations

import io
import json
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from sfumato import UserError, export, models
from sfumato.export import comparison, formats
from sfumato.export.details import details
from sfumato.export.formats import DETAILS, FORMATS
from sfumato.export.program import Program
from sfumato.training.classifier import Classifier, Description, load, save_weights
from tiny_run import make_run, train_run

FAMILIES = {models.info(name).family: name for name in reversed(models.names())}
"""The first model of each family."""


def needs(format: str) -> None:
    for package in FORMATS[format].packages:
        pytest.importorskip(package)


def classifier_of(name: str, *, views: str = "none") -> Classifier:
    """A network as it is initialised, for images of the size that it is published for."""
    torch.manual_seed(0)
    channels, *size = models.info(name).input
    height, width = (min(side, 64) for side in size)
    network = models.create(name, classes=7, channels=channels, size=(height, width)).eval()
    description = Description(
        name, {}, tuple("abcdefg"), channels, (height, width), (0.4,) * channels, (0.2,) * channels,
        {"private": True, "epsilon": {"pld": 3.0}, "delta": 1e-5, "unit": "one image"}, views,
    )  # fmt: skip
    return Classifier(network, description)


def check(classifier: Classifier, format: str, opset: int = formats.OPSET) -> bytes:
    """That a file of this format gives the classifier's probabilities, and so its logits."""
    needs(format)
    d = classifier.description
    content = FORMATS[format].write(
        Program(classifier), torch.rand(2, d.channels, *d.size), "{}", opset
    )
    images, held_out = comparison.compared_images(d, None)
    assert len(images) == 100 and held_out == 0
    runner = FORMATS[format].read(content)
    assert comparison.largest_difference(classifier, runner, images) <= 1e-5
    ratio = runner(images[:10]) / classifier.predict(images[:10])
    assert float(ratio.log().abs().max()) <= 1e-4
    return content


@pytest.mark.slow
@pytest.mark.parametrize("format", FORMATS)
@pytest.mark.parametrize("name", FAMILIES.values())
def test_every_family_of_the_zoo(name: str, format: str) -> None:
    check(classifier_of(name), format)


@pytest.mark.parametrize("format", FORMATS)
def test_a_small_network(format: str) -> None:
    content = check(classifier_of("tanh-cnn"), format)
    assert format == "torchscript" or str(Path(torch.__file__).parent).encode() not in content


@pytest.mark.parametrize("views", ["flip", "all"])
def test_views_are_inside(views: str) -> None:
    check(classifier_of("tanh-cnn", views=views), "torchscript")


@pytest.mark.slow
@pytest.mark.parametrize("opset", formats.OPSETS)
def test_every_opset(opset: int) -> None:
    onnx = pytest.importorskip("onnx")
    content = check(classifier_of("resnet9"), "onnx", opset)
    (entry,) = [e for e in onnx.load_from_string(content).opset_import if not e.domain]
    assert entry.version == opset


def held_details(path: Path) -> dict[str, Any]:
    """What a file says of itself, read as a stranger would."""
    extra = {DETAILS: ""}
    if path.suffix == ".onnx":
        (entry,) = pytest.importorskip("onnx").load(path).metadata_props
        extra = {entry.key: entry.value}
    elif path.suffix == ".pt":
        torch.jit.load(path, _extra_files=extra)
    else:
        torch.export.load(path, extra_files=extra)
    found: dict[str, Any] = json.loads(extra[DETAILS])
    return found


def test_a_trained_run(tmp_path: Path) -> None:
    folder = train_run(tmp_path / "run", {"training.seed": 0})
    done = export.write(folder, tmp_path / "m.pt", to="torchscript")
    assert done.images == "100 test images of 'digits'" and done.difference <= 1e-5
    assert done.path == tmp_path / "m.pt" and done.opset is None
    found = held_details(done.path)
    guarantee = json.loads((folder / "guarantee.json").read_text())
    assert found["guarantee"]["epsilon"] == guarantee["epsilon"]
    assert found["guarantee"]["delta"] == guarantee["delta"]
    assert found["guarantee"]["unit"] == "one image"
    assert found["classes"] == list("0123456789")
    assert found["input"]["shape"] == ["batch", 1, 8, 8]
    from hashlib import sha256

    statement = (folder / "statement.md").read_bytes()
    assert found["statement_sha256"] == sha256(statement).hexdigest()
    image = np.random.default_rng(0).integers(0, 256, (5, 1, 8, 8), dtype=np.uint8)
    mine = torch.jit.load(done.path)(torch.from_numpy(image).float() / 255)
    torch.testing.assert_close(mine, load(folder).predict(image), rtol=0, atol=1e-5)


def test_onnx_of_a_run_by_a_stranger(tmp_path: Path) -> None:
    needs("onnx")
    import onnxruntime

    folder = make_run(tmp_path / "run")
    done = export.write(folder / "model.safetensors", tmp_path / "m.onnx", to="onnx")
    assert done.images == "100 random images" and done.opset == 18
    found = held_details(done.path)
    assert found["opset"] == 18 and found["guarantee"]["epsilon"] == {"pld": 3.0}
    session = onnxruntime.InferenceSession(done.path, providers=["CPUExecutionProvider"])
    assert session.get_inputs()[0].shape == ["batch", 1, 8, 8]
    assert session.get_outputs()[0].name == "probabilities"
    images = torch.rand(9, 1, 8, 8)
    (mine,) = session.run(None, {"images": images.numpy()})
    np.testing.assert_allclose(mine, load(folder).predict(images), rtol=0, atol=1e-5)


def test_a_file_that_differs_is_not_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = make_run(tmp_path / "run")
    real = FORMATS["torchscript"]
    wrong = replace(real, read=lambda content: lambda x: real.read(content)(x) + 2e-4)
    monkeypatch.setitem(FORMATS, "torchscript", wrong)
    with pytest.raises(UserError, match=r"2\.0e-04 on 100 images.*format \(onnx, pt2\)"):
        export.write(folder, tmp_path / "m.pt", to="torchscript")
    assert not (tmp_path / "m.pt").exists()


def test_a_model_that_diverged(tmp_path: Path) -> None:
    folder = make_run(tmp_path / "run")
    broken = load(folder)
    with torch.no_grad():
        next(broken.network.parameters()).fill_(float("nan"))
    save_weights(folder / "model.safetensors", broken.network, broken.description)
    with pytest.raises(UserError, match="not finite"):
        export.write(folder, tmp_path / "m.pt", to="torchscript")


def test_a_model_that_cannot_be_exported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = make_run(tmp_path / "run")

    def fails(self: Program, images: torch.Tensor) -> torch.Tensor:
        raise KeyError("no such operator")

    monkeypatch.setattr(Program, "forward", fails)
    with pytest.raises(
        UserError, match=r"'tanh-cnn' cannot be written as TorchScript: .*onnx, pt2"
    ):
        export.write(folder, tmp_path / "m.pt", to="torchscript")
    assert not (tmp_path / "m.pt").exists()


def test_a_missing_package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "onnx", None)
    with pytest.raises(UserError, match=r"package onnx.*pip install 'sfumato\[onnx\]'"):
        export.write(make_run(tmp_path / "run"), tmp_path / "m.onnx", to="onnx")


def test_few_test_images_are_made_up_for(tmp_path: Path) -> None:
    from sfumato.data import ImageSet

    d = classifier_of("tanh-cnn").description
    pixels = np.full((3, 1, 28, 28), 51, dtype=np.uint8)
    images, count = comparison.compared_images(d, ImageSet(pixels, np.zeros(3, dtype=np.int64)))
    assert images.shape == (100, 1, 28, 28) and count == 3
    assert torch.equal(images[:3], torch.full((3, 1, 28, 28), 0.2))
    assert float(images.min()) >= 0 and float(images.max()) <= 1


def test_a_run_whose_files_contradict_each_other(tmp_path: Path) -> None:
    folder = train_run(tmp_path / "run", {"training.seed": 0})
    ledger = folder / "ledger.jsonl"
    ledger.write_text("".join(ledger.read_text().splitlines(keepends=True)[:-1]))
    with pytest.raises(UserError, match=r"guarantee of .* cannot be stated"):
        export.write(folder, tmp_path / "m.pt", to="torchscript")


def test_details_are_plain_json() -> None:
    content = details(
        classifier_of("tanh-cnn").description, format="onnx", opset=18, statement=None
    )
    assert json.loads(json.dumps(content)) == content
    assert io.StringIO(json.dumps(content)).read().isascii()
