"""The sections of a recipe: every setting with its default, its meaning and its range."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any


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
    """Images of a run."""

    name: str = _setting(
        "digits", "a data set's name, a folder of images, a table, tar shards or an .npz"
    )
    size: int | None = _setting(
        None,
        "side to which images are scaled; their own, or 64 if they differ or are over 64",
        least=4,
    )
    channels: int | None = _setting(None, "1 for grey, 3 for colour; as they are if unset", least=1)
    bits: int = _setting(
        16, "bits that count in 16-bit images: 12 for scans from 0 to 4095", least=8, most=16
    )
    validation: float = _setting(
        0.0, "part of the training set held out for validation", least=0, below=1
    )
    test: bool = _setting(
        True, "look at the test set at the end; false while settings are still being chosen"
    )
    test_fraction: float = _setting(
        0.2, "part held out for testing where the data has no test set", above=0, below=1
    )
    split_seed: int = _setting(0, "seed of those two splits and of the subset", least=0)
    split_rule: str = _setting(
        "independent",
        "own images are set aside each by itself, or by shares of classes as before 0.2",
        choices=("independent", "stratified"),
    )
    subset: str = _setting(
        "", "only random classes: min-rand-10, half-rand-50, max-100, rand-N or rand-N/GROUPS"
    )
    unit: str = _setting(
        "image", "unit of privacy: image, or a word such as patient for all images of one"
    )
    unit_pattern: str = _setting(
        "", "regular expression whose group `unit` is the unit in a file's path; a folder if empty"
    )
    columns: list[str] = _setting(  # noqa: RUF009
        [], "columns of a table, such as path=file, label=dx, unit=pid; found by name if empty"
    )
    unit_field: str = _setting(
        "", "keyword of the DICOM field that names the unit; for a patient PatientID"
    )
    window: list[float] = _setting(  # noqa: RUF009
        [], "centre and width of DICOM values from black to white; all that the bits hold if empty"
    )
    mixed_photometric: bool = _setting(
        False, "take DICOM files of MONOCHROME1 and MONOCHROME2 together"
    )
    per_unit: int = _setting(
        4, "most images of a unit that enter a step, chosen at random in each", least=1
    )
    balance: list[float] = _setting(  # noqa: RUF009
        [], "one number per class: how often its images are drawn beside others, not counted"
    )
    public: bool = _setting(False, "you declare these images public: not for a private run")
    skip_unreadable: bool = _setting(False, "go on without images that cannot be read")
    cache: bool = _setting(True, "keep a folder's decoded images in your cache, for the next start")


@dataclass(frozen=True, kw_only=True)
class Model:
    """Network of a run."""

    name: str = _setting(
        "tanh-cnn", "a registered model, timm:NAME, torchvision:NAME, or package.module:function"
    )
    options: dict[str, Any] = _setting(  # noqa: RUF009
        {}, "the model's own options, as `sfumato models show` lists"
    )
    batchnorm_to: str | None = _setting(
        None, "groupnorm puts a GroupNorm in the place of every BatchNorm", choices=("groupnorm",)
    )


@dataclass(frozen=True, kw_only=True)
class Start:
    """Initial weights, and which of them to train."""

    source: str = _setting(
        "",
        "a run folder, weights file or packaged start to begin with; from scratch if empty",
    )
    beside: str = _setting(
        "", "a second source, for the network that a model's option `beside` adds"
    )
    how: str = _setting(
        "transfer",
        "take the weights over, or draw new ones with each layer's mean and variance",
        choices=("transfer", "meanvar"),
    )
    reset: list[str] | None = _setting(  # noqa: RUF009
        None, "name patterns drawn anew; the head for transfer, none for meanvar if unset"
    )
    zero: list[str] = _setting(  # noqa: RUF009
        [], "name patterns that begin at zero, such as head, instead of drawn or taken over"
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
    """Privacy guarantee, clipping and noise."""

    enabled: bool = _setting(True, "false trains without any privacy, for baselines")
    epsilon: float = _setting(3.0, "the budget", above=0)
    delta: float = _setting(
        1e-5,
        "what probabilities may differ by beyond e^epsilon; well below 1/examples",
        above=0,
        below=1,
    )
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
    group_clips: list[float] = _setting(  # noqa: RUF009
        [], "for group-wise: sizes of the C_i, one per group and one for the rest, scaled to C"
    )
    quantile: float = _setting(0.5, "for adaptive: part of norms that C lets be", above=0, below=1)
    clip_lr: float = _setting(0.2, "for adaptive: how fast C moves", above=0, most=10)
    count_noise: float | None = _setting(
        None,
        "for adaptive: noise on the count of norms; a twentieth of the batch if unset",
        above=0,
    )
    tuned: str = _setting("", "what these settings were chosen by, in words, for the statement")
    clip_decay: float = _setting(
        1.0, "C at the first step over C at the last (Dynamic DP-SGD)", least=0.01, most=100
    )
    noise_decay: float = _setting(
        1.0, "sigma at the first step over sigma at the last (Dynamic DP-SGD)", least=0.01, most=100
    )


@dataclass(frozen=True, kw_only=True)
class Optimizer:
    """Optimizer and learning rate."""

    name: str = _setting("sgd", "update rule", choices=("sgd", "adam", "adamw", "nadam", "rmsprop"))
    lr: float = _setting(2.0, "learning rate", above=0)
    effective_noise: float | None = _setting(
        None,
        "sigma / B that lr is for: with less noise the rate rises, with more it falls",
        above=0,
    )
    noise_power: float = _setting(
        0.5,
        "power of sigma / B that the rate falls with, if effective_noise is set",
        above=0,
        most=2,
    )
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
    sharded: bool = _setting(
        False, "on several ranks, each has the state of some parameters (ZeRO, stage 1)"
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
class Phase:
    """Part of a run's steps, and what is trained in it."""

    share: float | None = _setting(
        None, "part of the run's steps; the last phase takes the rest", above=0, below=1
    )
    steps: int | None = _setting(None, "number of steps, instead of share", least=1)
    train: list[str] = _setting(  # noqa: RUF009
        [], "name patterns of what is trained, all else being frozen; everything if empty"
    )
    lr: float | None = _setting(None, "learning rate, in the place of optimizer.lr", above=0)
    clip: float | None = _setting(None, "C, in the place of privacy.clip", above=0)


