"""JAX-Privacy on wide residual networks, if it is installed.

JAX-Privacy 2.0 has no image models, so the network is written here with the initial weights of the
PyTorch model; clipping and noise are JAX-Privacy's `clipped_grad`.
"""

from __future__ import annotations

import importlib
import importlib.util
import os
import re
from typing import Any

import numpy as np
import torch

from sfumato.bench.cases import Case
from sfumato.bench.feed import (
    CLIP,
    DECAY,
    SIGMA,
    Contender,
    Unsupported,
    build_model,
    drawn,
    generated,
    recipe_of,
)

_PAD = 4


def jax_privacy(case: Case, device: torch.device) -> Contender:
    """`jax_privacy.clipped_grad`, jitted, with images on the device and augmentation inside."""
    for package in ("jax", "jax_privacy"):
        if importlib.util.find_spec(package) is None:
            raise Unsupported("not installed")
    if not re.fullmatch(r"wrn-\d+-\d+", case.model) or case.options:
        raise Unsupported("has no image models; only wide residual networks were written for it")
    os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")
    jax = importlib.import_module("jax")
    if jax.default_backend() != {"cuda": "gpu"}.get(device.type, device.type):
        raise Unsupported(f"is installed for {jax.default_backend()} only")
    return _contender(case, jax)


def _contender(case: Case, jax: Any) -> Contender:
    jnp = jax.numpy
    clipping = importlib.import_module("jax_privacy").clipping
    dtype = jnp.bfloat16 if case.precision == "bfloat16" else jnp.float32
    weights = weights_of(case, jnp)
    dataset = generated(case.image, case.examples)
    images = jnp.asarray(np.ascontiguousarray(dataset.train.images.transpose(0, 2, 3, 1)))
    labels = jnp.asarray(dataset.train.labels.astype(np.int32))
    blocks = (int(case.model.split("-")[1]) - 4) // 6
    rate = recipe_of(case).optimizer

    def loss_of(own: Any, x: Any, y: Any) -> Any:
        out = forward({k: v.astype(dtype) for k, v in own.items()}, x.astype(dtype), blocks, jax)
        scores = jax.nn.log_softmax(out.astype(jnp.float32))
        return -scores[:, y].mean()

    clipped = clipping.clipped_grad(
        loss_of, l2_clip_norm=CLIP, batch_argnums=(1, 2), keep_batch_dim=False
    )

    def physical(own: Any, sums: Any, images: Any, labels: Any, index: Any, key: Any) -> Any:
        x = _views(images[index], case.views, key, jax)
        got = clipped(own, x, labels[index])
        return jax.tree.map(jnp.add, sums, got)

    def update(own: Any, momenta: Any, averages: Any, sums: Any, key: Any) -> Any:
        keys = dict(zip(own, jax.random.split(key, len(own)), strict=True))

        def noisy(name: str) -> Any:
            noise = SIGMA * CLIP * jax.random.normal(keys[name], own[name].shape)
            return (sums[name] + noise) / case.batch

        momenta = {k: rate.momentum * momenta[k] + noisy(k) for k in own}
        own = {k: own[k] - rate.lr * momenta[k] for k in own}
        averages = {k: DECAY * averages[k] + (1 - DECAY) * own[k] for k in own}
        return own, momenta, averages

    physical_jit, update_jit = jax.jit(physical), jax.jit(update)
    zeros = jax.tree.map(jnp.zeros_like, weights)
    state, key = [weights, zeros, weights], jax.random.key(0)
    generator = torch.Generator().manual_seed(0)

    def step() -> None:
        nonlocal key, state
        sums, draw = zeros, drawn(case, generator).numpy()
        for part in np.split(draw, case.physical):
            key, own = jax.random.split(key)
            sums = physical_jit(state[0], sums, images, labels, part, own)
        key, own = jax.random.split(key)
        state = list(update_jit(*state, sums, own))

    return Contender(
        step, f"{case.precision}, jit", synchronise=lambda: jax.block_until_ready(state)
    )


