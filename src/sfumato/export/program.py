"""The function that an exported file computes: from images in [0, 1] to class probabilities."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from sfumato.data.prediction_views import averaged
from sfumato.export.portable_layers import portable
from sfumato.training.classifier import Classifier

INPUT = "images"
OUTPUT = "probabilities"


class Program(nn.Module):
    """A classifier with its normalisation before and its softmax behind it.

    It computes what `Classifier.predict` does: images `(batch, channels, height, width)` of float32
    from 0 to 1 are normalised, passed through the network in the views that the recipe sets,
    divided by the temperature, and become probabilities `(batch, classes)`.
    """

    def __init__(self, classifier: Classifier) -> None:
        super().__init__()
        d = classifier.description
        self.network = portable(classifier.network)
        self.views = d.test_views
        self.temperature = classifier.temperature.value if classifier.temperature else 1.0
        # Not `mean`: a network with variances has values of that name in ONNX.
        for name, values in (("image_mean", d.mean), ("image_std", d.std)):
            self.register_buffer(name, torch.tensor(values, dtype=torch.float32).view(1, -1, 1, 1))

    def forward(self, images: Tensor) -> Tensor:
        """Class probabilities of images that are not normalised."""
        x = (images - self.get_buffer("image_mean")) / self.get_buffer("image_std")
        return (averaged(self.network, x, self.views) / self.temperature).softmax(1)
