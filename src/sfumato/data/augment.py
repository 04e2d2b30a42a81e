"""Random changes to a batch of images at once, on the device.

The random numbers are drawn first, for all images together and on the CPU; applying them is a
fixed sequence of tensor operations without a branch that depends on data. So a batch may be split
into parts of any size, on any device, and each image still gets its own changes; and the whole
sequence can be compiled.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, fields

import torch
import torch.nn.functional as F
from torch import Tensor

from sfumato.data.catalogue import LUMA
from sfumato.device_copy import to_device
from sfumato.errors import UserError, nearest

PADDING_MODES = ("reflect", "zeros")


@dataclass(frozen=True, kw_only=True, eq=False)
class AugmentParameters:
    """The random changes of each of ``count`` images; settings that are off have no parameters.

    Attributes:
        count: number of images.
        shift: ``(n, 2)`` int64, rows and columns by which the crop is displaced.
        flip: ``(n,)`` bool, mirrored left to right.
        vertical_flip: ``(n,)`` bool, mirrored top to bottom.
        turns: ``(n,)`` int64, quarter turns.
        rotation: ``(n, 2)`` float32, cosine and sine of the angle.
        cut: ``(n, 2)`` float32 in [0, 1), the centre of the square that is cut out.
        brightness: ``(n,)`` float32, factor.
        contrast: ``(n,)`` float32, factor.
        saturation: ``(n,)`` float32, factor.
    """

    count: int
    shift: Tensor | None = None
    flip: Tensor | None = None
    vertical_flip: Tensor | None = None
    turns: Tensor | None = None
    rotation: Tensor | None = None
    cut: Tensor | None = None
    brightness: Tensor | None = None
    contrast: Tensor | None = None
    saturation: Tensor | None = None

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, which: slice) -> AugmentParameters:
        return self._map(lambda value: value[which], len(range(self.count)[which]))

    def take(self, rows: Tensor) -> AugmentParameters:
        """The parameters at these positions, which may repeat."""
        return self._map(lambda value: value[rows], rows.numel())

    def to(self, device: str | torch.device) -> AugmentParameters:
        """The same parameters on another device."""
        return self._map(lambda value: to_device(value, device), self.count)

    def _map(self, change: Callable[[Tensor], Tensor], count: int) -> AugmentParameters:
        values = {
            field.name: change(value)
            for field in fields(self)
            if isinstance(value := getattr(self, field.name), Tensor)
        }
        return AugmentParameters(count=count, **values)


@dataclass(frozen=True, kw_only=True)
class Augment:
    """Configuration of the random changes; everything is off by default.

    Crop, flips, quarter turns and cutout move or blank pixels and take images of any type on any
    scale. Rotation needs floats; brightness, contrast and saturation need floats in [0, 1], that is
    images before normalisation.

    *Guarantee:* each image is changed by its own parameters alone, and these do not depend on any
    image.

    Attributes:
        crop: pad by this many pixels on every side and cut a random part of the old size.
        padding_mode: ``reflect`` or ``zeros``, for crop and rotate.
        flip: mirror left to right with probability one half.
        vertical_flip: mirror top to bottom with probability one half.
        rotate: rotate by an angle between minus and plus this many degrees.
        rot90: turn by a random multiple of 90 degrees; square images only.
        cutout: blank a square of this side around a random pixel.
        brightness: multiply by a factor between one minus and one plus this.
        contrast: the same factor range for the distance from mid-grey, a constant, so no statistic
            of the image is needed.
        saturation: the same factor range for the distance from the pixel's own grey; colour only.
    """

    crop: int = 0
    padding_mode: str = "reflect"
    flip: bool = False
    vertical_flip: bool = False
    rotate: float = 0.0
    rot90: bool = False
    cutout: int = 0
    brightness: float = 0.0
    contrast: float = 0.0
    saturation: float = 0.0

    def __post_init__(self) -> None:
        if self.padding_mode not in PADDING_MODES:
            raise UserError(
                f"There is no padding mode '{self.padding_mode}'."
                f"{nearest(self.padding_mode, PADDING_MODES)} Give reflect or zeros."
            )
        for name in ("crop", "cutout"):
            value = getattr(self, name)
            if not isinstance(value, int) or isinstance(value, bool) or value < 0:
                raise UserError(f"{name} = {value} is impossible: give whole pixels, 0 or more.")
        if not 0 <= self.rotate <= 180:
            raise UserError(f"rotate = {self.rotate} is impossible: give degrees from 0 to 180.")
        for name in ("brightness", "contrast", "saturation"):
            if not 0 <= getattr(self, name) <= 1:
                raise UserError(f"{name} = {getattr(self, name)} is impossible: give 0 to 1.")

    def __bool__(self) -> bool:
        """Tell whether any setting is on."""
        return self != Augment(padding_mode=self.padding_mode)

    @property
    def coloured(self) -> bool:
        """Tell whether a setting is on that needs images on the [0, 1] scale."""
        return bool(self.brightness or self.contrast or self.saturation)

    def draw(self, n: int, generator: torch.Generator | None = None) -> AugmentParameters:
        """Draw the changes for ``n`` images at once.

        Args:
            n: number of images, 0 or more.
            generator: a CPU generator; the same state gives the same changes.
        """

        def uniform(*columns: int) -> Tensor:
            return torch.rand((n, *columns), generator=generator)

        def factor(width: float) -> Tensor:
            return 1 + width * (2 * uniform() - 1)

        offsets = 2 * self.crop + 1
        values: dict[str, Tensor] = {}
        if self.crop:
            values["shift"] = (uniform(2) * offsets).long().clamp_(max=offsets - 1) - self.crop
        if self.flip:
            values["flip"] = uniform() < 0.5
        if self.vertical_flip:
            values["vertical_flip"] = uniform() < 0.5
        if self.rot90:
            values["turns"] = (uniform() * 4).long().clamp_(max=3)
        if self.rotate:
            angle = math.radians(self.rotate) * (2 * uniform() - 1)
            values["rotation"] = torch.stack((angle.cos(), angle.sin()), dim=-1)
        if self.cutout:
            values["cut"] = uniform(2)
        for name in ("brightness", "contrast", "saturation"):
            if width := getattr(self, name):
                values[name] = factor(width)
        return AugmentParameters(count=n, **values)

    def apply(self, images: Tensor, parameters: AugmentParameters) -> Tensor:
        """Change each image ``(n, C, H, W)`` by its parameters."""
        if len(images) != len(parameters):
            raise ValueError(f"{len(parameters)} parameters were drawn for {len(images)} images")
        if (self.coloured or self.rotate) and not images.is_floating_point():
            raise ValueError("rotation and colour changes need images of floats")
        if self.crop or self.flip or self.vertical_flip or self.rot90:
            images = self._move(images, parameters)
        if parameters.rotation is not None:
            images = self._rotate(images, parameters.rotation)
        if parameters.cut is not None:
            images = self._cut_out(images, parameters.cut)
        return self._colour(images, parameters) if self.coloured else images

    def _move(self, images: Tensor, parameters: AugmentParameters) -> Tensor:
        """Crop, flips and quarter turns as one gather over source pixels."""
        n, channels, height, width = images.shape
        row = torch.arange(height, device=images.device).view(1, -1, 1)
        column = torch.arange(width, device=images.device).view(1, 1, -1)
        if parameters.turns is not None:
            if height != width:
                raise UserError(f"rot90 needs square images, but these are {height}×{width}.")
            turns = parameters.turns.view(-1, 1, 1)
            odd = turns % 2 == 1
            row, column = torch.where(odd, column, row), torch.where(odd, row, column)
            row = torch.where(turns >= 2, height - 1 - row, row)
            column = torch.where((turns == 1) | (turns == 2), width - 1 - column, column)
        if parameters.vertical_flip is not None:
            row = torch.where(parameters.vertical_flip.view(-1, 1, 1), height - 1 - row, row)
        if parameters.flip is not None:
            column = torch.where(parameters.flip.view(-1, 1, 1), width - 1 - column, column)
        inside = None
        if parameters.shift is not None:
            if self.padding_mode == "reflect" and self.crop >= min(height, width):
                raise UserError(
                    f"crop = {self.crop} is too much for images of {height}×{width}: reflection "
                    f"reaches at most {min(height, width) - 1} pixels."
                )
            row = row + parameters.shift[:, 0].view(-1, 1, 1)
            column = column + parameters.shift[:, 1].view(-1, 1, 1)
            if self.padding_mode == "zeros":
                inside = (row >= 0) & (row < height) & (column >= 0) & (column < width)
                row, column = row.clamp(0, height - 1), column.clamp(0, width - 1)
            else:
                row = height - 1 - (height - 1 - row.abs()).abs()
                column = width - 1 - (width - 1 - column.abs()).abs()
        source = (row * width + column).expand(n, height, width)
        index = source.reshape(n, 1, height * width).expand(n, channels, height * width)
        moved = images.reshape(n, channels, height * width).gather(2, index)
        moved = moved.view(n, channels, height, width)
        if inside is None:
            return moved
        return torch.where(inside.unsqueeze(1), moved, torch.zeros_like(moved))

    def _rotate(self, images: Tensor, rotation: Tensor) -> Tensor:
        n, _, height, width = images.shape
        cosine, sine = rotation.to(images.dtype).view(n, 2, 1, 1).unbind(1)
        y = torch.arange(height, device=images.device, dtype=images.dtype).view(1, -1, 1)
        x = torch.arange(width, device=images.device, dtype=images.dtype).view(1, 1, -1)
        y, x = y - (height - 1) / 2, x - (width - 1) / 2
        grid_x = (cosine * x + sine * y) * (2 / width)
        grid_y = (cosine * y - sine * x) * (2 / height)
        grid = torch.stack((grid_x, grid_y), dim=-1)
        padding = "reflection" if self.padding_mode == "reflect" else "zeros"
        return F.grid_sample(
            images, grid, mode="bilinear", padding_mode=padding, align_corners=False
        )

    def _cut_out(self, images: Tensor, cut: Tensor) -> Tensor:
        height, width = images.shape[2:]
        top = (cut[:, 0] * height).long().clamp(max=height - 1) - self.cutout // 2
        left = (cut[:, 1] * width).long().clamp(max=width - 1) - self.cutout // 2
        row = torch.arange(height, device=images.device).view(1, -1) - top.view(-1, 1)
        column = torch.arange(width, device=images.device).view(1, -1) - left.view(-1, 1)
        rows = ((row >= 0) & (row < self.cutout)).view(-1, 1, height, 1)
        columns = ((column >= 0) & (column < self.cutout)).view(-1, 1, 1, width)
        return torch.where(rows & columns, torch.zeros_like(images), images)

    def _colour(self, images: Tensor, parameters: AugmentParameters) -> Tensor:
        def each(factor: Tensor) -> Tensor:
            return factor.to(images.dtype).view(-1, 1, 1, 1)

        if parameters.brightness is not None:
            images = images * each(parameters.brightness)
        if parameters.contrast is not None:
            images = (images - 0.5) * each(parameters.contrast) + 0.5
        if parameters.saturation is not None and images.shape[1] == 3:
            red, green, blue = (weight * images[:, k : k + 1] for k, weight in enumerate(LUMA))
            grey = red + green + blue
            images = grey + (images - grey) * each(parameters.saturation)
        return images.clamp(0, 1)