def weights_of(case: Case, jnp: Any) -> dict[str, Any]:
    """The PyTorch model's initial weights by their names there, filters in JAX's layout."""
    found = {}
    for name, p in build_model(case).named_parameters():
        values = p.detach()
        found[name] = jnp.asarray((values.permute(2, 3, 1, 0) if p.dim() == 4 else values).numpy())
    return found


def _views(images: Any, views: int, key: Any, jax: Any) -> Any:
    """Bytes `(n, H, W, C)` to normalised crops and flips `(n, views, H, W, C)`."""
    jnp = jax.numpy
    n, height, width, channels = images.shape
    x = jnp.repeat(images, views, 0).astype(jnp.float32) / 255
    x = jnp.pad(x, ((0, 0), (_PAD, _PAD), (_PAD, _PAD), (0, 0)), mode="reflect")
    one, other = jax.random.split(key)
    corner = jax.random.randint(one, (len(x), 2), 0, 2 * _PAD + 1)

    def crop(image: Any, at: Any) -> Any:
        return jax.lax.dynamic_slice(image, (at[0], at[1], 0), (height, width, channels))

    x = jax.vmap(crop)(x, corner)
    mirrored = jax.random.bernoulli(other, 0.5, (len(x), 1, 1, 1))
    x = (jnp.where(mirrored, x[:, :, ::-1], x) - 0.5) / 0.25
    return x.reshape(n, views, height, width, channels)


def forward(own: dict[str, Any], x: Any, blocks: int, jax: Any) -> Any:
    """A wide residual network of `sfumato.models.wide_resnet`, on `(n, H, W, C)`."""
    jnp = jax.numpy

    def conv(name: str, x: Any, stride: int = 1) -> Any:
        raw = f"{name}.parametrizations.weight.original"
        if raw not in own:
            return _convolve(x, own[f"{name}.weight"], stride, 0, jax)
        w = own[raw]
        w = w - w.mean((0, 1, 2))
        size = jnp.square(w.astype(jnp.float32)).sum((0, 1, 2))
        gain = own[f"{name}.parametrizations.weight.0.gain"]
        w = w * (gain * jax.lax.rsqrt(jnp.maximum(size, 1e-4))).astype(w.dtype)
        return _convolve(x, w, stride, 1, jax) + own[f"{name}.bias"]

    def before(name: str, x: Any) -> Any:
        x = jax.nn.relu(x)
        n, height, width, channels = x.shape
        grouped = x.reshape(n, height, width, 16, channels // 16).astype(jnp.float32)
        mean = grouped.mean((1, 2, 4), keepdims=True)
        variance = grouped.var((1, 2, 4), keepdims=True)
        grouped = (grouped - mean) * jax.lax.rsqrt(variance + 1e-5)
        out = grouped.reshape(x.shape).astype(x.dtype)
        return out * own[f"{name}.norm.weight"] + own[f"{name}.norm.bias"]

    x = conv("conv", x)
    for stage in (1, 2, 3):
        for block in range(blocks):
            name, stride = f"stage{stage}.{block}", 2 if stage > 1 and block == 0 else 1
            y = before(f"{name}.before", x)
            skip = conv(f"{name}.skip", y, stride) if f"{name}.skip.weight" in own else x
            y = conv(f"{name}.first", y, stride)
            x = skip + conv(f"{name}.second", before(f"{name}.between", y))
    x = before("last", x).mean((1, 2))
    return x @ own["head.weight"].T + own["head.bias"]


def _convolve(x: Any, w: Any, stride: int, padding: int, jax: Any) -> Any:
    return jax.lax.conv_general_dilated(
        x,
        w,
        (stride, stride),
        [(padding, padding)] * 2,
        dimension_numbers=("NHWC", "HWIO", "NHWC"),
    )
