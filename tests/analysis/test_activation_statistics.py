"""Activations and residual sums against direct computations."""

from __future__ import annotations

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from random_images import images, scaled
from torch import Tensor, nn

from sfumato import models
from sfumato.analysis.activation_statistics import activations_of, first_activation, layers


def test_moments_histogram_and_norm_are_numpys() -> None:
    model, (x, _) = models.create("tanh-cnn", classes=3, channels=1, size=16, filters=4), images()
    found = activations_of(model, x, batch=4, bins=20)
    assert [d.name for d in found.layers] == ["activation1", "activation2"]
    assert not found.residuals
    with torch.no_grad():
        values = torch.tanh(model.conv1(x)).double().numpy()
    first = first_activation(found)
    assert first is not None and first.name == "activation1" and first.count == values.size
    assert first.mean == pytest.approx(values.mean(), rel=1e-5)
    assert first.std == pytest.approx(values.std(), rel=1e-5)
    skewness = ((values - values.mean()) ** 3).mean() / values.std() ** 3
    assert first.skewness == pytest.approx(skewness, rel=1e-4, abs=1e-5)
    norms = np.sqrt((values.reshape(9, -1) ** 2).sum(1))
    assert first.norm == pytest.approx(norms.mean(), rel=1e-6)
    assert first.norm_std == pytest.approx(norms.std(), rel=1e-4)
    assert first.counts.sum() == values.size, "tanh never leaves five standard deviations"
    np.testing.assert_array_equal(first.counts, np.histogram(values, first.edges)[0])


def test_named_paths_of_scale_norm_are_those_of_the_block() -> None:
    model, (x, _) = scaled(), images()
    model.train()
    found = activations_of(model, x, batch=5)
    assert model.training
    assert list(found.residuals) == ["res1", "res2"]
    with torch.no_grad():
        skip = model.conv2(model.conv1(x))
        deep = model.res1.body(skip)
        expected = {"V_R": skip, "V_F": deep, "V_A": skip + deep}
        expected["V_A^S"] = model.res1.after(expected["V_A"])
    assert list(found.residuals["res1"]) == list(expected)
    for path, values in expected.items():
        d = found.residuals["res1"][path]
        assert d.mean == pytest.approx(float(values.mean()), abs=1e-5), path
        assert d.std == pytest.approx(float(values.std(correction=0)), rel=1e-4), path
    after = found.residuals["res1"]["V_A^S"]
    assert after.mean == pytest.approx(0, abs=1e-4) and after.std == pytest.approx(1, abs=1e-3)


@pytest.mark.parametrize(
    ("name", "options", "blocks", "paths"),
    [
        ("resnet9", {"layout": (2, 4, 4), "groups": 2}, 2, 3),
        ("wrn-10-1", {}, 3, 3),
        ("wrn-10-1", {"norm_order": "norm-activation"}, 3, 3),
        ("scale-wrn-10-1", {"norm_order": "norm-activation"}, 3, 4),
        ("resnet20", {"blocks": 1, "filters": 4}, 3, 3),
        ("smoothnet", {"width": 1, "depth": 3, "links": "residual"}, 6, 3),
        ("smoothnet", {"width": 1, "depth": 2}, 0, 0),
        ("eq-resnet9-c4", {"layout": (2, 2, 4)}, 2, 4),
    ],
)
def test_residual_blocks_of_the_zoo_are_found(
    name: str, options: dict, blocks: int, paths: int
) -> None:
    model = models.create(name, classes=3, channels=1, size=16, **options)
    found = activations_of(model, images(2)[0]).residuals
    assert len(found) == blocks
    assert all(len(block) == paths for block in found.values())


class Functional(nn.Module):
    """Nothing but convolutions as modules, an in-place sum, and a sum that is no skip."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Conv2d(1, 2, 3, padding=1), nn.Conv2d(2, 2, 3, padding=1)
        self.shift = nn.Parameter(torch.ones(1, 2, 16, 16))

    def forward(self, x: Tensor) -> Tensor:
        x = F.relu(self.a(x)) + self.shift
        y = F.relu(self.b(x), inplace=True)
        y += x
        return y.mean((2, 3))


def test_a_model_of_functions_is_watched_all_the_same() -> None:
    model, (x, _) = Functional(), images(3)
    assert layers(model) == {"a": "convolution", "b": "convolution"}
    found = activations_of(model, x)
    assert [d.name for d in found.layers] == ["a", "b"]
    assert list(found.residuals) == ["(whole model)"]
    with torch.no_grad():
        skip = F.relu(model.a(x)) + model.shift
    paths = found.residuals["(whole model)"]
    assert paths["V_R"].mean == pytest.approx(float(skip.mean()), rel=1e-5)
    assert paths["V_A"].mean == pytest.approx(paths["V_R"].mean + paths["V_F"].mean, rel=1e-5)
