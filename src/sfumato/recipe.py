"""What a run *is*: frozen dataclasses, TOML in and out, checked with messages for people.

A recipe file has one table per section. Whatever it leaves out has the default written below, so a
recipe on disk may be as short as the differences; the copy that a run keeps is complete.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import tomllib
import types
import typing
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from sfumato.errors import UserError, nearest

Value = bool | int | float | str


def _setting(
    default: Any,
    help: str,
    *,
    above: float | None = None,
    least: float | None = None,
    most: float | None = None,
    below: float | None = None,
    choices: tuple[str, ...] | None = None,
) -> Any:
    limits = {"above": above, "least": least, "most": most, "below": below, "choices": choices}
    meta = {"help": help, **{k: v for k, v in limits.items() if v is not None}}
    if isinstance(default, dict | list):
        return field(default_factory=type(default), metadata=meta)
    return field(default=default, metadata=meta)


@dataclass(frozen=True, kw_only=True)
class Data:
    """Which images."""

    name: str = _setting("digits", "a data set's name, a folder of images or an .npz file")
    size: int | None = _setting(
        None, "side to which images are resized; as they are if unset", least=4
    )
    channels: int | None = _setting(None, "1 for grey, 3 for colour; as they are if unset", least=1)
    validation: float = _setting(
        0.0, "part of the training set held out for validation", least=0, below=1
    )
    test_fraction: float = _setting(
        0.2, "part held out for testing where the data has no test set", above=0, below=1
    )
    split_seed: int = _setting(0, "seed of those two splits and of the subset", least=0)
    subset: str = _setting(
        "", "only random classes: min-rand-10, half-rand-50, max-100, rand-N or rand-N/GROUPS"
    )
    public: bool = _setting(False, "you declare these images public: not for a private run")
    skip_unreadable: bool = _setting(False, "go on without images that cannot be read")


@dataclass(frozen=True, kw_only=True)
class Model:
    """Which network."""

    name: str = _setting("tanh-cnn", "a registered model, or package.module:function")
    options: dict[str, Any] = _setting(  # noqa: RUF009
        {}, "the model's own options, as `sfumato models show` lists"
    )


@dataclass(frozen=True, kw_only=True)
class Start:
    """Which weights to begin with, and which of them to train."""

    source: str = _setting("", "a run folder or weights file to start from; from scratch if empty")
    how: str = _setting(
        "transfer",
        "take the weights over, or draw new ones with each layer's mean and variance",
        choices=("transfer", "meanvar"),
    )
    reset: list[str] | None = _setting(  # noqa: RUF009
        None, "name patterns drawn anew; the head for transfer, none for meanvar if unset"
    )
    train: list[str] = _setting(  # noqa: RUF009
        [], "name patterns of what is trained, all else being frozen; everything if empty"
    )
    public: bool = _setting(
        False, "you declare public what the source was trained on without noise"
    )
    same_data: bool | None = _setting(
        None, "the source saw this run's images, with noise: true counts what it spent"
    )


@dataclass(frozen=True, kw_only=True)
class Privacy:
    """The guarantee, and how it is met."""

    enabled: bool = _setting(True, "false trains without any privacy, for baselines")
    epsilon: float = _setting(3.0, "the budget", above=0)
    delta: float = _setting(1e-5, "chance outside epsilon; less than 1/examples", above=0, below=1)
    accountant: str = _setting("pld", "what epsilon is computed with", choices=("pld", "rdp"))
    clip: float = _setting(1.0, "C, the largest norm of an example's gradient", above=0)
    noise_multiplier: float | None = _setting(
        None, "sigma; solved for from epsilon, batch and steps if unset", above=0
    )
    clipping: str = _setting(
        "flat",
        "how gradients are shortened; see `docs/methods.md`",
        choices=(
            "flat", "normalised", "automatic", "per-layer", "group-wise", "adaptive",
            "adaptive-per-layer",
        ),
    )  # fmt: skip
    gamma: float = _setting(0.01, "for automatic: g / (norm + gamma)", least=1e-12)
    split: str = _setting(
        "uniform", "how C is split among layers or groups", choices=("uniform", "dimension")
    )
    groups: list[str] = _setting(  # noqa: RUF009
        [], "for group-wise: name patterns, such as stage1.*, one per group"
    )
    quantile: float = _setting(0.5, "for adaptive: part of norms that C lets be", above=0, below=1)
    clip_lr: float = _setting(0.2, "for adaptive: how fast C moves", above=0, most=10)
    count_noise: float | None = _setting(
        None,
        "for adaptive: noise on the count of norms; a twentieth of the batch if unset",
        above=0,
    )
    clip_decay: float = _setting(
        1.0, "C at the first step over C at the last (Dynamic DP-SGD)", least=0.01, most=100
    )
    noise_decay: float = _setting(
        1.0, "sigma at the first step over sigma at the last (Dynamic DP-SGD)", least=0.01, most=100
    )


@dataclass(frozen=True, kw_only=True)
class Optimizer:
    """What the private gradient is handed to."""

    name: str = _setting("sgd", "update rule", choices=("sgd", "adam", "adamw", "nadam", "rmsprop"))
    lr: float = _setting(2.0, "learning rate", above=0)
    momentum: float = _setting(0.0, "for sgd and rmsprop", least=0, below=1)
    nesterov: bool = _setting(False, "Nesterov's momentum, for sgd")
    beta1: float = _setting(0.9, "for adam, adamw and nadam", least=0, below=1)
    beta2: float = _setting(0.999, "for adam, adamw and nadam", least=0, below=1)
    weight_decay: float = _setting(0.0, "L2 penalty (decoupled for adamw)", least=0)
    schedule: str = _setting(
        "constant",
        "learning rate over time",
        choices=("constant", "linear", "cosine", "step", "plateau"),
    )
    warmup: int = _setting(0, "steps over which the learning rate rises from 0", least=0)
    decay: float = _setting(0.5, "factor of step and plateau", above=0, below=1)
    decay_epochs: float = _setting(1.0, "for step: epochs between factors", above=0)
    decay_steps: int | None = _setting(None, "for step: steps between factors, instead", least=1)
    patience: float = _setting(
        2.0, "for plateau: epochs without a better validation result", above=0
    )
    monitor: str = _setting(
        "accuracy",
        "validation result that plateau and early_stop watch",
        choices=("accuracy", "loss"),
    )


@dataclass(frozen=True, kw_only=True)
class Augment:
    """Random changes to each view of a training image."""

    crop: int = _setting(0, "pad by this much and crop back at random", least=0)
    padding: str = _setting("reflect", "what crop pads with", choices=("reflect", "zeros"))
    flip: bool = _setting(False, "mirror left and right at random")
    vertical_flip: bool = _setting(False, "mirror up and down at random")
    rot90: bool = _setting(False, "turn by a random multiple of 90 degrees")
    rotate: float = _setting(0.0, "turn by up to this many degrees", least=0, most=180)
    cutout: int = _setting(0, "side of a square set to zero at random", least=0)
    brightness: float = _setting(0.0, "largest relative change", least=0, most=1)
    contrast: float = _setting(0.0, "largest relative change", least=0, most=1)
    saturation: float = _setting(0.0, "largest relative change", least=0, most=1)


@dataclass(frozen=True, kw_only=True)
class Training:
    """How long and in what pieces."""

    batch: int | None = _setting(
        None, "expected batch B; an eighth of the training set, at most 4096, if unset", least=1
    )
    steps: int | None = _setting(None, "number of steps; 100 if epochs is unset too", least=1)
    epochs: float | None = _setting(None, "passes over the training set, instead of steps", above=0)
    views: int = _setting(1, "K, augmented views per example", least=1)
    clean_view: bool = _setting(False, "one of the K views is the image as it is")
    self_mix: int = _setting(0, "further views, each a mixture of two of the K", least=0)
    mix_alpha: float = _setting(0.2, "mixtures have shares from Beta(alpha, alpha)", above=0)
    average: float = _setting(
        0.0, "averaged weights: decay of ema, or fraction of steps for tail; 0 for none",
        least=0, below=1,
    )  # fmt: skip
    average_kind: str = _setting(
        "ema", "exponential average, or plain mean over the last steps", choices=("ema", "tail")
    )
    early_stop: float | None = _setting(
        None, "stop after this many epochs without a better validation result", above=0
    )
    diverged: float | None = _setting(
        None, "give up when the mean loss of a batch exceeds this", above=0
    )
    seed: int | None = _setting(
        None, "makes a run repeatable, noise and all; fresh randomness if unset", least=0
    )
    physical_batch: int | None = _setting(
        None, "examples processed at once; chosen from the memory if unset", least=1
    )
    precision: str = _setting(
        "float32",
        "bfloat16: a compiled pass on a CUDA device; norms and sums stay in float32",
        choices=("float32", "bfloat16"),
    )
    log_every: int | None = _setting(
        None, "steps between metrics; about 60 in all if unset", least=1
    )
    checkpoint_every: int | None = _setting(
        None, "steps between checkpoints; about 20 seconds if unset", least=1
    )
    train_metrics: bool = _setting(
        True, "log loss and accuracy of the private batches (not covered by epsilon)"
    )


@dataclass(frozen=True, kw_only=True)
class Recipe:
    """Everything that determines a run."""

    name: str = "custom"
    about: str = ""
    data: Data = Data()
    model: Model = Model()
    start: Start = Start()
    privacy: Privacy = Privacy()
    optimizer: Optimizer = Optimizer()
    augment: Augment = Augment()
    training: Training = Training()

    def to_dict(self) -> dict[str, Any]:
        """Nested plain values, without those that are unset."""
        return _without_none(dataclasses.asdict(self))

    def to_toml(self) -> str:
        """The complete recipe as a TOML file, each setting with its meaning."""
        lines = [f"{key} = {_toml(getattr(self, key))}" for key in ("name", "about")]
        for section in _SECTIONS:
            part = getattr(self, section)
            lines += ["", f"# {part.__doc__}", f"[{section}]"]
            options: dict[str, Any] = {}
            for f in dataclasses.fields(part):
                value = getattr(part, f.name)
                if isinstance(value, dict):
                    options = value
                    continue
                text = f"# {f.name} =" if value is None else f"{f.name} = {_toml(value)}"
                lines.append(f"{text:<32}# {f.metadata['help']}")
            if options:
                lines += ["", f"[{section}.options]"]
                lines += [f"{key} = {_toml(value)}" for key, value in options.items()]
        return "\n".join(lines) + "\n"

    def digest(self) -> str:
        """A hash of what determines the result; the name and remarks do not count."""
        content = self.to_dict()
        del content["name"], content["about"]
        return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()[:16]

    def replace(self, changes: Mapping[str, Any]) -> Recipe:
        """The recipe with some settings changed, given by dotted names such as `optimizer.lr`."""
        content = self.to_dict()
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
        return from_dict(content)


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


def _without_none(content: dict[str, Any]) -> dict[str, Any]:
    return {
        key: _without_none(value) if isinstance(value, dict) else value
        for key, value in content.items()
        if value is not None
    }


def _toml(value: Any) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, list | tuple):
        return "[" + ", ".join(_toml(v) for v in value) + "]"
    if isinstance(value, str):
        return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
    return repr(value)


def setting_names() -> list[str]:
    """Every dotted setting name that a recipe knows."""
    return [f"{s}.{f.name}" for s in _SECTIONS for f in dataclasses.fields(_CLASSES[s])]


def from_dict(content: Mapping[str, Any], *, where: str = "the recipe") -> Recipe:
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
            parts[key] = _section(key, value, where)
        else:
            inside = [n for n in setting_names() if n.endswith(f".{key}")]
            hint = f" Did you mean '{inside[0]}'?" if inside else nearest(key, _CLASSES)
            raise UserError(f"Unknown setting '{key}' in {where}.{hint}")
    recipe = Recipe(**parts)
    _check_together(recipe)
    return recipe


def _section(section: str, content: Mapping[str, Any], where: str) -> Any:
    cls = _CLASSES[section]
    fields = {f.name: f for f in dataclasses.fields(cls)}
    hints = typing.get_type_hints(cls)
    values = {}
    for key, value in content.items():
        if key not in fields:
            elsewhere = [n for n in setting_names() if n.endswith(f".{key}")]
            close = nearest(key, fields) or nearest(f"{section}.{key}", setting_names())
            hint = f" Did you mean '{elsewhere[0]}'?" if elsewhere else close
            raise UserError(
                f"Unknown setting '{section}.{key}' in {where}.{hint} "
                f"[{section}] takes: {', '.join(fields)}."
            )
        values[key] = _checked(f"{section}.{key}", value, hints[key], fields[key].metadata, where)
    return cls(**values)


def _checked(name: str, value: Any, hint: Any, meta: Mapping[str, Any], where: str) -> Any:
    """The value in its declared type, within its declared range, or a `UserError`."""
    optional = isinstance(hint, types.UnionType)
    kind = next(t for t in typing.get_args(hint) if t is not types.NoneType) if optional else hint
    kind = typing.get_origin(kind) or kind
    if kind is float and isinstance(value, int) and not isinstance(value, bool):
        value = float(value)
    if kind is list and isinstance(value, str):
        value = [value]
    fits = isinstance(value, kind) and not (isinstance(value, bool) and kind is not bool)
    if not fits or (kind is list and not all(isinstance(v, str) for v in value)):
        words = {int: "a whole number", float: "a number", bool: "true or false", str: "text"}
        words[list] = "a list of texts"
        raise UserError(
            f"'{name}' in {where} must be {words.get(kind, kind.__name__)}, not {value!r}."
        )
    if (choices := meta.get("choices")) and value not in choices:
        raise UserError(
            f"'{name}' in {where} must be one of {', '.join(choices)}, not '{value}'."
            f"{nearest(value, choices)}"
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
        raise UserError(f"'{name}' in {where} must be {allowed}, not {value!r}. ({meta['help']})")
    return value


def _check_together(recipe: Recipe) -> None:
    """Settings that are possible alone but not with each other."""
    if recipe.training.steps is not None and recipe.training.epochs is not None:
        raise UserError("Give training.steps or training.epochs, not both.")
    if recipe.optimizer.nesterov and not recipe.optimizer.momentum:
        raise UserError("optimizer.nesterov needs optimizer.momentum greater than 0.")
    if recipe.data.public and recipe.privacy.enabled:
        raise UserError(
            "data.public = true declares that the training images need no privacy, for a run with "
            "privacy.enabled = false (`sfumato pretrain`). Leave it out of a private run."
        )
    _check_methods(recipe)
    start = recipe.start
    about_source = start.public or start.reset is not None or start.same_data is not None
    if about_source and not start.source:
        raise UserError(
            "start.reset, start.public and start.same_data are about the weights that a run starts "
            "from: name them in start.source."
        )


def _check_methods(recipe: Recipe) -> None:
    p, t = recipe.privacy, recipe.training
    if (p.clipping == "group-wise") != bool(p.groups):
        raise UserError(
            "privacy.clipping = 'group-wise' and privacy.groups (name patterns) go together: give "
            "both, or neither."
        )
    if p.clip_decay != 1 and p.clipping.startswith(("adaptive", "automatic")):
        raise UserError(
            f"privacy.clip_decay lowers C by a plan, but privacy.clipping = '{p.clipping}' "
            f"{'has no C' if p.clipping == 'automatic' else 'finds C by itself'}: choose one."
        )
    if t.views < 2 and (t.clean_view or t.self_mix):
        name = "training.clean_view" if t.clean_view else "training.self_mix"
        raise UserError(f"{name} needs training.views of at least 2.")


def loads(text: str, *, where: str) -> Recipe:
    """A recipe from TOML text."""
    try:
        content = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise UserError(f"{where} is not valid TOML: {error}.") from None
    return from_dict(content, where=where)


def parse_setting(text: str) -> tuple[str, Any]:
    """`optimizer.lr=2` as a name and a value; text needs no quotes."""
    key, found, raw = text.partition("=")
    if not found or not key.strip():
        raise UserError(f"--set takes SECTION.NAME=VALUE, such as optimizer.lr=2, not '{text}'.")
    raw = raw.strip()
    try:
        value = tomllib.loads(f"v = {raw}")["v"]
    except tomllib.TOMLDecodeError:
        value = raw
    return key.strip(), value


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
