"""A trained model with everything needed to use it: classes, image shape and normalisation.

The weights file describes itself, so that nothing but the file is needed, and nothing in it is
ever unpickled.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Iterable, Mapping
from contextlib import nullcontext
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, cast

import numpy.typing as npt
import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

from sfumato import models
from sfumato.data.prediction_views import CHOICES, averaged
from sfumato.errors import CodeError, UserError
from sfumato.io import json_lines
from sfumato.io.atomic import write_whole
from sfumato.memory import BatchSize
from sfumato.training import temperature as temperatures
from sfumato.training.run_folder import WEIGHTS, is_run, trust, without_weights

FORMAT = "sfumato-1"
TENSORS = "tensors"
"""Key of the digest of the tensors in a weights file; older files have none."""

STATEMENT = "statement"
"""Key of the SHA-256 of the statement in a run's weights; older files have none."""


_SIDE = 1 << 13
"""Most channels, or pixels along a side: more are a mistake, or an attack."""

_MOST = 1 << 16
"""Most classes, likewise."""


def _is_number(value: object) -> bool:
    return type(value) in (int, float) and abs(cast(float, value)) < 1e30


@dataclass(frozen=True)
class Description:
    """The description of a model in its weights file.

    Attributes:
        model: Registry name, timm:NAME, torchvision:NAME, or package.module:function.
        options: The model's options.
        classes: Class names, in the order of the outputs.
        channels: Channels of the images.
        size: Height and width of the images.
        mean: Constants subtracted from images on the [0, 1] scale, per channel.
        std: Constants that divide them, per channel.
        guarantee: Epsilon, delta and what they rest on, or `{"private": false}`.
        test_views: The views that predictions are averaged over (`sfumato.data.prediction_views`).
        bits: Bits that count in 16-bit images.
        batchnorm_to: `groupnorm` if every BatchNorm of the model was replaced by a GroupNorm.
        window: Centre and width of the values of DICOM files that became black to white, if given.
    """

    model: str
    options: dict[str, Any]
    classes: tuple[str, ...]
    channels: int
    size: tuple[int, int]
    mean: tuple[float, ...]
    std: tuple[float, ...]
    guarantee: dict[str, Any] = field(default_factory=dict)
    test_views: str = "none"
    bits: int = 16
    batchnorm_to: str | None = None
    window: tuple[float, float] | None = None

    def __post_init__(self) -> None:
        counts = (self.channels, *self.size, self.bits)
        if any(type(n) is not int or not 1 <= n <= _SIDE for n in counts) or len(self.size) != 2:
            raise ValueError(f"channels, size or bits are not whole numbers from 1 to {_SIDE}")
        if not all(type(name) is str for name in (self.model, self.test_views, *self.classes)):
            raise ValueError("the model, its views or a class is not named by a text")
        if not 1 <= len(self.classes) <= _MOST:
            raise ValueError(f"there are {len(self.classes)} classes")
        for name, values in (("mean", self.mean), ("std", self.std)):
            if len(values) != self.channels or not all(_is_number(v) for v in values):
                raise ValueError(f"{name} is not a number for each channel")
        edges = (0, 2) if self.window is None else self.window
        if len(edges) != 2 or not all(_is_number(v) for v in edges) or not edges[1] > 1:
            raise ValueError("window is not a centre and a width greater than 1")
        if not all(isinstance(part, dict) for part in (self.options, self.guarantee)):
            raise ValueError("options or guarantee is no table")

    @property
    def only_a_start(self) -> bool:
        """Tell whether it was trained on drawn images only, so that its head is untrained."""
        seen = self.guarantee.get("exposures")
        return (
            isinstance(seen, list)
            and bool(seen)
            and all(isinstance(e, dict) and e.get("drawn") is True for e in seen)
        )


