"""`timm:NAME` and `torchvision:NAME`: arguments, refusals, what a file may do; real ones too."""

from __future__ import annotations

import importlib
import re
import socket
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
from one_example import assert_same_gradients
from torch import nn

from fake_timm import fake_timm, fake_torchvision
from sfumato import models
from sfumato.errors import UntrustedCodeError, UserError
from sfumato.models import Trust, create, create_trusted, parse_options


@pytest.fixture
def libraries(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "timm", fake_timm())
    monkeypatch.setitem(sys.modules, "torchvision", fake_torchvision())


def from_file(name: str, trust: Trust = Trust(), **options: object) -> Any:  # noqa: B008
    return create_trusted(name, options, classes=7, channels=3, size=8, trust=trust)


@pytest.mark.usefixtures("libraries")
def test_classes_and_images_are_passed_as_the_library_calls_them() -> None:
    made: Any = create("timm:tiny_net", classes=7, channels=1, size=(8, 9), width=6)
    assert made.settings == {
        "num_classes": 7, "in_chans": 1, "img_size": (8, 9), "width": 6, "act_layer": "relu",
    }  # fmt: skip
    assert made(torch.zeros(2, 1, 8, 9)).shape == (2, 7)
    assert from_file("timm:tiny_net").settings["img_size"] == 8
    assert from_file("timm:wider_net", wider=2).settings["width"] == 8
    assert from_file("timm:any_net").settings["img_size"] == 224, "not known to take it"
    assert from_file("torchvision:plain", hidden=3).settings == {
        "image_size": 8, "num_classes": 7, "hidden": 3,
    }  # fmt: skip


@pytest.mark.usefixtures("libraries")
def test_options_from_the_command_line() -> None:
    assert parse_options("timm:tiny_net", ["width=6", "act_layer=gelu"]) == {
        "width": 6, "act_layer": "gelu",
    }  # fmt: skip
    assert models.summary_of("timm:tiny_net", options={"width": 6}).parameters == 6 * 28 + 12 + 70


@pytest.mark.usefixtures("libraries")
@pytest.mark.parametrize(
    ("name", "options", "words"),
    [
        ("timm:tiny_ned", {}, "timm has no image classifier 'tiny_ned'. Did you mean 'tiny_net'?"),
        ("timm:tiny_net.in1k", {}, "Did you mean 'tiny_net'? All names: timm.list_models()"),
        ("timm:hf-hub:somebody/tiny_net", {}, "no image classifier 'hf-hub:"),
        ("timm:", {}, "no image classifier ''"),
        ("torchvision:boxes", {}, "All names: torchvision.models.list_models()"),
        ("timm:tiny_net", {"widht": 3}, "Did you mean 'width'? Its options: width, act_layer."),
        ("timm:tiny_net", {"pretrained": True}, "'pretrained' cannot be set"),
        ("timm:any_net", {"pretrained_cfg": "x"}, "'pretrained_cfg' cannot be set"),
        ("timm:any_net", {"checkpoint_path": "x"}, "weights of the library are not loaded"),
        ("timm:any_net", {"cache_dir": "x"}, "'cache_dir' cannot be set"),
        ("torchvision:plain", {"weights": "DEFAULT"}, "'weights' cannot be set"),
        ("timm:tiny_net", {"num_classes": 3}, "follow from the data"),
        ("torchvision:plain", {"image_size": 3}, "follow from the data"),
        ("timm:any_net", {"nonsense": 3}, "unexpected keyword argument 'nonsense'"),
        ("timm:tiny_net", {"act_layer": "wrong"}, "act_layer = 'wrong': KeyError"),
        ("timm:tiny_net", {"act_layer": "/etc/x"}, "must be a number of at most 65536, true"),
        ("timm:tiny_net", {"act_layer": "http:x"}, "a word, or a list of these"),
        ("timm:tiny_net", {"width": 10**9}, "'width' of the model 'timm:tiny_net' is 1000000000"),
        ("timm:tiny_net", {"width": float("inf")}, "is inf"),
        ("timm:tiny_net", {"act_layer": {"a": 1}}, "is {'a': 1}"),
    ],
)
def test_what_a_library_is_not_asked_for(name: str, options: dict[str, Any], words: str) -> None:
    with pytest.raises(UserError, match=re.escape(words)):
        from_file(name, **options)


@pytest.mark.usefixtures("libraries")
def test_images_that_a_model_cannot_take() -> None:
    with pytest.raises(UserError, match=r"images of 3 channels, not 1: set data\.channels = 3"):
        create("torchvision:plain", channels=1, size=8)
    with pytest.raises(UserError, match="square images, not 8x9"):
        create("torchvision:plain", size=(8, 9))


@pytest.mark.usefixtures("libraries")
def test_batchnorm_is_replaced_with_what_follows_it() -> None:
    model = create("timm:tiny_net", size=8, classes=4, batchnorm_to="groupnorm")
    assert not any(isinstance(m, nn.modules.batchnorm._BatchNorm) for m in model.modules())
    assert isinstance(model.norm.act, nn.ReLU)
    assert_same_gradients(model, (3, 8, 8))
    with pytest.raises(UserError, match="must be 'groupnorm' or none"):
        create("timm:tiny_net", batchnorm_to="layernorm")


def test_a_missing_package_is_a_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "timm", raising=False)
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(UserError, match="package timm, which is not installed: pip install timm"):
        create("timm:resnet18")


