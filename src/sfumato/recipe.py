"""Recipes: frozen dataclasses, read from and written to TOML, checked with messages for people.

A recipe file has one table per section. Whatever it leaves out has the default written in
`sfumato.settings`, so a recipe on disk may be as short as the differences; the copy that a run
keeps is complete.
"""

from __future__ import annotations

import dataclasses
import json
import math
import tomllib
import types
import typing
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from typing import Any

from sfumato.errors import UserError, nearest
from sfumato.recipe_checks import check_together
from sfumato.settings import Augment, Data, Model, Optimizer, Phase, Privacy, Start, Training


@dataclass(frozen=True, kw_only=True)
class Recipe:
    """Everything that determines a run."""

    name: str = "custom"
    about: str = ""
    data: Data = field(default_factory=Data)
    model: Model = field(default_factory=Model)
    start: Start = field(default_factory=Start)
    privacy: Privacy = field(default_factory=Privacy)
    optimizer: Optimizer = field(default_factory=Optimizer)
    augment: Augment = field(default_factory=Augment)
    training: Training = field(default_factory=Training)

    @property
    def exact_metrics(self) -> bool:
        """Tell whether files hold exact numbers about training batches, and a clock of the steps.

        *Guarantee:* False for a private run that does not ask for them: neither number is covered
        by epsilon. (A step takes the longer the more images it drew.) Without privacy the weights
        are as exact, so there is nothing to hide.
        """
        return self.training.train_metrics or not self.privacy.enabled

    def to_dict(self) -> dict[str, Any]:
        """Nested plain values, without unset ones."""
        content: dict[str, Any] = _without_none(dataclasses.asdict(self))
        return content

    def to_toml(self) -> str:
        """The complete recipe as a TOML file, each setting with its meaning."""
        lines = [f"{key} = {toml_value(getattr(self, key))}" for key in ("name", "about")]
        for section in _SECTIONS:
            part = getattr(self, section)
            lines += ["", f"# {part.__doc__}", f"[{section}]"]
            below: list[str] = []
            for f in dataclasses.fields(part):
                value = getattr(part, f.name)
                if isinstance(value, dict):
                    below += ["", f"[{section}.{f.name}]", *_toml_lines(value)] if value else []
                    continue
                if _entries(_HINTS[_CLASSES[section]][f.name]) and value:
                    for entry in value:
                        stated = _without_none(dataclasses.asdict(entry))
                        below += ["", f"[[{section}.{f.name}]]", *_toml_lines(stated)]
                    continue
                text = f"# {f.name} =" if value is None else f"{f.name} = {toml_value(value)}"
                lines.append(f"{text:<30}  # {f.metadata['help']}")
            lines += below
        return "\n".join(lines) + "\n"

    def changed(self) -> dict[str, Any]:
        """The settings that differ from their defaults, by dotted names."""
        usual = flat(Recipe().to_dict())
        return {k: v for k, v in flat(self.to_dict()).items() if usual.get(k) != v}

    def replace(
        self, changes: Mapping[str, Any], *, options: Mapping[str, str] | None = None
    ) -> Recipe:
        """The recipe with some settings changed, given by dotted names such as `optimizer.lr`.

        A new number of steps replaces a number of epochs, and vice versa.

        Args:
            changes: New values; None for the default.
            options: The user's spelling of a setting, such as `--epsilon`, for messages.
        """
        content = self._beneath(changes)
        for key, value in changes.items():
            *path, last = key.split(".")
            table = content
            for i, part in enumerate(path):
                table = table.setdefault(part, {})
                if not isinstance(table, dict):
                    raise UserError(
                        f"'{'.'.join(path[: i + 1])}' is a single setting, not a section."
                    )
            if value is None:
                table.pop(last, None)
            else:
                table[last] = value
        return from_dict(content, options=options)

    def extended_by(self, content: Mapping[str, Any], *, where: str) -> Recipe:
        """The recipe of a file that extends this one; name and description are the file's own.

        Args:
            content: The settings of the file, as nested plain values.
            where: The file, for messages.
        """
        own = content.get("training")
        stated = own if isinstance(own, Mapping) else ()
        below = self._beneath([f"training.{key}" for key in stated])
        del below["name"], below["about"]
        return from_dict(_overlaid(below, content), where=where)

    def _beneath(self, settings: Collection[str]) -> dict[str, Any]:
        """Plain values to lay settings over, without a length if the settings state one."""
        content = self.to_dict()
        for name in _LENGTH if any(name in settings for name in _LENGTH) else ():
            content["training"].pop(name.removeprefix("training."), None)
        return content


_LENGTH = ("training.steps", "training.epochs")
"""Each replaces the other."""

_SECTIONS: tuple[str, ...] = (
    "data", "model", "start", "privacy", "optimizer", "augment", "training",
)  # fmt: skip
_CLASSES: dict[str, type[Any]] = {
    "data": Data,
    "model": Model,
    "start": Start,
    "privacy": Privacy,
    "optimizer": Optimizer,
    "augment": Augment,
    "training": Training,
}
_HINTS = {cls: typing.get_type_hints(cls) for cls in (*_CLASSES.values(), Phase)}