class Classifier(nn.Module):
    """A network from images to class probabilities.

    A call maps normalised images to logits, averaged over the views of each image that the recipe
    sets and divided by the temperature, if there is one; `predict` takes images that are not
    normalised.
    """

    def __init__(
        self,
        network: nn.Module,
        description: Description,
        temperature: temperatures.Temperature | None = None,
    ) -> None:
        super().__init__()
        self.network, self.description, self.temperature = network, description, temperature

    @property
    def classes(self) -> tuple[str, ...]:
        """Class names, in the order of the outputs."""
        return self.description.classes

    def forward(self, x: Tensor) -> Tensor:
        """Logits of normalised images."""
        found = averaged(self.network, x, self.description.test_views)
        return found if self.temperature is None else found / self.temperature.value

    def normalise(self, images: Tensor) -> Tensor:
        """Normalise images, given as uint8 or as floats in [0, 1], as in training."""
        return normalise(images, self.description.mean, self.description.std)

    def predict(self, images: Tensor | npt.NDArray[Any], *, batch: int | BatchSize = 256) -> Tensor:
        """Class probabilities `(N, classes)` of images.

        Args:
            images: Images that are not normalised, as uint8 or as floats in [0, 1]: a tensor or
                array `(N, channels, height, width)`, or with the channels last.
            batch: Number of images per batch; it is halved if the memory does not suffice.

        Raises:
            UserError: The images are of another shape than the network takes.
        """
        return self.logits(images, batch=batch).softmax(1)

    @torch.no_grad()
    def logits(self, images: Tensor | npt.NDArray[Any], *, batch: int | BatchSize = 256) -> Tensor:
        """Logits `(N, classes)` of images that are not normalised; arguments as for `predict`."""
        images = self._channels_first(torch.as_tensor(images))
        device = next(self.network.parameters()).device
        training = self.network.training
        rows = BatchSize(batch) if isinstance(batch, int) else batch

        def outputs(part: slice) -> Tensor:
            logits: Tensor = self(self.normalise(images[part].to(device)))
            return logits.cpu()

        self.network.eval()
        parts = list(rows.parts(len(images), outputs))
        self.network.train(training)
        return torch.cat(parts) if parts else torch.zeros(0, len(self.classes))

    def _channels_first(self, images: Tensor) -> Tensor:
        """Images `(N, channels, height, width)` from these, or from those with channels last."""
        d = self.description
        shape = tuple(images.shape[1:])
        if shape == (d.channels, *d.size):
            return images
        if shape == (*d.size, d.channels):
            return images.movedim(-1, 1)
        if d.channels == 1 and shape == d.size:
            return images.unsqueeze(1)
        wanted = "×".join(map(str, (d.channels, *d.size)))
        raise UserError(
            f"The network takes images (N, channels, height, width) of {wanted}, and these have "
            f"the shape {tuple(images.shape)}: scale or convert them first."
        )


def normalise(images: Tensor, mean: tuple[float, ...], std: tuple[float, ...]) -> Tensor:
    """`(images - mean) / std` per channel, in float32; uint8 images are first scaled to [0, 1]."""
    scale = 255.0 if images.dtype == torch.uint8 else 1.0
    shift = torch.tensor(mean, device=images.device).view(1, -1, 1, 1) * scale
    width = torch.tensor(std, device=images.device).view(1, -1, 1, 1) * scale
    return (images.float() - shift) / width


def save_weights(
    path: Path, network: nn.Module, description: Description, *, statement: str | None = None
) -> None:
    """Write a self-describing weights file, whole or not at all, with its statement's digest."""
    tensors = {n: t.detach().cpu().contiguous().clone() for n, t in network.state_dict().items()}
    # One entry only: safetensors writes several in no fixed order, and equal runs must be equal
    # bytes.
    content = {k: v for k, v in asdict(description).items() if v is not None}
    content[TENSORS] = digest_of(tensors)
    if statement is not None:
        content[STATEMENT] = statement_digest(statement)
    write_whole(path, save(tensors, metadata={FORMAT: json.dumps(content)}))


def statement_digest(text: str) -> str:
    """SHA-256 of a statement."""
    return hashlib.sha256(text.encode()).hexdigest()


def weights_digest(network: nn.Module) -> str:
    """The digest of a network's tensors that its weights file will hold."""
    return digest_of(network.state_dict())


def digest_of(tensors: Mapping[str, Tensor]) -> str:
    """SHA-256 of the names, kinds, shapes and values of tensors."""
    found = hashlib.sha256()
    for name in sorted(tensors):
        t = tensors[name].detach().cpu().contiguous()
        found.update(f"{name}\0{t.dtype}\0{tuple(t.shape)}\0".encode())
        found.update(t.reshape(-1).view(torch.uint8).numpy().tobytes())
    return found.hexdigest()


def read_weights(path: Path) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """The description in a weights file, and its tensors.

    Raises:
        UserError: If it cannot be read, is not one of sfumato's, or was damaged or changed.
    """
    try:
        with safe_open(path, framework="pt") as file:
            metadata = file.metadata() or {}
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    except (SafetensorError, OSError) as error:
        raise UserError(f"{path} cannot be read as weights: {error}.") from None
    if FORMAT not in metadata:
        raise UserError(f"{path} was not written by sfumato: it does not say what model it is of.")
    try:
        content = dict(json_lines.parse(metadata[FORMAT]))
    except (ValueError, TypeError) as error:
        raise UserError(f"{path} describes itself in a way that cannot be read: {error}.") from None
    if content.get(TENSORS) not in (None, digest_of(tensors)):
        raise UserError(
            f"The weights in {path} are not those that were written there: the file is damaged, or "
            "was changed. Take it from where it came from once more."
        )
    return content, tensors


