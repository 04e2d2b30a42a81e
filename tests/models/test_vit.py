"""Vision transformers: published counts, any patch and size, gradients one example at a time."""

from __future__ import annotations

import math

import pytest
import torch
from one_example import assert_same_gradients
from torch import nn

from sfumato import nn as layers
from sfumato.errors import UserError
from sfumato.models import create, summary, summary_of
from sfumato.models.vit import vit
from sfumato.privacy.verify.verification import verify

SMALL = {"classes": 4, "channels": 3, "size": (8, 8), "width": 16, "heads": 2, "depth": 2}


@pytest.mark.parametrize(("name", "count"), [("vit-tiny", 5_717_416), ("vit-small", 22_050_664)])
def test_parameters_as_published(name: str, count: int) -> None:
    counted = summary_of(name, classes=1000, size=(224, 224))
    assert counted.parameters == count
    assert sum(row.parameters for row in counted.layers) == count


def test_the_patch_follows_the_image_unless_given() -> None:
    def tokens(size: int, **options: object) -> int:
        rows = summary_of("vit-tiny", size=(size, size), options={"depth": 1, **options}).layers
        return next(row.output[0] for row in rows if row.kind == "Tokens")

    assert [tokens(size) for size in (32, 64, 160)] == [65, 65, 101]
    assert tokens(32, patch=8) == 17 and tokens(32, patch=8, pooling="mean") == 16
    assert tokens(30) == 65, "padded to whole patches"


def test_products_of_attention_are_counted() -> None:
    rows = {row.name: row for row in summary(vit(**SMALL), (3, 8, 8)).layers}
    assert rows["blocks.0.attention.body.attention"].macs == 2 * 5 * 5 * 16


def test_attention_is_that_of_multihead_attention() -> None:
    torch.manual_seed(0)
    theirs = nn.MultiheadAttention(8, 2, batch_first=True)
    x = torch.randn(3, 5, 8)
    qkv = nn.functional.linear(x, theirs.in_proj_weight, theirs.in_proj_bias)
    ours = theirs.out_proj(layers.DotProductAttention(2)(qkv))
    assert torch.allclose(ours, theirs(x, x, x)[0], atol=1e-6)


def test_initial_weights() -> None:
    torch.manual_seed(0)
    model = create("vit-tiny", depth=2)
    for name, parameter in model.named_parameters():
        if name.endswith(".bias") and name != "patch.bias":
            assert not parameter.any(), name
        elif "norm" in name:
            assert (parameter == 1).all(), name
        elif name == "tokens.positions" or name.startswith(("blocks", "head")):
            assert 0.018 < parameter.std() < 0.022, name
    assert model.tokens.token.abs().max() < 1e-4
    assert model.patch.weight.std().item() == pytest.approx(1 / math.sqrt(3 * 48), rel=0.05)


def test_stochastic_depth_drops_whole_examples_in_training_only() -> None:
    torch.manual_seed(0)
    layer = layers.StochasticDepth(0.25)
    x = torch.ones(400, 3, 2)
    dropped = layer(x)
    assert set(dropped.unique().tolist()) == {0.0, torch.tensor(1 / 0.75).item()}
    assert (dropped.flatten(1).std(1) == 0).all()
    assert 0.65 < (dropped > 0).float().mean() < 0.85
    assert torch.equal(layer.eval()(x), x)
    rates = [m.rate for m in vit(**SMALL, stochastic_depth=0.3).modules() if hasattr(m, "rate")]
    assert rates == pytest.approx([0.3, 0.3]), "none in the first block"


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"stochastic_depth": 1.0}, "must be in \\[0, 1\\)"),
        ({"stochastic_depth": -0.1}, "must be in \\[0, 1\\)"),
        ({"pooling": "max"}, "must be one of 'token', 'mean'"),
        ({"width": 64}, "fixes the option 'width'"),
    ],
)
def test_options_that_cannot_be_are_sentences(options: dict[str, object], words: str) -> None:
    with pytest.raises(UserError, match=words):
        create("vit-tiny", **options)


def test_heads_divide_the_width() -> None:
    with pytest.raises(UserError, match="not a multiple of 3"):
        vit(classes=2, channels=1, size=(8, 8), width=16, heads=3)


@pytest.mark.parametrize(
    "options",
    [{}, {"pooling": "mean", "layer_scale": 0.1, "size": (9, 6)}],
    ids=["token", "mean and LayerScale"],
)
def test_gradients_are_those_of_one_example_at_a_time(options: dict[str, object]) -> None:
    torch.manual_seed(1)
    settings = {**SMALL, **options}
    assert_same_gradients(vit(**settings), (3, *settings["size"]))


@pytest.mark.slow
def test_verify_accepts_them() -> None:
    torch.manual_seed(0)
    model = vit(**SMALL, layer_scale=0.1, stochastic_depth=0.2)
    report = verify(model, input_shape=(3, 8, 8), classes=4, batch=3)
    assert report.passed, [check for check in report.checks if not check.passed]