PLANTED = "import pathlib\npathlib.Path(__file__).with_suffix('.ran').touch()\n"


def test_a_file_imports_no_package_but_an_installed_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A `timm.py` beside a stranger's run is not timm."""
    monkeypatch.delenv("SFUMATO_MODELS", raising=False)
    monkeypatch.setitem(sys.modules, "timm", ModuleType("timm"))
    del sys.modules["timm"]
    (tmp_path / "timm.py").write_text(PLANTED)
    monkeypatch.syspath_prepend(str(tmp_path))
    with pytest.raises(UntrustedCodeError, match="--trust-code timm "):
        from_file("timm:tiny_net")
    assert not (tmp_path / "timm.ran").exists()
    with pytest.raises(UserError, match="lies in the run folder"):
        from_file("timm:tiny_net", Trust(("timm",), folders=(tmp_path,)))
    assert not (tmp_path / "timm.ran").exists()
    with pytest.raises(UserError, match="timm has no list of models: pip install --upgrade timm"):
        from_file("timm:tiny_net", Trust(("timm",)))
    assert (tmp_path / "timm.ran").exists()


def real(name: str) -> Any:
    """The real library, or a skipped test where it cannot be imported."""
    try:
        return importlib.import_module(name)
    except (ImportError, RuntimeError) as error:
        pytest.skip(f"{name} cannot be imported: {error}")


REAL = [
    ("timm:resnet18", {}),
    ("timm:efficientnet_b0", {}),
    ("timm:vit_tiny_patch16_224", {"patch_size": 8, "depth": 2}),
    ("timm:convnext_atto", {"depths": [1, 1, 1, 1]}),
    ("torchvision:resnet18", {}),
    ("torchvision:mobilenet_v3_small", {"dropout": 0.0}),
]


@pytest.mark.parametrize(("name", "options"), REAL)
def test_real_models_are_built_without_a_network(
    name: str, options: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    real(name.partition(":")[0])

    def refuse(*_: object, **__: object) -> None:
        raise AssertionError("a network was asked for")

    monkeypatch.setattr(socket, "socket", refuse)
    monkeypatch.setattr(socket, "create_connection", refuse)
    model = create(name, classes=4, size=32, batchnorm_to="groupnorm", **options)
    assert model(torch.zeros(1, 3, 32, 32)).shape == (1, 4)
    assert not any(isinstance(m, nn.modules.batchnorm._BatchNorm) for m in model.modules())


def test_real_gradients_are_those_of_one_example_at_a_time() -> None:
    real("timm")
    torch.manual_seed(0)
    options: dict[str, Any] = {"patch_size": 8, "depth": 1, "embed_dim": 24}
    model = create("timm:vit_tiny_patch16_224", classes=4, size=16, **options)
    assert_same_gradients(model, (3, 16, 16))


def vit_name(name: str) -> str:
    """The name of a parameter of timm's vision transformers in ours."""
    for theirs, ours in (
        ("patch_embed.proj", "patch"), ("cls_token", "tokens.token"), ("fc", "body.fc"),
        ("pos_embed", "tokens.positions"), ("norm1", "attention.body.norm"),
        ("norm2", "mlp.body.norm"), ("attn.qkv", "attention.body.qkv"),
        ("attn.proj", "attention.body.out"),
    ):  # fmt: skip
        name = name.replace(theirs, ours)
    return name


def convnext_name(name: str) -> str:
    """The name of a parameter of timm's ConvNeXt in ours."""
    name = re.sub(r"^stages\.(\d)\.downsample\.0", r"down\1.norm.norm", name)
    name = re.sub(r"^stages\.(\d)\.downsample\.1", r"down\1.conv", name)
    name = re.sub(r"^stages\.(\d)\.blocks", lambda m: f"stage{int(m[1]) + 1}", name)
    name = re.sub(r"(^stage\d\.\d)\.", r"\1.body.", name)
    for theirs, ours in (
        ("stem.0", "stem.conv"), ("stem.1", "stem.norm.norm"), ("head.norm", "norm"),
        ("head.fc", "head"), ("conv_dw", "conv"), ("mlp.fc", "fc"), ("gamma", "scale.gain"),
    ):  # fmt: skip
        name = name.replace(theirs, ours)
    return name


@pytest.mark.parametrize(
    ("theirs", "ours", "rename", "options"),
    [
        ("deit_tiny_patch16_224", "vit-tiny", vit_name, {}),
        ("convnext_atto", "convnext-atto", convnext_name, {"ls_init_value": 0.5}),
    ],
)
def test_ours_with_the_weights_of_timm_give_its_outputs(
    theirs: str, ours: str, rename: Any, options: dict[str, Any]
) -> None:
    timm = real("timm")
    torch.manual_seed(0)
    model = timm.create_model(theirs, num_classes=5, **options).eval()
    mine = create(ours, classes=5, size=224).eval()
    tensors = {rename(name): tensor for name, tensor in model.state_dict().items()}
    shapes = {name: tensor.shape for name, tensor in mine.state_dict().items()}
    mine.load_state_dict({name: tensor.view(shapes[name]) for name, tensor in tensors.items()})
    x = torch.randn(1, 3, 224, 224)
    with torch.no_grad():
        assert torch.allclose(mine(x), model(x), atol=1e-5)
