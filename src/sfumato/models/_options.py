"""Checks of model options against the annotations of the builder that declares them."""

from __future__ import annotations

import inspect
import types
import typing
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

from sfumato.errors import UserError, nearest

MOST = 1 << 16
"""The largest integer that a registered model accepts for an option."""


@dataclass(frozen=True)
class Option:
    """An option of a model: its annotation and its default."""

    hint: object
    default: object

    @property
    def accepts(self) -> str:
        """The accepted values in words."""
        return _words(self.hint)


def declared_options(build: Callable[..., object], *, skip: Iterable[str]) -> dict[str, Option]:
    """The options that a builder declares: its keyword-only arguments apart from `skip`."""
    hints = typing.get_type_hints(build, include_extras=True)
    options: dict[str, Option] = {}
    for key, parameter in inspect.signature(build).parameters.items():
        if parameter.kind is not inspect.Parameter.KEYWORD_ONLY:
            raise TypeError(f"{build.__qualname__}: the argument {key!r} must be keyword-only")
        if key in skip:
            continue
        if parameter.default is inspect.Parameter.empty or key not in hints:
            raise TypeError(
                f"{build.__qualname__}: the option {key!r} needs an annotation and a default"
            )
        options[key] = Option(hint=hints[key], default=parameter.default)
    return options


def check_options(
    name: str,
    options: Mapping[str, Option],
    preset: Mapping[str, object],
    given: Mapping[str, object],
) -> dict[str, object]:
    """The given options, converted to the declared types (a list to a tuple, for example).

    Raises:
        UserError: An option that the model lacks or fixes, or a value that it does not accept.
    """
    checked: dict[str, object] = {}
    for key, value in given.items():
        if key in preset:
            raise UserError(
                f"The model '{name}' fixes the option '{key}' at {preset[key]!r}: leave it out, or "
                "choose another model."
            )
        if key not in options:
            known = ", ".join(options) or "none"
            raise UserError(
                f"The model '{name}' has no option '{key}'.{nearest(key, options)} "
                f"Its options: {known}."
            )
        checked[key] = _convert(name, key, options[key], value)
    return checked


def read_options(
    name: str, options: Mapping[str, Option], texts: Iterable[str]
) -> dict[str, object]:
    """Parse options from `option=value` texts, as the command line gives them.

    Raises:
        UserError: A text without `=`, or a value that cannot be read as the option's type.
    """
    parsed: dict[str, object] = {}
    for text in texts:
        key, equals, value = (part.strip() for part in text.partition("="))
        if not equals or not key:
            raise UserError(f"'{text}' is not an option of a model: write option=value.")
        hints = _alternatives(options[key].hint) if key in options else (object,)
        for hint in hints:
            read = _read(value, hint)
            if read is not None:
                parsed[key] = read[0]
                break
        else:
            raise _refusal(name, key, options[key], value)
    return parsed


def _alternatives(hint: object) -> tuple[object, ...]:
    if isinstance(hint, types.UnionType) or typing.get_origin(hint) is typing.Union:
        return typing.get_args(hint)
    return (hint,)


def _refusal(name: str, key: str, option: Option, value: object) -> UserError:
    choices = [c for h in _alternatives(option.hint) for c in typing.get_args(h)]
    words = [c for c in choices if isinstance(c, str)]
    hint = nearest(value, words) if isinstance(value, str) else ""
    return UserError(
        f"The option '{key}' of the model '{name}' is {value!r}, but must be "
        f"{option.accepts}.{hint}"
    )


def _convert(name: str, key: str, option: Option, value: object) -> object:
    for hint in _alternatives(option.hint):
        fitted = _fit(value, hint)
        if fitted is not None:
            return fitted[0]
    raise _refusal(name, key, option, value)


def _fit(value: object, hint: object) -> tuple[object] | None:
    """The value converted to the annotated type, in a 1-tuple, or None if it does not fit."""
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if hint is type(None):
        return (None,) if value is None else None
    if origin is typing.Literal:
        return (value,) if value in arguments else None
    if origin is tuple:
        if not isinstance(value, (tuple, list)):
            return None
        hints = [arguments[0]] * len(value) if arguments[-1] is Ellipsis else list(arguments)
        if len(hints) != len(value):
            return None
        fitted = [_fit(v, h) for v, h in zip(value, hints, strict=True)]
        parts = tuple(f[0] for f in fitted if f is not None)
        return (parts,) if len(parts) == len(value) else None
    if origin is typing.Annotated:
        return _fit(value, arguments[0])
    if hint is int and isinstance(value, int) and not 1 <= value <= MOST:
        return None
    if hint is float and isinstance(value, int) and not isinstance(value, bool):
        return (float(value),)
    if isinstance(hint, type) and isinstance(value, hint):
        return None if isinstance(value, bool) and hint is not bool else (value,)
    return None


def _read(text: str, hint: object) -> tuple[object] | None:
    """The text parsed as the annotated type, in a 1-tuple, or None if that fails."""
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if hint is type(None):
        return (None,) if text.lower() in ("none", "") else None
    if origin is typing.Literal:
        return next(((choice,) for choice in arguments if str(choice) == text), None)
    if origin is tuple:
        parts = [part.strip() for part in text.strip("()[]").split(",") if part.strip()]
        read = [_read(part, arguments[0]) for part in parts]
        return (tuple(r[0] for r in read if r is not None),) if None not in read else None
    if origin is typing.Annotated:
        return _read(text, arguments[0])
    if hint is bool:
        truth = {"true": True, "yes": True, "on": True, "false": False, "no": False, "off": False}
        return (truth[text.lower()],) if text.lower() in truth else None
    if hint is str:
        return (text,)
    if hint is int or hint is float:
        try:
            return (hint(text),)
        except ValueError:
            return None
    guesses = (_read(text, kind) for kind in (int, float, bool, str))
    return next((guess for guess in guesses if guess is not None), None)


def _words(hint: object) -> str:
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    alternatives = _alternatives(hint)
    if len(alternatives) > 1:
        return " or ".join(_words(alternative) for alternative in alternatives)
    if origin is typing.Literal:
        return "one of " + ", ".join(repr(choice) for choice in arguments)
    if origin is tuple:
        count = "" if arguments[-1] is Ellipsis else f"{len(arguments)} "
        if typing.get_origin(arguments[0]) is typing.Literal:
            return f"a list of {count}" + _words(arguments[0]).removeprefix("one of ")
        return f"a list of {count}" + ("whole numbers" if arguments[0] is int else "values")
    if origin is typing.Annotated:
        return str(arguments[1])
    plain = {
        int: f"a whole number of at least 1 and at most {MOST}",
        float: "a number",
        str: "a word",
        bool: "true or false",
    }
    if hint is type(None):
        return "none"
    return plain.get(hint, str(hint)) if isinstance(hint, type) else str(hint)