def _without_none(content: Any) -> Any:
    """Nested plain values without unset ones, those of tables in lists too."""
    if isinstance(content, list):
        return [_without_none(value) for value in content]
    if isinstance(content, dict):
        return {key: _without_none(value) for key, value in content.items() if value is not None}
    return content


def _entries(hint: Any) -> type[Any] | None:
    """The dataclass of the tables in a list of tables; None for every other setting."""
    for kind in (hint, *typing.get_args(hint)):
        of = next(iter(typing.get_args(kind)), None) if typing.get_origin(kind) is list else None
        if isinstance(of, type) and dataclasses.is_dataclass(of):
            return of
    return None


def _toml_lines(content: Mapping[str, Any]) -> list[str]:
    return [f"{key} = {toml_value(value)}" for key, value in content.items()]


def _overlaid(below: Mapping[str, Any], above: Mapping[str, Any]) -> dict[str, Any]:
    """Nested plain values, updated with others."""
    both = dict(below)
    for key, value in above.items():
        old = both.get(key)
        if isinstance(old, Mapping) and isinstance(value, Mapping):
            value = _overlaid(old, value)
        both[key] = value
    return both


def toml_value(value: Any) -> str:
    """A plain value as TOML writes it."""
    if isinstance(value, list | tuple):
        return "[" + ", ".join(toml_value(v) for v in value) + "]"
    if isinstance(value, Mapping):
        return "{" + ", ".join(_toml_lines(value)) + "}"
    if isinstance(value, str):
        return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
    return str(value).lower() if isinstance(value, bool) else repr(value)


def setting_text(value: Any) -> str:
    """A value in the form that `SECTION.NAME=VALUE` takes."""
    return value if isinstance(value, str) else toml_value(value)


def setting_names() -> list[str]:
    """Every dotted setting name that a recipe knows."""
    return [f"{s}.{f.name}" for s in _SECTIONS for f in dataclasses.fields(_CLASSES[s])]


def from_dict(
    content: Mapping[str, Any],
    *,
    where: str = "the recipe",
    options: Mapping[str, str] | None = None,
) -> Recipe:
    """A recipe from nested plain values; every key and value is checked."""
    parts: dict[str, Any] = {}
    for key, value in content.items():
        if key in ("name", "about"):
            if not isinstance(value, str):
                raise UserError(f"'{key}' in {where} must be text, not {value!r}.")
            parts[key] = value
        elif key in _CLASSES:
            if not isinstance(value, Mapping):
                raise UserError(f"'{key}' in {where} must be a section ([{key}]), not {value!r}.")
            parts[key] = _table(_CLASSES[key], key, value, where, options or {})
        else:
            inside = [n for n in setting_names() if n.endswith(f".{key}")]
            hint = f" Did you mean '{inside[0]}'?" if inside else nearest(key, _CLASSES)
            raise UserError(f"Unknown setting '{key}' in {where}.{hint}")
    recipe = Recipe(**parts)
    check_together(recipe)
    return recipe


def _table(
    cls: type[Any], table: str, content: Mapping[str, Any], where: str, options: Mapping[str, str]
) -> Any:
    """The settings of a section, or of one table in a list of tables, as its dataclass."""
    fields, hints = {f.name: f for f in dataclasses.fields(cls)}, _HINTS[cls]
    values = {}
    for key, value in content.items():
        if key not in fields:
            elsewhere = [n for n in setting_names() if n.endswith(f".{key}")]
            close = nearest(key, fields) or nearest(f"{table}.{key}", setting_names())
            hint = f" Did you mean '{elsewhere[0]}'?" if elsewhere else close
            raise UserError(
                f"Unknown setting '{table}.{key}' in {where}.{hint} "
                f"[{table}] takes: {', '.join(fields)}."
            )
        name = f"{table}.{key}"
        what = f"{options[name]} ('{name}')" if name in options else f"'{name}' in {where}"
        if inside := _entries(hints[key]):
            values[key] = _tables(inside, name, value, where)
        else:
            values[key] = _checked(what, value, hints[key], fields[key].metadata)
    return cls(**values)


def _tables(cls: type[Any], name: str, content: Any, where: str) -> list[Any] | None:
    """A list of tables as dataclasses; None if it is empty, as if it were not there."""
    if not isinstance(content, list) or not all(isinstance(entry, Mapping) for entry in content):
        raise UserError(
            f"'{name}' in {where} must be a list of tables ([[{name}]]), not {content!r}."
        )
    found = [_table(cls, f"{name}[{i}]", e, where, {}) for i, e in enumerate(content, 1)]
    return found or None