def weights_path(source: Path) -> Path:
    """The weights file of a run folder, or the weights file itself.

    Raises:
        UserError: If there is none.
    """
    if source.is_dir():
        if not (source / WEIGHTS).is_file():
            if is_run(source):
                raise UserError(without_weights(source))
            raise UserError(f"{source} holds no {WEIGHTS}: it is not a run folder.")
        return source / WEIGHTS
    if not source.is_file():
        raise UserError(f"There is no run folder or weights file {source}.")
    return source


def read_temperature(source: Path) -> temperatures.Temperature | None:
    """The temperature kept beside the weights of a run folder, or beside a weights file.

    Raises:
        UserError: If it, or the weights, cannot be read, or it was fitted for other weights.
    """
    path = weights_path(source)
    return _temperature(path, read_weights(path)[1])


def _temperature(path: Path, tensors: Mapping[str, Tensor]) -> temperatures.Temperature | None:
    if (kept := temperatures.read(path)) is not None:
        temperatures.check_fits(kept, path, digest_of(tensors))
    return kept


def statement_of(source: Path) -> str | None:
    """The SHA-256 of its statement that a run's weights file holds; None of older files."""
    found = read_weights(weights_path(source))[0].get(STATEMENT)
    return found if isinstance(found, str) else None


def check_head(source: Path, description: Description) -> None:
    """Refuse weights that are only a start for other runs.

    Raises:
        UserError: If the head is not trained.
    """
    if description.only_a_start:
        raise UserError(
            f"{source} is a start for other runs, trained on images that the program drew: its "
            "head is not trained. Give a run that started from it."
        )


def load(
    path: str | Path, *, device: str | torch.device = "cpu", trust_code: Iterable[models.Code] = ()
) -> Classifier:
    """The classifier of a run folder, or of a weights file, with the temperature kept beside it.

    Guarantee: The file runs no code but sfumato's, the model registries of timm and torchvision
    where these are installed, and that of modules in `trust_code` or in the environment variable
    `SFUMATO_MODELS`, and none that is in the run folder.

    Args:
        path: The run folder or weights file.
        device: Where to put the network.
        trust_code: Modules outside sfumato whose models the file may name, or the model itself if
            it was given as an object in Python.

    Raises:
        UserError: If there is no such file, or it is not one of sfumato's, or it names a model
            whose code is not trusted, or the temperature beside it is for other weights.
    """
    given = Path(path)
    path = weights_path(given)
    content, tensors = read_weights(path)
    for digest in (TENSORS, STATEMENT):
        content.pop(digest, None)
    try:
        listed = ("classes", "size", "mean", "std")
        for key in listed if content.get("window") is None else (*listed, "window"):
            content[key] = tuple(content[key])
        description = Description(**content)
        if description.test_views not in CHOICES:
            raise ValueError(f"there are no test views {description.test_views!r}")
    except (ValueError, KeyError, TypeError) as error:
        raise UserError(f"{path} describes itself in a way that cannot be read: {error}.") from None
    outside = ":" in description.model and not models.is_library_name(description.model)
    held = sum(t.numel() for t in tensors.values())
    try:
        with nullcontext() if outside else _NoLarger(_SPARE + 4 * held):
            network = models.create_trusted(
                description.model,
                description.options,
                classes=len(description.classes),
                channels=description.channels,
                size=description.size,
                trust=trust(trust_code, given),
                batchnorm_to=description.batchnorm_to,
            )
        network.to(device).load_state_dict(tensors)
    except CodeError:
        raise
    except UserError as error:
        raise UserError(f"{path} cannot be used: {error}") from None
    except (RuntimeError, ArithmeticError, ValueError, TypeError) as error:
        reason = " ".join(str(error).split())
        raise UserError(
            f"The weights in {path} do not fit '{description.model}': {reason}"
        ) from None
    network.eval()
    return Classifier(network, description, _temperature(path, tensors))


_SPARE = 1 << 26
"""Numbers that a network may need while it is built, beside those in its file."""


class _NoLarger(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Mode that refuses tensors larger than a weights file explains, before allocation."""

    def __init__(self, most: int) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._most = most

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        shape = args[0] if args and isinstance(args[0], list | tuple) else ()
        if all(type(n) is int for n in shape) and math.prod(shape) > self._most:
            raise ValueError(
                f"it describes a network with {math.prod(shape)} numbers in one tensor, far more "
                "than the file holds"
            )
        return func(*args, **(kwargs or {}))
