"""Sound but unusual models: each must pass. Maps a name to a builder and an input shape."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.utils import parametrizations, parametrize
from torch.nn.utils import spectral_norm as old_spectral_norm
from torch.nn.utils import weight_norm as old_weight_norm

CLASSES = 4
SHAPE = (3, 8, 8)

Sound = dict[str, tuple[Callable[[], nn.Module], tuple[int, ...]]]
SOUND: Sound = {}


def sound(build: Callable[[], nn.Module], shape: tuple[int, ...] = SHAPE, name: str = "") -> None:
    SOUND[name or build.__name__.strip("_")] = build, shape


def head(channels: int) -> list[nn.Module]:
    return [nn.AdaptiveAvgPool2d(2), nn.Flatten(), nn.Linear(4 * channels, CLASSES)]


def around(*layers: nn.Module, channels: int) -> nn.Module:
    return nn.Sequential(*layers, nn.Tanh(), *head(channels))


class Model(nn.Module):
    """Makes a model of layers and a function."""

    def __init__(self, run: Callable[..., Tensor], **parts: nn.Module | nn.Parameter) -> None:
        super().__init__()
        for name, part in parts.items():
            setattr(self, name, part)
        self.run = run

    def forward(self, x: Tensor) -> Tensor:
        return self.run(self, x)


for mode in ("zeros", "circular", "reflect", "replicate"):
    sound(
        lambda mode=mode: around(nn.Conv2d(3, 5, 3, padding=2, padding_mode=mode), channels=5),
        name=f"padding {mode}",
    )
sound(lambda: around(nn.Conv2d(3, 5, 4, padding="same"), channels=5), name="same even kernel")
sound(
    lambda: around(nn.Conv2d(3, 5, 4, padding="same", padding_mode="circular"), channels=5),
    name="same even circular",
)
sound(
    lambda: around(nn.Conv2d(3, 5, (2, 3), padding="same", dilation=(2, 1)), channels=5),
    name="same dilated",
)
sound(
    lambda: around(nn.Conv2d(3, 5, 3, dilation=2, stride=2, padding=(1, 2)), channels=5),
    name="dilation",
)
sound(
    lambda: around(
        nn.Conv2d(3, 6, 3, padding=1, groups=3), nn.Conv2d(6, 6, 3, groups=6), channels=6
    ),
    name="grouped and depthwise",
)
sound(lambda: around(nn.Conv2d(3, 16, 1), nn.Conv2d(16, 5, 3, padding=1), channels=5), name="taps")
sound(
    lambda: around(
        nn.ConvTranspose2d(3, 6, 3, stride=2, padding=1, output_padding=1),
        nn.ConvTranspose2d(
            6, 4, (3, 2), stride=3, output_padding=(2, 1), dilation=(1, 2), groups=2
        ),
        channels=4,
    ),
    name="transposed",
)
sound(
    lambda: around(
        nn.ConvTranspose2d(3, 16, 3, padding=1), nn.ConvTranspose2d(16, 4, 3), channels=4
    ),
    name="transposed by taps",
)


def conv3d() -> nn.Module:
    return nn.Sequential(
        nn.Unflatten(1, (1, 3)),
        nn.Conv3d(1, 4, 2),
        nn.Tanh(),
        nn.Flatten(),
        nn.Linear(392, CLASSES),
    )


def conv1d() -> nn.Module:
    return nn.Sequential(
        nn.Conv1d(3, 6, 3, padding=1, padding_mode="circular"),
        nn.ReLU(inplace=True),
        nn.Conv1d(6, 6, 4, stride=2, padding=1, groups=2, dilation=2),
        nn.InstanceNorm1d(6, affine=True),
        nn.Flatten(),
        nn.LazyLinear(CLASSES),
    )


def conv1d_built() -> nn.Module:
    model = conv1d()
    model(torch.zeros(2, 3, 12))
    return model


sound(conv3d)
sound(conv1d_built, (3, 12), name="conv1d")


def shared_layer() -> nn.Module:
    conv = nn.Conv2d(3, 3, 3, padding=1)
    return around(conv, nn.Tanh(), conv, nn.Tanh(), conv, channels=3)


def tied_parameter() -> nn.Module:
    a, b = nn.Linear(12, 12), nn.Linear(12, 12)
    b.weight = a.weight
    return nn.Sequential(
        nn.AdaptiveAvgPool2d(2), nn.Flatten(), a, nn.Tanh(), b, nn.Linear(12, CLASSES)
    )


def borrowed_weight() -> nn.Module:
    def run(m: Model, x: Tensor) -> Tensor:
        h = torch.tanh(m.a(x.mean(2)))
        return m.out(F.linear(h, m.a.weight.t()))

    return Model(run, a=nn.Linear(8, 6), out=nn.Sequential(nn.Flatten(), nn.Linear(24, CLASSES)))


sound(shared_layer)
sound(tied_parameter)
sound(borrowed_weight)


def norm(make: Callable[[nn.Module], nn.Module]) -> Callable[[], nn.Module]:
    return lambda: nn.Sequential(
        make(nn.Conv2d(3, 5, 3, padding=1)),
        nn.Tanh(),
        nn.AdaptiveAvgPool2d(2),
        nn.Flatten(),
        make(nn.Linear(20, CLASSES)),
    )


class Symmetric(nn.Module):
    def forward(self, w: Tensor) -> Tensor:
        return w.triu() + w.triu(1).transpose(-1, -2)


class Scaled(nn.Module):
    """A parametrisation with a parameter of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.gain = nn.Parameter(torch.tensor(1.3))

    def forward(self, w: Tensor) -> Tensor:
        return self.gain * (w - w.mean(0, keepdim=True))