def _checked(what: str, value: Any, hint: Any, meta: Mapping[str, Any]) -> Any:
    """The value in its declared type, within its declared range, or a `UserError`."""
    optional = isinstance(hint, types.UnionType)
    kind = next(t for t in typing.get_args(hint) if t is not types.NoneType) if optional else hint
    whole, kind = kind, typing.get_origin(kind) or kind
    if not _is_moderate(value):
        raise UserError(f"{what} has a number of 2^63 or more, or lists nested in lists.")
    if kind is float and isinstance(value, int) and not isinstance(value, bool):
        value = float(value)
    value = int(value) if kind is int and isinstance(value, float) and value % 1 == 0 else value
    of = next(iter(typing.get_args(whole)), None) if kind is list else None
    if kind is list and not isinstance(value, list) and isinstance(value, str | int | float):
        value = [value]
    if of is float and isinstance(value, list):
        value = [float(v) if type(v) is int else v for v in value]
    fits = isinstance(value, kind) and not (isinstance(value, bool) and kind is not bool)
    if not fits or (of is not None and not all(type(v) is of for v in value)):
        words = {int: "a whole number", float: "a number", bool: "true or false", str: "text"}
        words[list] = "a list of numbers" if of is float else "a list of texts"
        raise UserError(f"{what} must be {words.get(kind, kind.__name__)}, not {value!r}.")
    if (choices := meta.get("choices")) and value not in choices:
        raise UserError(
            f"{what} must be one of {', '.join(choices)}, not '{value}'.{nearest(value, choices)}"
        )
    bounds: dict[str, tuple[str, Callable[[Any, Any], bool]]] = {
        "above": ("greater than", lambda v, b: v > b),
        "least": ("at least", lambda v, b: v >= b),
        "most": ("at most", lambda v, b: v <= b),
        "below": ("less than", lambda v, b: v < b),
    }
    stated = {k: meta[k] for k in bounds if k in meta}
    if any(not bounds[k][1](value, limit) for k, limit in stated.items()):
        allowed = " and ".join(f"{bounds[k][0]} {limit:g}" for k, limit in stated.items())
        raise UserError(f"{what} must be {allowed}, not {value!r}. ({meta['help']})")
    if isinstance(value, float) and not math.isfinite(value):
        raise UserError(f"{what} must be a finite number, not {value!r}.")
    return value


def _is_moderate(value: Any, depth: int = 0) -> bool:
    """Tell whether integers fit a machine word and lists are not nested deeply.

    A model's own options are checked where it is built.
    """
    if isinstance(value, list | tuple | Mapping):
        inside = value.values() if isinstance(value, Mapping) else value
        return depth < 5 and all(_is_moderate(part, depth + 1) for part in inside)
    return not isinstance(value, int) or abs(value) < (2**63 if depth == 0 else 2**200)


_EARLIER: dict[str, dict[str, Any]] = {"data": {"split_rule": "stratified"}}
"""Values for settings that version 0.1 did not have, equal to its behaviour."""


def from_record(content: Mapping[str, Any], *, where: str) -> Recipe:
    """The recipe that a run's own files state.

    They state every setting there was when the run began; a setting that was added later has the
    value that describes sfumato's behaviour then, which may differ from today's default.
    """
    filled = dict(content)
    for section, settings in _EARLIER.items():
        stated = filled.get(section)
        if isinstance(stated, Mapping):
            filled[section] = {**settings, **stated}
    return from_dict(filled, where=where)


def parse(text: str, *, where: str) -> dict[str, Any]:
    """TOML text as nested plain values."""
    try:
        return tomllib.loads(text)
    except (ValueError, RecursionError) as error:
        reason = "it is nested too deeply" if isinstance(error, RecursionError) else error
        raise UserError(f"{where} is not valid TOML: {reason}.") from None


def loads(text: str, *, where: str, record: bool = False) -> Recipe:
    """A recipe from TOML text that extends no other.

    Args:
        text: The file's content.
        where: Its origin, for messages.
        record: Whether a run wrote it about itself (see `from_record`).
    """
    content = parse(text, where=where)
    return from_record(content, where=where) if record else from_dict(content, where=where)


def parse_setting(text: str) -> tuple[str, Any]:
    """`optimizer.lr=2` as a name and a value; text needs no quotes."""
    key, found, raw = text.partition("=")
    if not found or not key.strip():
        raise UserError(f"--set takes SECTION.NAME=VALUE, such as optimizer.lr=2, not '{text}'.")
    raw = raw.strip()
    try:
        value = tomllib.loads(f"v = {raw}")["v"]
    except (ValueError, RecursionError):
        value = raw
    return key.strip(), value


def flat(content: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Plain values of sections by dotted names such as `optimizer.lr`."""
    found: dict[str, Any] = {}
    for key, value in content.items():
        if isinstance(value, Mapping):
            found |= flat(value, f"{prefix}{key}.")
        else:
            found[f"{prefix}{key}"] = value
    return found


def differences(a: Mapping[str, Any], b: Mapping[str, Any], prefix: str = "") -> list[str]:
    """Settings in which two recipes (as plain values) differ, each as a short phrase."""
    found = []
    for key in sorted({*a, *b}):
        left, right = a.get(key), b.get(key)
        if isinstance(left, Mapping) or isinstance(right, Mapping):
            found += differences(left or {}, right or {}, f"{prefix}{key}.")
        elif left != right:
            found.append(f"{prefix}{key} was {left!r} and is now {right!r}")
    return found
