"""Stand-ins for timm and torchvision: their registries, with one small network each."""

from __future__ import annotations

from collections.abc import Callable
from types import ModuleType
from typing import Any

from torch import Tensor, nn


class Activated(nn.BatchNorm2d):
    """BatchNorm with an activation, as timm has it."""

    def __init__(self, channels: int) -> None:
        super().__init__(channels)
        self.act = nn.ReLU(inplace=True)

    def forward(self, x: Tensor) -> Tensor:
        return self.act(super().forward(x))


class Net(nn.Module):
    """A network that remembers what it was built with."""

    def __init__(
        self, num_classes=1000, in_chans=3, img_size=224, width: int = 4, act_layer="relu"
    ) -> None:
        super().__init__()
        self.settings = {"num_classes": num_classes, "in_chans": in_chans, "img_size": img_size}
        self.settings |= {"width": width, "act_layer": act_layer}
        if act_layer == "wrong":
            raise KeyError(act_layer)
        self.conv, self.norm = nn.Conv2d(in_chans, width, 3, padding=1), Activated(width)
        self.fc = nn.Linear(width, num_classes)

    def forward(self, x: Tensor) -> Tensor:
        return self.fc(self.norm(self.conv(x)).mean((2, 3)))


class Wider(Net):
    """A subclass that passes its arguments on."""

    def __init__(self, wider: int = 1, **kwargs: Any) -> None:
        super().__init__(width=4 * wider, **kwargs)


class Plain(nn.Module):
    """A network of torchvision's: three channels, one side."""

    def __init__(self, image_size: int, num_classes: int = 1000, hidden: int = 4) -> None:
        super().__init__()
        self.settings = {"image_size": image_size, "num_classes": num_classes, "hidden": hidden}
        self.fc = nn.Sequential(nn.Flatten(), nn.Linear(3 * image_size**2, num_classes))

    def forward(self, x: Tensor) -> Tensor:
        return self.fc(x)


def tiny_net(pretrained: bool = False, **kwargs: Any) -> Net:
    return Net(**kwargs)


def wider_net(pretrained: bool = False, **kwargs: Any) -> Wider:
    return Wider(**kwargs)


def any_net(pretrained=False, **kwargs):
    return Net(**kwargs)


def plain(*, weights: Any = None, progress: bool = True, **kwargs: Any) -> Plain:
    return Plain(**kwargs)


def fake_timm() -> ModuleType:
    """A module like timm."""
    known: dict[str, Callable[..., nn.Module]] = {
        "tiny_net": tiny_net, "wider_net": wider_net, "any_net": any_net,
    }  # fmt: skip

    def create_model(name: str, pretrained: bool = True, **kwargs: Any) -> nn.Module:
        assert pretrained is False, "weights would be downloaded"
        return known[name](pretrained=pretrained, **kwargs)

    timm: Any = ModuleType("timm")
    timm.create_model, timm.model_entrypoint = create_model, known.__getitem__
    timm.list_models = lambda: list(known)
    return timm


def fake_torchvision() -> ModuleType:
    """A module like torchvision."""
    torchvision: Any = ModuleType("torchvision")
    models: Any = ModuleType("torchvision.models")
    torchvision.models = models

    def get_model(name: str, **config: Any) -> nn.Module:
        assert config["weights"] is None, "weights would be downloaded"
        return plain(**config)

    models.get_model, models.get_model_builder = get_model, {"plain": plain}.__getitem__
    models.list_models = lambda module=None: ["plain"] if module is models else ["plain", "boxes"]
    return torchvision
