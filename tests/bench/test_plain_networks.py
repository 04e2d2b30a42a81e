"""Networks in plain PyTorch take one pass by operators, and their gradients are right."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from sfumato.bench import cases, contenders, plain_networks, unusual_networks
from sfumato.errors import UserError
from sfumato.privacy.engines.objective import Objective
from sfumato.privacy.engines.one_at_a_time import one_at_a_time
from sfumato.privacy.engines.operators import Operators
from thinning import with_slow

SMALL: dict[str, dict[str, Any]] = {
    "resnet18": {"width": 32},
    "vit": {"width": 24, "depth": 1, "patch": 8},
    "scaled_vit": {"width": 24, "depth": 1, "patch": 8},
    "encoder": {"width": 16, "depth": 1, "patch": 8},
    "convnext": {"widths": (8, 16), "depths": (1, 1)},
    "mbconv": {},
    "mixer": {"width": 16, "depth": 1, "patch": 8},
}


@pytest.mark.parametrize("name", plain_networks.NAMES)
@pytest.mark.parametrize("views", with_slow([1, 2], 1))
def test_gradients_are_those_of_one_example_at_a_time(name: str, views: int) -> None:
    torch.manual_seed(0)
    model = getattr(plain_networks, name)(**SMALL[name]).double()
    x, y = torch.randn(2 * views, 3, 32, 32).double(), torch.tensor([1, 7])
    engine = Operators(Objective(model, views=views))
    ours, wanted = engine.gradients(x, y), one_at_a_time(model, x, y, views=views)
    assert not engine.program(x).opaque
    assert {path.path for path in engine.paths()} <= {"rule", "reparametrised"}
    for a, b in zip(ours.tensors, wanted.tensors, strict=True):
        assert a is not None and b is not None
        torch.testing.assert_close(a, b, rtol=1e-8, atol=1e-12)
    norms = ours.squared_norms()
    assert bool((norms + 1e-20 >= wanted.squared_norms() * (1 - 1e-12)).all())


@pytest.mark.parametrize("name", unusual_networks.NAMES)
@pytest.mark.parametrize("views", with_slow([1, 2], 2))
def test_unusual_weights_have_the_gradients_of_one_example_at_a_time(name: str, views: int) -> None:
    torch.manual_seed(0)
    model = getattr(unusual_networks, name)(width=8).double()
    x, y = torch.randn(3 * views, 3, 32, 32).double(), torch.tensor([1, 7, 7])
    engine = Operators(Objective(model, views=views))
    ours, wanted = engine.gradients(x, y), one_at_a_time(model, x, y, views=views)
    assert not engine.program(x).opaque
    for a, b in zip(ours.tensors, wanted.tensors, strict=True):
        assert a is not None and b is not None
        torch.testing.assert_close(a, b, rtol=1e-7, atol=1e-11)
    norms = ours.squared_norms()
    assert bool((norms + 1e-20 >= wanted.squared_norms() * (1 - 1e-12)).all())


def test_every_network_is_a_case() -> None:
    found = cases.foreign("cpu", "float32")
    names = [case.model.partition(":")[2] for case in found]
    assert tuple(names) == plain_networks.NAMES + unusual_networks.NAMES
    assert [case.suite for case in found].count("unusual") == len(unusual_networks.NAMES)
    assert found[0].name == "plain:resnet18" and found[-1].name == "unusual:perceptron"


def test_networks_of_timm_are_cases_on_a_gpu() -> None:
    found = cases.foreign("cuda", "bfloat16")
    assert {case.views for case in found} == {1, 8}
    assert all(
        case.model.startswith("timm:") and case.batchnorm_to == "groupnorm" for case in found
    )
    assert {case.size for case in found} == {64, 160, 224}
    assert len({case.key for case in found}) == len(found)
    again = [cases.Case(**case.to_dict()) for case in found]
    assert again == found and found[0].image == (3, 64, 64)


def test_networks_from_outside_can_be_chosen() -> None:
    found = cases.foreign("cuda", "bfloat16", names=["timm:resnet18"], views=[8])
    assert [(case.model, case.views, case.size) for case in found] == [
        ("timm:resnet18", 8, 64),
        ("timm:resnet18", 8, 160),
    ]
    with pytest.raises(UserError, match="Did you mean 'timm:resnet50'"):
        cases.foreign("cuda", "bfloat16", names=["timm:resnet5"])


def test_names_in_tables_are_short() -> None:
    names = {case.name for case in cases.foreign("cpu", "float32")}
    assert "plain:vit" in names and "timm:resnet18, 64 px" in {
        case.name for case in cases.foreign("cuda", "bfloat16")
    }


def test_a_network_that_the_user_named_takes_whole_steps() -> None:
    case = cases.Case(
        model="sfumato.bench.plain_networks:encoder", rows=4, physical=1, examples=8,
        options=SMALL["encoder"], suite="foreign",
    )  # fmt: skip
    contender = contenders.prepare("sfumato", case, torch.device("cpu"))
    try:
        contender.step()
        assert contender.remark() == "eager"
    finally:
        contender.close()
