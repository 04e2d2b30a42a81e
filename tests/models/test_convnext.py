"""ConvNeXt: published counts, small images, gradients one example at a time."""

from __future__ import annotations

import pytest
import torch
from one_example import assert_same_gradients
from torch.nn.functional import layer_norm

from sfumato.errors import UserError
from sfumato.models import create, summary_of
from sfumato.models.convnext import convnext
from sfumato.privacy.per_example import PerExample
from sfumato.privacy.verify.verification import verify

SMALL = {
    "classes": 4, "channels": 3, "size": (8, 8), "widths": (4, 8, 12, 16), "blocks": (1, 1, 2, 1),
    "kernel": 3,
}  # fmt: skip


@pytest.mark.parametrize(
    ("name", "count"), [("convnext-atto", 3_695_520), ("convnext-tiny", 28_589_128)]
)
def test_parameters_as_published(name: str, count: int) -> None:
    counted = summary_of(name, classes=1000, size=(64, 64))
    assert counted.parameters == count
    assert sum(row.parameters for row in counted.layers) == count


def test_the_stem_follows_the_image_unless_given() -> None:
    def side(size: int, **options: object) -> int:
        return summary_of("convnext-atto", size=(size, size), options=options).layers[0].output[1]

    assert [side(size) for size in (8, 16, 32, 64, 224)] == [8, 8, 16, 16, 56]
    assert side(32, patch=4) == 8


def test_norms_are_over_the_channels_of_one_pixel() -> None:
    stem = convnext(**SMALL).stem
    x = torch.randn(2, 3, 8, 8)
    pixel = layer_norm(stem.conv(x)[1, :, 5, 2], (4,), eps=1e-6)
    assert torch.allclose(stem(x)[1, :, 5, 2], pixel, atol=1e-6)


def test_initial_weights() -> None:
    torch.manual_seed(0)
    for name, parameter in create("convnext-atto", size=32).named_parameters():
        if name.endswith(".bias"):
            assert not parameter.any(), name
        elif name.endswith(".gain"):
            assert (parameter == 1e-6).all(), name
        elif "norm" in name:
            assert (parameter == 1).all(), name
        else:
            assert 0.015 < parameter.std() < 0.025, name


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"size": 16, "patch": 4}, "at least 32x32 pixels, not 16x16: choose a smaller patch"),
        ({"kernel": 4}, "an odd kernel, not 4"),
        ({"blocks": (1, 1, 1, 1)}, "fixes the option 'blocks'"),
        ({"stochastic_depth": 1.5}, "must be in \\[0, 1\\)"),
    ],
)
def test_options_that_cannot_be_are_sentences(options: dict[str, object], words: str) -> None:
    with pytest.raises(UserError, match=words):
        create("convnext-atto", **options)  # type: ignore[arg-type]


def test_gradients_are_those_of_one_example_at_a_time() -> None:
    torch.manual_seed(1)
    assert_same_gradients(convnext(**SMALL, layer_scale=0.5), (3, 8, 8))


def test_branches_dropped_behind_a_tiny_gain_take_the_pass_by_operators() -> None:
    torch.manual_seed(0)
    engine = PerExample(convnext(**SMALL, stochastic_depth=0.2))
    engine(torch.randn(3, 3, 8, 8), torch.tensor([0, 3, 1]))
    assert engine.method == "operators", engine.passed_over


@pytest.mark.slow
def test_verify_accepts_them() -> None:
    torch.manual_seed(0)
    model = convnext(**SMALL, stochastic_depth=0.2)
    report = verify(model, input_shape=(3, 8, 8), classes=4, batch=3)
    assert report.passed, [check for check in report.checks if not check.passed]
