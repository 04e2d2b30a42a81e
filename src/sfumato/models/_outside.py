"""Models that live outside the package, named `package.module:function`."""

from __future__ import annotations

import contextlib
import importlib
import importlib.util
import inspect
import os
import sys
import typing
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import cast

import torch
from torch import nn
from torch.nn.parameter import UninitializedParameter

from sfumato.errors import UserError, nearest
from sfumato.models._options import Option


def build_outside(
    name: str, arguments: Mapping[str, object], options: Mapping[str, object]
) -> nn.Module:
    """Import `package.module:function` and call it.

    The function gets those of `classes`, `channels` and `size` (height, width) that it takes, and
    every option, which it must take. The module may lie in the current folder.

    Raises:
        UserError: The name cannot be imported, is not a Python function or class, refuses the
            arguments, or does not return an `nn.Module`.
    """
    build = _load(name)
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
    if any(isinstance(p, UninitializedParameter) for p in model.parameters()):
        _shape_lazy(model, arguments)
    return model


def _listed(given: Mapping[str, object]) -> str:
    return ", ".join(f"{key} = {value!r}" for key, value in given.items()) or "no arguments"


def _shape_lazy(model: nn.Module, arguments: Mapping[str, object]) -> None:
    """Run the model once, on nothing but zeros, so that lazy layers learn their shapes."""
    channels, size = cast(int, arguments["channels"]), cast(tuple[int, int], arguments["size"])
    training = model.training
    with torch.no_grad():
        model.eval()(torch.zeros(1, channels, *size))
    model.train(training)


def outside_options(name: str) -> dict[str, Option]:
    """The arguments of `package.module:function` other than classes, channels and size."""
    build = _load(name)
    try:
        hints = typing.get_type_hints(build, include_extras=True)
    except (NameError, TypeError):
        hints = {}
    return {
        key: Option(hint=hints.get(key, object), default=parameter.default)
        for key, parameter in inspect.signature(build).parameters.items()
        if key not in ("classes", "channels", "size")
    }


TRUSTED = "SFUMATO_MODELS"
"""Environment variable: modules whose models a weights file may name, separated by commas."""


def refuse_strangers(name: str, where: object) -> None:
    """Raise a `UserError` for a model whose code the user has not vouched for.

    Guarantee: Of what a weights file names, only code in the current folder, or of a module that
    the user listed in `SFUMATO_MODELS`, is ever imported or called: a file may be anybody's.
    """
    top = name.partition(":")[0].partition(".")[0]
    if top in os.environ.get(TRUSTED, "").replace(" ", "").split(","):
        return
    try:
        with _current_folder_last():
            spec = importlib.util.find_spec(top)
    except (ImportError, ValueError):
        spec = None
    here = os.path.realpath(os.getcwd())
    places = [] if spec is None else [spec.origin, *(spec.submodule_search_locations or ())]
    for place in places:
        # Modules within the interpreter have a word in this place, such as "frozen".
        path = os.path.realpath(place) if place and os.path.isabs(place) else ""
        inside = path.startswith(here + os.sep)
        if inside and "site-packages" not in path.split(os.sep):
            return
    raise UserError(
        f"{where} is of the model '{name}', whose code is not sfumato's and does not lie in the "
        f"folder that you are in. If you trust it, run from its folder, or set {TRUSTED}={top}."
    )


def _load(name: str) -> Callable[..., object]:
    module_name, _, function = name.partition(":")
    if not module_name or not function.isidentifier():
        raise UserError(f"'{name}' does not name a model: write package.module:function.")
    try:
        with _current_folder_last():
            module = importlib.import_module(module_name)
    except Exception as error:
        if module_name.endswith(".py"):
            path = Path(module_name)
            inside = "" if path.parent == Path() else f", in the folder {path.parent}"
            raise UserError(
                f"'{name}' names a file, not a module: write {path.stem}:{function}{inside}."
            ) from None
        raise UserError(
            f"The module '{module_name}' of the model '{name}' cannot be imported "
            f"({type(error).__name__}: {error}): run from the folder that holds it, or install it."
        ) from error
    if not hasattr(module, function):
        public = [key for key in vars(module) if not key.startswith("_")]
        raise UserError(
            f"The module '{module_name}' has no function '{function}'.{nearest(function, public)}"
        )
    build = getattr(module, function)
    if not (inspect.isfunction(build) or inspect.isclass(build)):
        raise UserError(
            f"'{name}' is {type(build).__name__}, but must be a Python function or class that "
            "returns a torch.nn.Module."
        )
    return build


@contextlib.contextmanager
def _current_folder_last() -> Iterator[None]:
    folder = os.getcwd()
    added = folder not in sys.path and "" not in sys.path
    if added:
        sys.path.append(folder)
    try:
        yield
    finally:
        if added and folder in sys.path:
            sys.path.remove(folder)
