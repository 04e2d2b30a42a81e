"""Class weights: what they do to gradients, and that one example still adds at most C."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from sfumato.errors import UserError
from sfumato.privacy import PrivateGradients
from sfumato.privacy.clipping import Automatic, ClippingRule, Flat, GroupWise, Normalised
from sfumato.privacy.noise import GaussianNoise
from sfumato.privacy.sampling import PoissonSampler
from sfumato.recipe import Recipe
from sfumato.training.class_weights import WeightedCrossEntropy, check_class_weights
from sfumato.training.classifier import read_weights
from sfumato.training.pipeline import train
from sfumato.training.run_folder import WEIGHTS
from thinning import one_in
from tiny_run import TINY

CLASSES = ("a", "b", "c")
FACTORS = (0.01, 1.0, 1e6)
CLIP = 0.7


def network() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Flatten(), nn.Linear(16, 5), nn.Tanh(), nn.Linear(5, 3))


def batch(n: int) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(1)
    return torch.randn(n, 1, 4, 4, generator=generator), torch.arange(n) % 3


def summed(model: nn.Module, rule: ClippingRule, x: Tensor, y: Tensor, images: int = 1) -> Tensor:
    """The sum that is released, without noise."""
    private = PrivateGradients(
        model, sampler=PoissonSampler(50, 10), clipping=rule, noise=GaussianNoise(0.0),
        loss=WeightedCrossEntropy(FACTORS), images=images, precision=None,
    )  # fmt: skip
    private.accumulate(x, y)
    private.release()
    return 10 * torch.cat([p.grad.flatten() for p in model.parameters() if p.grad is not None])


def gradient(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    """The gradient of one image's loss, without weights."""
    loss = nn.functional.cross_entropy(model(x[None]), y[None])
    return torch.cat([g.flatten() for g in torch.autograd.grad(loss, list(model.parameters()))])


@pytest.mark.parametrize("rule", [Flat(CLIP), Normalised(CLIP), GroupWise(CLIP)])
def test_the_loss_of_each_example_is_multiplied_before_clipping(rule: ClippingRule) -> None:
    x, y = batch(9)
    model = network()
    expected = torch.zeros(sum(p.numel() for p in model.parameters()), dtype=torch.float64)
    bound = rule.bind(
        [n for n, _ in model.named_parameters()], [p.shape for p in model.parameters()]
    )
    sizes = [p.numel() for p in model.parameters()]
    for image, label in zip(x, y, strict=True):
        g = FACTORS[int(label)] * gradient(model, image, label).double()
        parts = g.split(sizes)
        weights = bound.weights(torch.stack([part.square().sum() for part in parts])[None])[0]
        expected += torch.cat([w * part for w, part in zip(weights, parts, strict=True)])
    torch.testing.assert_close(summed(model, rule, x, y).double(), expected, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize(
    "rule",
    [Flat(CLIP), Normalised(CLIP), Automatic(0.01), GroupWise(CLIP)],
    ids=["flat", "normalised", "automatic", "per-layer"],
)
@pytest.mark.parametrize("label", one_in(3, range(3)))
def test_one_example_adds_at_most_c_whatever_its_weight(rule: ClippingRule, label: int) -> None:
    x, _ = batch(1)
    for scale in (1e-3, 1.0, 1e3):
        added = summed(network(), rule, scale * x, torch.tensor([label]))
        assert added.double().norm() <= rule.sensitivity
    loose = summed(network(), Flat(1e12), x, torch.tensor([label]))
    assert loose.norm() > 1e3 or label != 2


def test_a_unit_is_the_mean_of_its_weighted_images() -> None:
    """Labels may differ within a unit."""
    x, y = batch(6)
    model = network()
    units = [(x[:3], y[:3]), (x[3:6], y[3:6])]
    expected = torch.zeros(sum(p.numel() for p in model.parameters()))
    for images, labels in units:
        weighted = [
            FACTORS[int(label)] * gradient(model, image, label)
            for image, label in zip(images, labels, strict=True)
        ]
        mean = torch.stack(weighted).mean(0)
        expected += mean * min(1.0, CLIP / float(mean.norm()))
    found = summed(model, Flat(CLIP), x, y.view(2, 3), images=3)
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-6)


SETTINGS: dict[str, Any] = TINY | {
    "data.name": "digits", "training.seed": 3, "training.epochs": None, "training.steps": 2,
    "privacy.noise_multiplier": 2.0, "privacy.epsilon": 90.0, "privacy.accountant": "rdp",
    "privacy.delta": 1e-4, "privacy.clip": 1e3,
}  # fmt: skip


def weights_of(folder: Path, **changes: Any) -> dict[str, Tensor]:
    recipe = Recipe().replace(SETTINGS | changes)
    return read_weights(train(recipe, out=folder, device="cpu") / WEIGHTS)[1]


def test_equal_weights_of_one_leave_a_run_bit_for_bit(tmp_path: Path) -> None:
    plain = weights_of(tmp_path / "plain")
    ones = weights_of(tmp_path / "ones", **{"training.class_weights": [1.0] * 10})
    other = weights_of(tmp_path / "other", **{"training.class_weights": [900.0] + [1.0] * 9})
    assert all(torch.equal(plain[name], ones[name]) for name in plain)
    assert not all(torch.equal(plain[name], other[name]) for name in plain)


@pytest.mark.parametrize(
    ("weights", "words"),
    [
        ([1.0, 2.0], "has 2 numbers, but there are 3 classes: give one for each, in this order: a"),
        ([1.0, 0.0, 1.0], "has the number 0"),
        ([1.0, -2.0, 1.0], "has the number -2"),
        ([1.0, 1e9, 1.0], "has the number 1e"),
        ([1.0, float("nan"), 1.0], "has the number nan"),
    ],
)
def test_weights_that_do_not_fit_are_a_sentence(weights: list[float], words: str) -> None:
    recipe = Recipe().replace({"training.class_weights": weights})
    with pytest.raises(UserError, match=words.replace("(", r"\(")):
        check_class_weights(recipe, CLASSES)


def test_the_rule_that_undoes_weights_is_refused(tmp_path: Path) -> None:
    changes = {"training.class_weights": [2.0] + [1.0] * 9, "privacy.clipping": "automatic"}
    with pytest.raises(UserError, match="no effect with"):
        train(Recipe().replace(SETTINGS | changes), out=tmp_path / "run", device="cpu")
    assert not (tmp_path / "run").exists()
    public = Recipe().replace(changes | {"privacy.enabled": False})
    check_class_weights(public, tuple("0123456789"))


def test_automatic_clipping_undoes_weights() -> None:
    """Which is why it is refused: a hundred times the loss moves what is added by one per cent."""
    x, _ = batch(1)
    plain, weighted = (
        summed(network(), Automatic(0.01), 10 * x, torch.tensor([label])).norm() for label in (1, 2)
    )
    assert 0.98 < plain <= 1 and 0.98 < weighted <= 1
