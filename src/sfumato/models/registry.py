"""The model registry: a name, a paper and a builder function; one decorator adds a model.

A builder is a function with keyword-only arguments `classes`, `channels`, `size` (height, width)
and the model's options, each annotated and with a default, that returns an `nn.Module` from
(B, C, H, W) images to (B, classes) logits. Options are checked against their annotations before the
builder is called, so that a misspelt option or a wrong value is one sentence and not a traceback.
Whole-number options are counts: values below 1 are refused.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import TypeVar

from torch import nn

from sfumato.errors import UserError, nearest
from sfumato.models._given import build_given
from sfumato.models._libraries import build_library, library_options
from sfumato.models._options import Option, check_options, declared_options, read_options
from sfumato.models._outside import build_outside, outside_options
from sfumato.models._trust import Trust, is_library_name
from sfumato.nn import batchnorm_to_groupnorm
from sfumato.text import GIVEN

Builder = Callable[..., nn.Module]
F = TypeVar("F", bound=Builder)

_ARGUMENTS = ("classes", "channels", "size")
_FIELD = re.compile(r"\{(\w+)\}")


@dataclass(frozen=True)
class ModelInfo:
    """A registered model.

    Attributes:
        name: The name that `create` takes; `{depth}`-like fields stand for whole numbers.
        paper: The paper that describes it.
        parameters: The published number of trainable parameters, as the paper writes it.
        input: Channels, height and width for which the published number holds.
        minimum: The smallest height and width that the model accepts.
        preset: The options that the name fixes.
        options: The options that remain to be chosen.
        doc: The builder's docstring.
        family: The module that defines it.
        build: The builder.
    """

    name: str
    paper: str
    parameters: int | str | None
    input: tuple[int, int, int]
    minimum: int
    preset: Mapping[str, object]
    options: Mapping[str, Option]
    doc: str
    family: str
    build: Builder = field(repr=False)


_MODELS: dict[str, ModelInfo] = {}
_PATTERNS: dict[str, ModelInfo] = {}


def register(
    name: str,
    *,
    paper: str,
    parameters: int | str | None = None,
    input: tuple[int, int, int] = (3, 32, 32),
    minimum: int = 1,
    preset: Mapping[str, object] | None = None,
) -> Callable[[F], F]:
    """Add the decorated builder to the registry; stack decorators for several names.

    Args:
        name: The model's name. A name with fields, such as `wrn-{depth}-{width}`, stands for every
            name of that form not registered itself; each field is an integer option of the builder.
        paper: The paper that describes the model, as a reader would cite it.
        parameters: The published number of trainable parameters (a string where it is rounded).
        input: Channels, height and width for which the published number holds.
        minimum: The smallest height and width that the model accepts.
        preset: Options that this name fixes.
    """

    def add(build: F) -> F:
        options = declared_options(build, skip=_ARGUMENTS)
        fixed = dict(preset or {})
        fields = _FIELD.findall(name)
        unknown = [key for key in [*fixed, *fields] if key not in options]
        if unknown:
            raise TypeError(f"{build.__qualname__} has no option {unknown[0]!r} for model {name!r}")
        table = _PATTERNS if fields else _MODELS
        if name in table:
            raise ValueError(
                f"the model {name!r} is registered twice: also in {table[name].family}"
            )
        table[name] = ModelInfo(
            name=name,
            paper=paper,
            parameters=parameters,
            input=input,
            minimum=minimum,
            preset=fixed,
            options={k: v for k, v in options.items() if k not in fixed and k not in fields},
            doc=inspect.getdoc(build) or "",
            family=build.__module__,
            build=build,
        )
        return build

    return add


def names() -> list[str]:
    """The registered names, sorted; `patterns()` gives the forms that stand for more."""
    return sorted(_MODELS)


def patterns() -> list[str]:
    """The registered name forms, such as `wrn-{depth}-{width}`."""
    return sorted(_PATTERNS)


def info(name: str) -> ModelInfo:
    """The registry entry of `name`.

    Raises:
        UserError: No model has that name.
    """
    if name in _MODELS:
        return _MODELS[name]
    for form, entry in _PATTERNS.items():
        expression = _FIELD.sub(r"(?P<\1>[0-9]+)", form)
        if match := re.fullmatch(expression, name):
            if any(len(value) > 5 for value in match.groupdict().values()):
                raise UserError(f"There is no model '{name}': its numbers are too large.")
            fixed = {key: int(value) for key, value in match.groupdict().items()}
            return replace(entry, name=name, preset={**entry.preset, **fixed})
    forms = "".join(f", {form}" for form in patterns())
    hint = nearest(name, names())
    raise UserError(
        f"There is no model '{name}'.{hint} Known models: {', '.join(names())}{forms}; "
        "or timm:NAME, torchvision:NAME, or a function of your own as 'package.module:function'."
    )


def parse_options(name: str, texts: Iterable[str]) -> dict[str, object]:
    """Options of the model `name` from `option=value` texts, as the command line gives them.

    Raises:
        UserError: A text without `=`, or a value that cannot be read as the option's type.
    """
    if ":" not in name:
        return read_options(name, info(name).options, texts)
    options = library_options(name) if is_library_name(name) else outside_options(name)
    return read_options(name, options, texts)


def create(
    name: str,
    *,
    classes: int = 10,
    channels: int = 3,
    size: int | tuple[int, int] = 32,
    batchnorm_to: str | None = None,
    **options: object,
) -> nn.Module:
    """Build a model from a name that the caller typed.

    A name of the form `package.module:function` runs the code of its module: for a name that was
    read from a file there is `create_trusted`.

    Args:
        name: A registered name (`names()`), a name of a registered form (`wrn-28-10`), or
            `package.module:function` for a function of your own that returns an `nn.Module`, or
            `timm:NAME` or `torchvision:NAME` for a model of these libraries, with new weights.
        classes: The number of classes, the width of the logits.
        channels: The channels of the images.
        size: The height and width of the images, or one number for both.
        batchnorm_to: `groupnorm` replaces every BatchNorm (`sfumato.nn.batchnorm_to_groupnorm`).
        **options: The model's own options, as `info(name).options` lists them; others are refused.

    Returns:
        The network, in training mode, initialised from torch's global random generator.

    Raises:
        UserError: An unknown name or option, a value that is not accepted, or too small an image.
    """
    model = _create(name, options, classes=classes, channels=channels, size=size, trust=None)
    return _normalised(model, batchnorm_to)


def create_trusted(
    name: str,
    options: Mapping[str, object],
    *,
    classes: int,
    channels: int,
    size: int | tuple[int, int],
    trust: Trust,
    batchnorm_to: str | None = None,
) -> nn.Module:
    """Build a model from a name and options that were read from a file.

    Guarantee: No code outside sfumato is imported or called except what `trust` covers, and the
    registries of timm and torchvision where these are installed, with plain values.

    Args:
        name: As for `create`.
        options: The model's own options.
        classes: The number of classes, the width of the logits.
        channels: The channels of the images.
        size: The height and width of the images, or one number for both.
        trust: The code outside sfumato that the name may run.
        batchnorm_to: As for `create`.

    Raises:
        UserError: As for `create`, and a model whose code is not trusted.
    """
    model = _create(name, options, classes=classes, channels=channels, size=size, trust=trust)
    return _normalised(model, batchnorm_to)


def _normalised(model: nn.Module, replacement: str | None) -> nn.Module:
    if replacement not in (None, "groupnorm"):
        raise UserError(f"batchnorm_to is {replacement!r}, but must be 'groupnorm' or none.")
    return batchnorm_to_groupnorm(model) if replacement else model


def _create(
    name: str,
    options: Mapping[str, object],
    *,
    classes: int,
    channels: int,
    size: int | tuple[int, int],
    trust: Trust | None,
) -> nn.Module:
    height, width = (size, size) if isinstance(size, int) else size
    counts = {"classes": classes, "channels": channels, "height": height, "width": width}
    for key, value in counts.items():
        if isinstance(value, bool) or not isinstance(value, int) or value < 1:
            raise UserError(
                f"{key} must be a whole number of at least 1 for a model, not {value!r}."
            )
    arguments = {"classes": classes, "channels": channels, "size": (height, width)}
    if given := [key for key in arguments if key in options]:
        raise UserError(
            f"'{given[0]}' is no option of the model '{name}': it follows from the images. Leave "
            "it out."
        )
    if name.startswith(GIVEN):
        return build_given(name, arguments, options, trust)
    if is_library_name(name):
        return build_library(name, arguments, options, trust)
    if ":" in name:
        return build_outside(name, arguments, options, trust)
    entry = info(name)
    if min(height, width) < entry.minimum:
        raise UserError(
            f"The model '{name}' needs images of at least {entry.minimum}x{entry.minimum} pixels, "
            f"not {height}x{width}: resize the images or choose another model."
        )
    chosen = check_options(name, entry.options, entry.preset, options)
    model: nn.Module = entry.build(**arguments, **entry.preset, **chosen)
    return model