def parametrised(make: Callable[[], nn.Module], *names: str) -> Callable[[nn.Module], nn.Module]:
    def add(layer: nn.Module) -> nn.Module:
        for name in names:
            parametrize.register_parametrization(layer, name, make())
        return layer

    return add


sound(norm(parametrizations.weight_norm), name="weight norm")
sound(norm(old_weight_norm), name="old weight norm")
sound(norm(parametrizations.spectral_norm), name="spectral norm")
sound(norm(old_spectral_norm), name="old spectral norm")
sound(norm(parametrised(Scaled, "weight", "bias")), name="own parametrisation")
sound(norm(parametrizations.orthogonal), name="orthogonal")


def two_parametrisations_shared() -> nn.Module:
    conv = parametrised(Scaled, "weight")(
        parametrizations.weight_norm(nn.Conv2d(3, 3, 3, padding=1))
    )
    return around(conv, nn.Tanh(), conv, channels=3)


def symmetric_shared_between() -> nn.Module:
    """One parametrisation module, with its parameter, used by two layers."""
    a, b, scaled = nn.Linear(12, 12), nn.Linear(12, 12), Scaled()
    parametrize.register_parametrization(a, "weight", scaled)
    parametrize.register_parametrization(b, "weight", scaled)
    parametrize.register_parametrization(b, "weight", Symmetric())
    return nn.Sequential(
        nn.AdaptiveAvgPool2d(2), nn.Flatten(), a, nn.Tanh(), b, nn.Linear(12, CLASSES)
    )


sound(two_parametrisations_shared)
sound(symmetric_shared_between)


def bare_parameters() -> nn.Module:
    def run(m: Model, x: Tensor) -> Tensor:
        h = m.conv(x * m.scale).flatten(2).transpose(1, 2) + m.position
        h = torch.cat([m.token.expand(h.shape[0], -1, -1), h], 1)
        return m.out(h[:, 0] + h.mean(1))

    return Model(
        run,
        conv=nn.Conv2d(3, 6, 4, stride=4),
        scale=nn.Parameter(torch.tensor(0.7)),
        position=nn.Parameter(torch.randn(4, 6)),
        token=nn.Parameter(torch.randn(1, 1, 6)),
        out=nn.Linear(6, CLASSES),
    )


def attention(batch_first: bool) -> nn.Module:
    def run(m: Model, x: Tensor) -> Tensor:
        h = m.patch(x).flatten(2).transpose(1, 2)
        h = h if batch_first else h.transpose(0, 1)
        h = h + m.attend(h, h, h)[0]
        h = h if batch_first else h.transpose(0, 1)
        return m.out(m.norm(h).mean(1))

    return Model(
        run,
        patch=nn.Conv2d(3, 8, 4, stride=4),
        attend=nn.MultiheadAttention(8, 2, dropout=0.1, batch_first=batch_first),
        norm=nn.LayerNorm(8),
        out=nn.Linear(8, CLASSES),
    )


