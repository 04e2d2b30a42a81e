"""Batches of an own loop that PyTorch refuses: a sentence says what to convert."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from sfumato.errors import UserError
from sfumato.privacy import Flat, GaussianNoise, PerExample, PoissonSampler, PrivateGradients

X, Y = torch.rand(6, 1, 4, 4), torch.arange(6) % 3


def conv() -> nn.Module:
    return nn.Sequential(nn.Conv2d(1, 2, 3), nn.Flatten(), nn.Linear(8, 3))


def linear() -> nn.Module:
    return nn.Sequential(nn.Flatten(), nn.Linear(16, 3))


def private(model: nn.Module, **more: Any) -> PrivateGradients:
    return PrivateGradients(
        model, sampler=PoissonSampler(100, 20), clipping=Flat(1.0), noise=GaussianNoise(1.0), **more
    )


WAYS: dict[str, Callable[[nn.Module, Any, Any], object]] = {
    "accumulate": lambda model, x, y: private(model).accumulate(x, y),
    "backward": lambda model, x, y: private(model).backward(x, y),
    "check": lambda model, x, y: private(model).check(x, y),
    "PerExample": lambda model, x, y: PerExample(model)(x, y),
    "unchecked": lambda model, x, y: PerExample(model, check=False)(x, y),
}


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize(
    ("x", "y", "words"),
    [
        (X, Y + 1, "a label 3, but the model has 3 outputs: .* 0 to 2"),
        (X, Y.where(Y > 0, -1), "a label -1"),
        (X, Y * 10**15, "a label [12]000000000000000,"),
        (X, Y.float(), r"are float32: .* y\.long\(\)"),
        (X, Y.int(), r"are int32: .* y\.long\(\)"),
        (X, Y[:, None], r"have shape \(6, 1\): .* y\.flatten\(\)"),
        (X, nn.functional.one_hot(Y), r"have shape \(6, 3\): .* y\.argmax\(1\)"),
        ((X * 255).byte(), Y, r"are uint8, but the weights float32: .* x\.float\(\) / 255"),
        (X.double(), Y, r"are float64, but the weights float32: .* x\.to\(torch\.float32\)"),
        (X, Y.tolist(), "must be .*tensor.*list"),
        (X.numpy(), Y, "must be tensors"),
    ],
    ids=["above", "below", "huge", "float", "int32", "column", "one-hot", "bytes", "double", "list",
         "array"],
)  # fmt: skip
def test_a_sentence(way: str, x: Tensor, y: Tensor, words: str) -> None:
    with pytest.raises(UserError, match=words):
        WAYS[way](conv(), x, y)


@pytest.mark.parametrize("x", [(X * 255).byte(), X.double()])
def test_other_layers_have_other_words_for_types(x: Tensor) -> None:
    with pytest.raises(UserError, match="but the weights float32"):
        PerExample(linear())(x, Y)


def test_a_later_batch_is_explained_too() -> None:
    """The first was checked, and this one fails in the pass itself."""
    mechanism = private(conv())
    mechanism.accumulate(X, Y)
    with pytest.raises(UserError, match="a label 3"):
        mechanism.accumulate(X, Y + 1)


def test_labels_of_units_are_explained() -> None:
    mechanism = private(conv(), images=2)
    with pytest.raises(UserError, match=r"a label [345], but the model has 3 outputs"):
        mechanism.accumulate(X, torch.tensor([[3, -1], [4, 5], [4, 4]]))
    with pytest.raises(UserError, match="a label 3"):
        private(conv()).accumulate(X, Y + 1, units=torch.tensor([0, 0, 1, 1, 2, 2]))


@pytest.mark.filterwarnings("ignore:None of the inputs have requires_grad")
def test_a_checkpoint_that_needs_another_backward_pass_is_explained() -> None:
    class Checkpointed(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inside, self.head = nn.Linear(4, 4), nn.Linear(4, 3)

        def forward(self, x: Tensor) -> Tensor:
            inside = checkpoint(self.inside, x, use_reentrant=True)
            out: Tensor = self.head(inside.tanh())
            return out

    with pytest.raises(UserError, match="give it use_reentrant=False"):
        PerExample(Checkpointed())(torch.rand(6, 4), Y)


def test_what_the_batch_does_not_explain_is_left_alone() -> None:
    """Other losses take other targets, and a model may have errors of its own."""

    def loss(outputs: Tensor, targets: Tensor) -> Tensor:
        return outputs[torch.arange(len(outputs)), targets + 7]

    with pytest.raises(IndexError):
        PerExample(linear(), loss=loss, check=False)(X, Y)
    wrong = nn.Sequential(nn.Flatten(), nn.Linear(7, 3))
    with pytest.raises(RuntimeError, match="shapes"):
        PerExample(wrong, check=False)(X, Y)


def test_ignored_labels_and_probabilities_are_taken() -> None:
    assert PerExample(linear())(X, torch.tensor([0, -100, 2, 1, -100, 0])).losses[1] == 0
    assert len(PerExample(linear())(X, nn.functional.one_hot(Y).float()).losses) == 6