@dataclass(frozen=True, kw_only=True)
class Training:
    """Length of a run, batches and views."""

    batch: int | None = _setting(
        None, "expected batch B; an eighth of the training set, at most 4096, if unset", least=1
    )
    steps: int | None = _setting(None, "number of steps; 100 if epochs is unset too", least=1)
    epochs: float | None = _setting(None, "passes over the training set, instead of steps", above=0)
    views: int = _setting(1, "K, augmented views per example", least=1)
    clean_view: bool = _setting(False, "one of the K views is the image as it is")
    self_mix: int = _setting(0, "further views, each a mixture of two of the K", least=0)
    mix_alpha: float = _setting(0.2, "mixtures have shares from Beta(alpha, alpha)", above=0)
    class_weights: list[float] = _setting(  # noqa: RUF009
        [], "one number per class that its images' loss is multiplied by, not counted from the data"
    )
    phases: list[Phase] | None = _setting(  # noqa: RUF009
        None, "tables of steps in which only some parameters are trained; see `docs/methods.md`"
    )
    average: float = _setting(
        0.0, "averaged weights: decay of ema, or fraction of steps for tail; 0 for none",
        least=0, below=1,
    )  # fmt: skip
    average_kind: str = _setting(
        "ema", "exponential average, or plain mean over the last steps", choices=("ema", "tail")
    )
    test_views: str = _setting(
        "none",
        "the final model's predictions are averaged over: flip (mirror images), shifts, or all",
        choices=("none", "flip", "shifts", "all"),
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
        "auto",
        "bfloat16: a compiled pass on a CUDA device, norms and sums in float32; auto: where it can",
        choices=("auto", "float32", "bfloat16"),
    )
    log_every: int | None = _setting(
        None, "steps between metrics; about 60 in all if unset", least=1
    )
    checkpoint_every: int | None = _setting(
        None, "steps between checkpoints; about 20 seconds if unset", least=1
    )
    snapshots: int = _setting(
        0, "weights kept over training, evenly spaced with the first and the last; 0 for none",
        least=0,
    )  # fmt: skip
    train_metrics: bool = _setting(
        False, "write loss and accuracy of private batches, and a clock, to files: outside epsilon"
    )