def two_tokens() -> nn.Module:
    """Sequence first, with as many tokens as a small probe has examples."""

    def run(m: Model, x: Tensor) -> Tensor:
        h = m.patch(x).flatten(2).permute(2, 0, 1)
        return m.out(torch.tanh(m.inner(h)).mean(0))

    return Model(
        run, patch=nn.Conv2d(3, 8, (4, 8)), inner=nn.Linear(8, 8), out=nn.Linear(8, CLASSES)
    )


def encoder(batch_first: bool) -> nn.Module:
    def run(m: Model, x: Tensor) -> Tensor:
        h = m.patch(x).flatten(2).transpose(1, 2)
        h = m.encode(h if batch_first else h.transpose(0, 1))
        return m.out(h.mean(1 if batch_first else 0))

    return Model(
        run,
        patch=nn.Conv2d(3, 8, 4, stride=4),
        encode=nn.TransformerEncoderLayer(8, 2, 16, dropout=0.2, batch_first=batch_first),
        out=nn.Linear(8, CLASSES),
    )


def dot_product() -> nn.Module:
    def run(m: Model, x: Tensor) -> Tensor:
        q, k, v = m.qkv(m.patch(x).flatten(2).transpose(1, 2)).chunk(3, -1)
        h = F.scaled_dot_product_attention(q, k, v, dropout_p=0.2 if m.training else 0.0)
        return m.out(h.mean(1))

    return Model(
        run, patch=nn.Conv2d(3, 8, 4, stride=4), qkv=nn.Linear(8, 24), out=nn.Linear(8, CLASSES)
    )


sound(bare_parameters)
sound(lambda: attention(True), name="attention batch first")
sound(lambda: attention(False), name="attention sequence first")
sound(two_tokens)
sound(lambda: encoder(True), name="encoder batch first")
sound(lambda: encoder(False), name="encoder sequence first")
sound(dot_product)


def in_place() -> nn.Module:
    def run(m: Model, x: Tensor) -> Tensor:
        x -= 0.1
        h = m.a(x)
        h += m.b(x)
        h = F.relu_(m.norm(h)) * 0.5
        h += 1
        h[:, 0] = 0
        return m.out(h)

    return Model(
        run,
        a=nn.Sequential(nn.Conv2d(3, 6, 3, padding=1), nn.ReLU(inplace=True), nn.Conv2d(6, 6, 1)),
        b=nn.Conv2d(3, 6, 1),
        norm=nn.GroupNorm(2, 6),
        out=nn.Sequential(nn.Dropout(0.3, inplace=True), *head(6)),
    )


def in_place_after_frozen() -> nn.Module:
    def run(m: Model, x: Tensor) -> Tensor:
        h = m.a(x)
        g = m.b(h)
        h += 1
        return m.out(torch.tanh(g) + 0.1 * h)

    model = Model(run, a=nn.Conv2d(3, 4, 3), b=nn.Linear(6, 6), out=nn.Sequential(*head(4)))
    model.get_submodule("b").weight.requires_grad_(False)
    return model


def frozen_parts() -> nn.Module:
    model = nn.Sequential(
        nn.Conv2d(3, 6, 3), nn.GroupNorm(2, 6), nn.Tanh(), nn.Conv2d(6, 6, 3), nn.Tanh(), *head(6)
    )
    model[0].requires_grad_(False)
    model[1].bias.requires_grad_(False)
    model[3].bias.requires_grad_(False)
    return model


sound(in_place)
sound(in_place_after_frozen)
sound(frozen_parts)


