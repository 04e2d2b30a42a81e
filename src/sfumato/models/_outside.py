"""Models defined outside the package, named `package.module:function`."""

from __future__ import annotations

import inspect
import typing
from collections.abc import Callable, Mapping
from typing import cast

import torch
from torch import nn
from torch.nn.parameter import UninitializedParameter

from sfumato.errors import UserError, nearest
from sfumato.models._options import Option
from sfumato.models._trust import Trust, admitted


def build_outside(
    name: str,
    arguments: Mapping[str, object],
    options: Mapping[str, object],
    trust: Trust | None = None,
) -> nn.Module:
    """Import `package.module:function` and call it.

    The function gets those of `classes`, `channels` and `size` (height, width) that it accepts, and
    every option, which it must accept. The module may be in the current folder.

    Raises:
        UserError: The name is not admitted (`sfumato.models._trust`), cannot be imported, is not a
            Python function or a subclass of `nn.Module`, refuses the arguments, or does not return
            an `nn.Module`.
    """
    with admitted(name, trust) as build:
        return call_builder(name, build, arguments, options)


def call_builder(
    name: str,
    build: Callable[..., object],
    arguments: Mapping[str, object],
    options: Mapping[str, object],
) -> nn.Module:
    """Call a function that makes a model, with the arguments that it takes; see `build_outside`."""
    accepted = inspect.signature(build).parameters
    everything = any(p.kind is inspect.Parameter.VAR_KEYWORD for p in accepted.values())
    keywords = [
        key for key, p in accepted.items() if p.kind in (p.KEYWORD_ONLY, p.POSITIONAL_OR_KEYWORD)
    ]
    for key in options:
        if key not in keywords and not everything:
            raise UserError(
                f"The model '{name}' has no option '{key}'.{nearest(key, keywords)} "
                f"Its arguments: {', '.join(keywords) or 'none'}."
            )
    given = {key: arguments[key] for key in arguments if key in keywords or everything}
    given.update(options)
    for key, parameter in accepted.items():
        named = parameter.kind in (parameter.KEYWORD_ONLY, parameter.POSITIONAL_OR_KEYWORD)
        required = parameter.default is parameter.empty
        if required and key not in given and (named or parameter.kind is parameter.POSITIONAL_ONLY):
            raise UserError(
                f"The model '{name}' needs a value for its argument '{key}': give it as an option "
                "of the model, or give the argument a default."
            )
    try:
        model = build(**given)
    except (TypeError, ValueError) as error:
        raise UserError(
            f"The model '{name}' cannot be built with {_listed(given)}: {error}."
        ) from error
    if not isinstance(model, nn.Module):
        raise UserError(
            f"The model '{name}' returned {type(model).__name__}, but must return a "
            "torch.nn.Module."
        )
    shape_lazy(model, arguments)
    return model


def _listed(given: Mapping[str, object]) -> str:
    return ", ".join(f"{key} = {value!r}" for key, value in given.items()) or "no arguments"


def shape_lazy(model: nn.Module, arguments: Mapping[str, object]) -> None:
    """Run a model with lazy layers once, on zeros, so that they get their shapes."""
    if not any(isinstance(p, UninitializedParameter) for p in model.parameters()):
        return
    channels, size = cast(int, arguments["channels"]), cast(tuple[int, int], arguments["size"])
    training = model.training
    with torch.no_grad():
        model.eval()(torch.zeros(1, channels, *size))
    model.train(training)


def outside_options(name: str) -> dict[str, Option]:
    """The arguments of `package.module:function` other than classes, channels and size."""
    with admitted(name, None) as build:
        try:
            hints = typing.get_type_hints(build, include_extras=True)
        except (NameError, TypeError):
            hints = {}
        return {
            key: Option(hint=hints.get(key, object), default=parameter.default)
            for key, parameter in inspect.signature(build).parameters.items()
            if key not in ("classes", "channels", "size")
        }
