from __future__ import annotations

import pytest

from sfumato.bench.cases import (
    CONTENDERS,
    ORDER,
    Case,
    check_contenders,
    choose,
    defaults,
    grid,
    scaling,
)
from sfumato.errors import UserError


def test_a_step_has_the_same_rows_whatever_k() -> None:
    for case in grid(["resnet9"], views=(1, 4, 16), rows=(2048,), precision="bfloat16"):
        assert case.views_per_step == 8192
        assert case.batch * case.views == 8192
        assert case.at_once * case.views == 2048


def test_split_keeps_the_update() -> None:
    case = Case(model="resnet9", views=4, rows=64)
    part = case.split(8)
    assert (part.rows, part.physical, part.batch) == (8, 32, case.batch)
    with pytest.raises(ValueError, match="cannot be split"):
        case.split(32)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"views": 3}, "multiple of 3"),
        ({"precision": "bfloat"}, "Did you mean 'bfloat16'"),
        ({"rows": 0}, "from 1 on"),
        ({"rows": 20_000}, "fewer --rows"),
    ],
)
def test_impossible_cases_are_explained(changes: dict[str, object], words: str) -> None:
    with pytest.raises(UserError, match=words):
        Case(model="resnet9", **({"rows": 64} | changes))  # type: ignore[arg-type]


def test_unknown_names_are_refused() -> None:
    with pytest.raises(UserError, match="Did you mean 'resnet9'"):
        grid(["resnet-9"], views=[1], rows=[8], precision="float32")
    with pytest.raises(UserError, match="Did you mean 'opacus'"):
        check_contenders(["opacuss"])
    assert check_contenders(["sfumato", "vmap", "vmap"]) == ["vmap"]
    assert sorted(ORDER) == sorted(CONTENDERS)


def test_defaults_name_models_that_exist() -> None:
    from sfumato import models

    for device in ("cuda", "cpu"):
        for case in defaults(device, "float32"):
            models.info(case.model)


def test_what_is_left_open_is_as_by_default() -> None:
    assert choose("cpu", precision="float32") == defaults("cpu", "float32")
    chosen = choose("cuda", precision="bfloat16", names=["resnet9"])
    assert [(c.model, c.views, c.rows) for c in chosen] == [
        ("resnet9", k, 2048) for k in (1, 4, 16)
    ]


@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_scaling_varies_one_thing_at_a_time(device: str) -> None:
    cases = scaling(device, model=None, rows=None, views=None, precision="float32")
    for suite, fixed in (
        ("rows", ("model", "views")),
        ("views", ("model", "rows")),
        ("width", ("views", "rows")),
    ):
        own = [c for c in cases if c.suite == suite]
        assert len(own) > 1
        for name in fixed:
            assert len({getattr(c, name) for c in own}) == 1