class Noisy(nn.Module):
    """Functional dropout, stochastic depth and additive noise."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Conv2d(6, 6, 3, padding=1)

    def forward(self, x: Tensor) -> Tensor:
        h = F.dropout(self.inner(x), 0.3, self.training)
        if self.training:
            h = h * torch.empty(x.shape[0], 1, 1, 1, dtype=x.dtype).bernoulli_(0.8)
            h = h + 0.1 * torch.randn_like(h)
        return x + h


def dropouts() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(3, 6, 3), nn.Dropout2d(0.2), Noisy(), nn.AlphaDropout(0.1), *head(6)
    )


def parameter_list() -> nn.Module:
    class Levels(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.scales = nn.ParameterList([nn.Parameter(torch.randn(3, 1, 1)) for _ in range(3)])
            self.shifts = nn.ParameterDict({"a": nn.Parameter(torch.randn(3, 1, 1))})

        def forward(self, x: Tensor) -> Tensor:
            for scale in self.scales:
                x = torch.tanh(x * scale)
            return x + self.shifts["a"]

    return nn.Sequential(nn.Conv2d(3, 3, 3), Levels(), nn.PReLU(3), *head(3))


def nested_units() -> nn.Module:
    class Unit(nn.Module):
        def __init__(self, depth: int) -> None:
            super().__init__()
            self.gain = nn.Parameter(torch.ones(1))
            self.inner = Unit(depth - 1) if depth else nn.Conv2d(3, 3, 3, padding=1)

        def forward(self, x: Tensor) -> Tensor:
            return x + self.gain * torch.tanh(self.inner(x))

    return nn.Sequential(Unit(2), nn.Sequential(Unit(0), nn.Sequential(*head(3))))


def bilinear() -> nn.Module:
    def run(m: Model, x: Tensor) -> Tensor:
        h = x.flatten(1)
        return m.pair(h[:, :7], h[:, 7:12])

    return Model(run, pair=nn.Bilinear(7, 5, CLASSES))


def norms() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(3, 6, 3),
        nn.GroupNorm(3, 6),
        nn.InstanceNorm2d(6, affine=True),
        nn.LayerNorm([6, 6, 6]),
        nn.LayerNorm(6, bias=False),
        nn.RMSNorm([6, 6]),
        nn.GroupNorm(2, 6, affine=False),
        nn.LocalResponseNorm(3),
        *head(6),
    )


def rolled_back() -> nn.Module:
    """A roll along the batch that is undone: sound, but rows are not where layers expect them."""

    def run(m: Model, x: Tensor) -> Tensor:
        return m.out(torch.tanh(m.a(x.roll(1, 0)).roll(-1, 0)))

    return Model(run, a=nn.Conv2d(3, 4, 3), out=nn.Sequential(*head(4)))


def merged_batch() -> nn.Module:
    """Patches folded into the batch and unfolded again."""

    def run(m: Model, x: Tensor) -> Tensor:
        patches = x.unfold(2, 4, 4).flatten(2).reshape(x.shape[0] * 3, -1)
        return m.out(torch.tanh(m.a(patches)).reshape(x.shape[0], -1))

    return Model(run, a=nn.Linear(64, 5), out=nn.Linear(15, CLASSES))


def own_subclass() -> nn.Module:
    class Doubled(nn.Conv2d):
        def forward(self, x: Tensor) -> Tensor:
            return super().forward(x) * 2 + self.weight.sum()

    return around(Doubled(3, 4, 3), channels=4)


def keyword_call() -> nn.Module:
    def run(m: Model, x: Tensor) -> Tensor:
        return m.out(m.up(torch.tanh(m.a(input=x)), output_size=[8, 8]))

    return Model(
        run,
        a=nn.Conv2d(3, 4, 3, stride=2, padding=1),
        up=nn.ConvTranspose2d(4, 4, 3, stride=2, padding=1),
        out=nn.Sequential(nn.Tanh(), *head(4)),
    )


def unused_parameter() -> nn.Module:
    model = around(nn.Conv2d(3, 4, 3), channels=4)
    model.extra = nn.Parameter(torch.ones(3))
    return model


def control_flow() -> nn.Module:
    """Python code per example: only one example at a time can follow it."""

    def run(m: Model, x: Tensor) -> Tensor:
        return torch.stack(
            [m.a(row.flatten()) if row.sum() > 0 else m.b(row.flatten()) for row in x]
        )

    return Model(run, a=nn.Linear(192, CLASSES), b=nn.Linear(192, CLASSES))


def positive_only() -> nn.Module:
    def run(m: Model, x: Tensor) -> Tensor:
        return m.out(torch.log(x).tanh())

    return Model(run, out=nn.Sequential(*head(3)))


def checkpointed() -> nn.Module:
    from torch.utils.checkpoint import checkpoint

    def run(m: Model, x: Tensor) -> Tensor:
        h = checkpoint(m.a, x, use_reentrant=False)
        return m.out(h)

    return Model(
        run, a=norm(parametrizations.weight_norm)()[0], out=nn.Sequential(nn.Tanh(), *head(5))
    )


def counts_calls() -> nn.Module:
    """Keeps state, but nothing of the data."""

    class Counted(nn.Module):
        calls: Tensor

        def __init__(self) -> None:
            super().__init__()
            self.conv = nn.Conv2d(3, 4, 3)
            self.register_buffer("calls", torch.zeros(()))
            self.seen: list[int] = []

        def forward(self, x: Tensor) -> Tensor:
            self.calls += 1
            self.seen.append(1)
            return self.conv(x) * (1 + self.calls / 1000)

    return around(Counted(), channels=4)


for model in (
    dropouts, parameter_list, nested_units, bilinear, norms, rolled_back, merged_batch,
    own_subclass, keyword_call, unused_parameter, control_flow, positive_only, checkpointed,
    counts_calls,
):  # fmt: skip
    sound(model)


def mixed_precision_parts() -> nn.Module:
    """A part in float64 between parts in float32."""

    def run(m: Model, x: Tensor) -> Tensor:
        h = m.a(x.to(m.a.weight.dtype)).flatten(1)
        return m.out(torch.tanh(m.middle(h.double())).to(m.out.weight.dtype))

    return Model(
        run,
        a=nn.Conv2d(3, 4, 3, stride=2),
        middle=nn.Linear(36, 8).double(),
        out=nn.Linear(8, CLASSES),
    )


def float64_first() -> nn.Module:
    """The first parameters are in float64, all others in float32."""

    def run(m: Model, x: Tensor) -> Tensor:
        h = torch.tanh(m.a(x.double()))
        return m.out(h.float())

    return Model(run, a=nn.Conv2d(3, 4, 3).double(), out=nn.Sequential(*head(4)))


def bfloat16_middle() -> nn.Module:
    def run(m: Model, x: Tensor) -> Tensor:
        h = torch.tanh(m.a(x)).to(torch.bfloat16)
        return m.out(m.middle(h).to(x.dtype))

    return Model(
        run,
        a=nn.Conv2d(3, 4, 3),
        middle=nn.Conv2d(4, 4, 3).to(torch.bfloat16),
        out=nn.Sequential(*head(4)),
    )


def rounded_middle() -> nn.Module:
    """Activations that pass through bfloat16, whatever the parameters are in."""

    def run(m: Model, x: Tensor) -> Tensor:
        return m.out(torch.tanh(m.a(x)).to(torch.bfloat16).to(x.dtype))

    return Model(run, a=nn.Conv2d(3, 4, 3), out=nn.Sequential(*head(4)))


def traced() -> nn.Module:
    model = around(nn.Conv2d(3, 4, 3), channels=4)
    module: nn.Module = torch.jit.trace(model, torch.zeros(2, *SHAPE))
    return module


def scripted() -> nn.Module:
    module: nn.Module = torch.jit.script(around(nn.Conv2d(3, 4, 3), channels=4))
    return module


def frozen_batch_norm() -> nn.Module:
    """Statistics that are constants, as in a frozen backbone."""
    model = around(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), channels=4)
    model[1].eval().requires_grad_(False)
    return model


def spectrum() -> nn.Module:
    """A Fourier transform of each image."""

    def run(m: Model, x: Tensor) -> Tensor:
        return m.out(torch.fft.rfft2(x).abs().log1p())

    return Model(run, out=nn.Sequential(*head(3)))


def own_range() -> nn.Module:
    """Refuses inputs that real ones never are."""

    def run(m: Model, x: Tensor) -> Tensor:
        if bool((x.detach().abs() > 200).any()):
            raise ValueError("pixels lie between -200 and 200")
        return m.out(x)

    return Model(run, out=nn.Sequential(nn.Conv2d(3, 4, 3), nn.Tanh(), *head(4)))


def own_scale() -> nn.Module:
    """Divides each image by its own largest value, if it is not negative."""

    def run(m: Model, x: Tensor) -> Tensor:
        low, high = x.flatten(1).amin(1), x.flatten(1).amax(1).clamp_min(1e-3)
        factor = torch.where(low >= 0, 1 / high, torch.ones_like(high))
        return m.out(x * factor.view(-1, 1, 1, 1))

    return Model(run, out=nn.Sequential(nn.Conv2d(3, 4, 3), nn.Tanh(), *head(4)))


def notes_in_an_object() -> nn.Module:
    """Keeps settings and a cache of constants in objects of its own."""

    class Settings:
        def __init__(self) -> None:
            self.scale, self.name, self.made = 0.5, "notes", {"calls": 0}

    class Noting(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.settings, self.conv = Settings(), nn.Conv2d(3, 4, 3)

        def forward(self, x: Tensor) -> Tensor:
            self.settings.made["calls"] += 1
            return self.conv(x) * self.settings.scale

    return around(Noting(), channels=4)


for model in (
    mixed_precision_parts, float64_first, bfloat16_middle, rounded_middle, traced, scripted,
    frozen_batch_norm, spectrum, own_range, own_scale, notes_in_an_object,
):  # fmt: skip
    sound(model)


class Keeping(nn.Module):
    """A convolution beside things that a model may keep, and a function that uses them."""

    def __init__(self, run: Callable[..., Tensor] | None = None, **kept: Any) -> None:
        super().__init__()
        self.conv, self.run = nn.Conv2d(3, 4, 3), run
        for name, value in kept.items():
            setattr(self, name, value)

    def forward(self, x: Tensor) -> Tensor:
        h: Tensor = self.conv(x)
        return h if self.run is None else self.run(self, h)


class Options(dict[str, Any]):
    """A dictionary of a class of its own, as configurations are."""


def counter() -> nn.Module:
    def run(m: Any, h: Tensor) -> Tensor:
        m.calls["run"] += 1
        return h

    return around(Keeping(run, calls=Counter(), options=Options(width=8)), channels=4)


def holds_itself() -> nn.Module:
    kept: list[Any] = [1]
    kept.append(kept)
    return around(Keeping(kept=kept), channels=4)


def sparse_and_nested() -> nn.Module:
    part = Keeping(
        lambda m, h: torch.einsum("nchw,cd->ndhw", h, m.mix.to_dense().to(h.dtype)),
        nested=torch.nested.nested_tensor([torch.ones(2), torch.ones(3)]),
    )
    part.register_buffer("mix", torch.eye(4).to_sparse())
    return around(part, channels=4)


def own_python_random() -> nn.Module:
    part = Keeping(lambda m, h: h * (0.9 + 0.2 * m.random.random()), random=random.Random(1))
    return around(part, channels=4)


def own_torch_generator() -> nn.Module:
    def run(m: Any, h: Tensor) -> Tensor:
        return h * (torch.rand(h.shape, generator=m.random) > 0.1)

    return around(Keeping(run, random=torch.Generator().manual_seed(1)), channels=4)


def own_numpy_generator() -> nn.Module:
    def run(m: Any, h: Tensor) -> Tensor:
        noise = torch.from_numpy(m.random.standard_normal(h.shape[1:]))
        return h + 0.1 * noise.to(h.dtype)

    return around(Keeping(run, random=np.random.default_rng(0)), channels=4)


def lazy_constants() -> nn.Module:
    """Makes a mask at the first call, and keeps it in a list in an object."""

    def run(m: Any, h: Tensor) -> Tensor:
        if not hasattr(m, "mask"):
            m.mask = [SimpleNamespace(of=torch.ones(h.shape[2:]).tril())]
        return h * m.mask[0].of.to(h.dtype)

    return around(Keeping(run), channels=4)


for model in (
    counter, holds_itself, sparse_and_nested, own_python_random, own_torch_generator,
    own_numpy_generator, lazy_constants,
):  # fmt: skip
    sound(model)


def routed_experts() -> nn.Module:
    """Each row takes one expert: how many take it decides in which order a library adds up."""

    def run(m: nn.Module, x: Tensor) -> Tensor:
        h = m.inside(x.flatten(1))
        chosen, out = m.gate(h).argmax(1), torch.zeros_like(h)
        for k, expert in enumerate(m.experts):
            out[chosen == k] = expert(h[chosen == k])
        logits: Tensor = m.head(out.tanh())
        return logits

    return Model(
        run, inside=nn.Linear(SHAPE[0] * SHAPE[1] * SHAPE[2], 33), gate=nn.Linear(33, 3),
        experts=nn.ModuleList(nn.Linear(33, 33) for _ in range(3)), head=nn.Linear(33, CLASSES),
    )  # fmt: skip


sound(routed_experts)
