"""Models given as objects in Python: an `nn.Module`, or a function or class that makes one."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import Any

from torch import nn

from sfumato.errors import CodeError, UserError
from sfumato.models._outside import call_builder, shape_lazy
from sfumato.models._trust import GivenModel, Trust
from sfumato.text import GIVEN


def given_name(model: object) -> str:
    """The name of a given model, such as `python:package.module.Net`; it cannot be imported.

    Raises:
        UserError: If it is neither a module nor a function or class that could make one.
    """
    if not isinstance(model, nn.Module) and not callable(model):
        raise UserError(
            f"model is {model!r}: give a model's name, a torch.nn.Module, or a function that makes "
            "one from classes, channels and size."
        )
    named: Any = model if hasattr(model, "__qualname__") else type(model)
    return f"{GIVEN}{named.__module__}.{named.__qualname__.split('<locals>.')[-1]}"


def build_given(
    name: str, arguments: Mapping[str, object], options: Mapping[str, object], trust: Trust | None
) -> nn.Module:
    """A copy of the module that the user has given, or what the given function makes.

    Args:
        name: The name in the file, for messages.
        arguments: `classes`, `channels` and `size`, for a function.
        options: The model's own options, for a function.
        trust: It holds what the user has given.

    Raises:
        CodeError: If the user has given none.
        UserError: If it cannot be copied or made.
    """
    if trust is None or not trust.given:
        where = "It" if trust is None else trust.where
        raise CodeError(
            f"{where} names the model '{name}', which was given as an object in Python and which "
            "no file can make: give it again, as in `sfumato.open(folder, model=...)`."
        )
    model: GivenModel = trust.given[-1]
    if not isinstance(model, nn.Module):
        return call_builder(name, model, arguments, options)
    if options:
        raise UserError(
            f"The model '{name}' is a module that was made already: model.options mean nothing for "
            "it. Give a function that makes it to set them."
        )
    if any(p.device.type == "meta" for p in model.parameters()):
        raise UserError(
            f"The model '{name}' has parameters on the device 'meta', which hold no numbers: give "
            "it with initial weights."
        )
    try:
        own = copy.deepcopy(model).cpu()
    except (RuntimeError, TypeError) as error:
        raise UserError(
            f"The model '{name}' cannot be copied ({error}): give a function that makes it."
        ) from None
    shape_lazy(own, arguments)
    return own
