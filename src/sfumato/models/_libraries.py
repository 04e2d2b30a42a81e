"""Models of timm and torchvision, named `timm:NAME` and `torchvision:NAME`.

*Guarantee:* A name from a file calls the library's own registry, with a name that it lists and with
numbers, truth values and words. No weights are loaded and none are downloaded: arguments that name
weights, files or addresses are refused, and words hold no path. So such a name needs no
`--trust-code`, provided that the library is installed (`_trust.imported_library`).
"""

from __future__ import annotations

import inspect
import math
import re
import typing
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from types import ModuleType
from typing import Any, cast

from torch import nn

from sfumato.errors import UserError, nearest
from sfumato.models._options import MOST, Option
from sfumato.models._trust import Trust, imported_library

_REFUSED = re.compile(
    "(pretrained|weights|checkpoint|cache).*|progress|features_only|scriptable|exportable|no_jit|"
    "device|dtype|num_classes|in_chans|img_size|image_size"
)
"""Arguments that are no options: they load weights, follow from the data, or return features."""

_WORD = re.compile(r"[\w.+-]{0,64}")
"""A word as the value of an option: no path and no address."""


@dataclass(frozen=True)
class _Library:
    """The registry of a library.

    Attributes:
        module: Where the library has it: the package itself or a module of it.
        create, entry: Its functions that build a model, and that find its builder.
        fixed: The arguments of every call.
        channels: The argument for the channels of images; None if the models take 3 only.
        size: The argument for the size of images, of models that have it.
        square: True if that is one number.
    """

    module: str
    create: str
    entry: str
    fixed: Mapping[str, object]
    channels: str | None
    size: str
    square: bool


_LIBRARIES = {
    "timm": _Library(
        "", "create_model", "model_entrypoint", {"pretrained": False}, "in_chans",
        "img_size", False,
    ),
    "torchvision": _Library(
        "models", "get_model", "get_model_builder", {"weights": None}, None,
        "image_size", True,
    ),
}  # fmt: skip


def build_library(
    name: str,
    arguments: Mapping[str, object],
    options: Mapping[str, object],
    trust: Trust | None = None,
) -> nn.Module:
    """Build `timm:NAME` or `torchvision:NAME` with new weights.

    Args:
        name: The library and the name in its registry.
        arguments: `classes`, `channels` and `size`, passed on as the library calls them.
        options: Other arguments of the model, as the library names them.
        trust: The code that a file may run; None for a name that the user has just typed.

    Raises:
        UserError: The library is missing, does not list the name, or refuses the arguments.
    """
    library, registry, short = _found(name, trust)
    accepted, others = _accepted(getattr(registry, library.entry)(short))
    given = {**library.fixed, "num_classes": arguments["classes"]}
    given |= _images(name, library, arguments, accepted)
    for key, value in options.items():
        if _REFUSED.fullmatch(key):
            raise UserError(
                f"'{key}' cannot be set for the model '{name}': classes and images follow from the "
                "data, and weights of the library are not loaded. Leave it out."
            )
        if key not in accepted and not others:
            known = [other for other in accepted if not _REFUSED.fullmatch(other)]
            raise UserError(
                f"The model '{name}' has no option '{key}'.{nearest(key, known)} "
                f"Its options: {', '.join(known) or 'none'}."
            )
        given[key] = _plain(name, key, value)
    try:
        model = getattr(registry, library.create)(short, **given)
    except Exception as error:
        listed = ", ".join(f"{key} = {value!r}" for key, value in given.items())
        raise UserError(
            f"The model '{name}' cannot be built with {listed}: {type(error).__name__}: {error}."
        ) from error
    return cast(nn.Module, model)


def library_options(name: str) -> dict[str, Option]:
    """The options of `timm:NAME` or `torchvision:NAME` that are known by name."""
    library, registry, short = _found(name, None)
    accepted, _ = _accepted(getattr(registry, library.entry)(short))
    return {key: Option(hint=object, default=default) for key, default in accepted.items()}


def _found(name: str, trust: Trust | None) -> tuple[_Library, Any, str]:
    """The library, the module with its registry, and the name in it."""
    package, _, short = name.partition(":")
    library = _LIBRARIES[package]
    module: ModuleType = imported_library(name, trust)
    try:
        registry: Any = getattr(module, library.module) if library.module else module
        inside = {"module": registry} if library.module else {}
        known: Sequence[str] = registry.list_models(**inside)
    except AttributeError:
        raise UserError(
            f"This version of {package} has no list of models: pip install --upgrade {package}"
        ) from None
    if short not in known:
        raise UserError(
            f"{package} has no image classifier '{short}'."
            f"{nearest(short.partition('.')[0], known)} All names: {package}"
            f"{'.' + library.module if library.module else ''}.list_models()."
        )
    return library, registry, short


def _images(
    name: str, library: _Library, arguments: Mapping[str, object], accepted: Mapping[str, object]
) -> dict[str, object]:
    """The arguments that describe the images, as far as the model takes them."""
    given: dict[str, object] = {}
    channels, (height, width) = arguments["channels"], cast(tuple[int, int], arguments["size"])
    if library.channels is not None:
        given[library.channels] = channels
    elif channels != 3:
        raise UserError(
            f"The model '{name}' takes images of 3 channels, not {channels}: set data.channels = 3."
        )
    if library.size in accepted:
        if library.square and height != width:
            raise UserError(f"The model '{name}' takes square images, not {height}x{width}.")
        given[library.size] = height if height == width else (height, width)
    return given


def _accepted(entry: Callable[..., object]) -> tuple[dict[str, object], bool]:
    """The arguments of a library's builder with their defaults, and whether it takes others.

    Builders pass `**kwargs` on to the class that they are annotated to return.
    """
    try:
        made = typing.get_type_hints(entry).get("return")
    except (NameError, TypeError):
        made = None
    classes = made.__mro__ if isinstance(made, type) and issubclass(made, nn.Module) else ()
    own = [vars(c)["__init__"] for c in classes if "__init__" in vars(c) and c is not nn.Module]
    found: dict[str, object] = {}
    for call in (entry, *own):
        parameters = inspect.signature(call).parameters.values()
        found |= {
            p.name: p.default
            for p in parameters
            if p.kind in (p.KEYWORD_ONLY, p.POSITIONAL_OR_KEYWORD)
            and p.name not in ("self", *found)
        }
        if not any(p.kind is p.VAR_KEYWORD for p in parameters):
            return found, False
    return found, True


def _plain(name: str, key: str, value: object) -> object:
    """A number, truth value or word, or a tuple of these from a list."""
    if isinstance(value, list | tuple) and len(value) <= 64:
        return tuple(_plain(name, key, part) for part in value)
    word = isinstance(value, str) and _WORD.fullmatch(value)
    number = isinstance(value, int | float) and math.isfinite(value) and abs(value) <= MOST
    if value is None or word or number:
        return value
    raise UserError(
        f"The option '{key}' of the model '{name}' is {value!r}, but must be a number of at most "
        f"{MOST}, true, false, a word, or a list of these."
    )
