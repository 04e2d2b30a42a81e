"""The peers in PyTorch: Opacus with hooks, Opacus with ghost clipping, and torch.func.vmap.

Each is used as its own documentation says, on the same rows, in the same number of physical
batches, with noise, momentum and averaged weights.
"""

from __future__ import annotations

import contextlib
import importlib.util
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.utils import parametrize

from sfumato import models
from sfumato.bench.cases import Case
from sfumato.bench.feed import (
    CLIP,
    DECAY,
    SIGMA,
    Contender,
    Feed,
    Unsupported,
    build_model,
    recipe_of,
)
from sfumato.training import optimizers
from sfumato.training.averaging import Average


def plain_model(case: Case) -> tuple[nn.Module, str]:
    """The case's model with ordinary weights, and what that changed.

    Raises:
        Unsupported: If its weights are functions of parameters and that cannot be switched off.
    """
    model = build_model(case)
    if not _reparametrised(model):
        return model, ""
    known = {} if ":" in case.model else models.info(case.model).options
    if "standardise" in known:
        model = build_model(case, standardise=False)
        if not _reparametrised(model):
            return model, "without weight standardisation, which it cannot do"
    raise Unsupported("its layers cannot have weights that are functions of parameters")


def _reparametrised(model: nn.Module) -> bool:
    return any(parametrize.is_parametrized(module) for module in model.modules())


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


def opacus(case: Case, device: torch.device, *, ghost: bool = False) -> Contender:
    """Opacus: `GradSampleModule` and `DPOptimizer`, or their ghost-clipping counterparts.

    Memory stays in the default layout, as convolution gradients are wrong with channels last.
    """
    if importlib.util.find_spec("opacus") is None:
        raise Unsupported("not installed")
    if case.views > 1:
        raise Unsupported("has no views per example; compare its K = 1")
    model, note = plain_model(case)
    model.to(device=device)
    build = _ghost if ghost else _hooks
    with _quiet():
        forward_backward, optimizer, parameters = build(model, case)
    feed, average = Feed(case, device, channels_last=False), Average(model, DECAY)
    narrow, taken = case.precision == "bfloat16", 0

    def step() -> None:
        nonlocal taken
        with _quiet():
            for number, (x, y) in enumerate(feed.batches(), 1):
                with torch.autocast(device.type, torch.bfloat16, enabled=narrow):
                    forward_backward(x, y)
                optimizer.signal_skip_step(do_skip=number < case.physical)
                optimizer.step()
                optimizer.zero_grad()
        taken += 1
        average.update(model, taken)

    how = "bfloat16 autocast, eager" if narrow else "float32, eager"
    return Contender(step, how, note, model=parameters)


def _hooks(model: nn.Module, case: Case) -> tuple[Callable[[Tensor, Tensor], None], Any, nn.Module]:
    from opacus import GradSampleModule
    from opacus.optimizers import DPOptimizer

    wrapped = GradSampleModule(model)
    optimizer = DPOptimizer(_sgd(case, wrapped), **_settings(case))

    def forward_backward(x: Tensor, y: Tensor) -> None:
        torch.autograd.backward(F.cross_entropy(wrapped(x).float(), y))

    return forward_backward, optimizer, wrapped


def _ghost(model: nn.Module, case: Case) -> tuple[Callable[[Tensor, Tensor], None], Any, nn.Module]:
    from opacus.grad_sample.grad_sample_module_fast_gradient_clipping import (
        GradSampleModuleFastGradientClipping,
    )
    from opacus.optimizers import DPOptimizerFastGradientClipping
    from opacus.utils.fast_gradient_clipping_utils import DPLossFastGradientClipping

    wrapped = GradSampleModuleFastGradientClipping(model, max_grad_norm=CLIP)
    optimizer = DPOptimizerFastGradientClipping(_sgd(case, wrapped), **_settings(case))
    loss = DPLossFastGradientClipping(wrapped, optimizer, nn.CrossEntropyLoss())

    def forward_backward(x: Tensor, y: Tensor) -> None:
        loss(wrapped(x).float(), y).backward()

    return forward_backward, optimizer, wrapped


def _sgd(case: Case, model: nn.Module) -> torch.optim.Optimizer:
    return optimizers.build(recipe_of(case).optimizer, model.parameters())


def _settings(case: Case) -> dict[str, Any]:
    return {
        "noise_multiplier": SIGMA,
        "max_grad_norm": CLIP,
        "expected_batch_size": case.batch,
    }


def vmapped(case: Case, device: torch.device) -> Contender:
    """`torch.func.vmap` of `torch.func.grad` over examples, each with its views."""
    model = build_model(case).to(device=device)
    feed, average = Feed(case, device, channels_last=False), Average(model, DECAY)
    optimizer = optimizers.build(recipe_of(case).optimizer, model.parameters())
    parameters = dict(model.named_parameters())
    fixed = dict(model.named_buffers())
    narrow, taken = case.precision == "bfloat16", 0

    def loss_of(own: dict[str, Tensor], x: Tensor, y: Tensor) -> Tensor:
        out = torch.func.functional_call(model, (own, fixed), (x,))
        return F.cross_entropy(out.float(), y.expand(case.views))

    each = torch.func.vmap(torch.func.grad(loss_of), in_dims=(None, 0, 0), randomness="different")

    def step() -> None:
        nonlocal taken
        own = {name: p.detach() for name, p in parameters.items()}
        sums = {name: torch.zeros_like(p) for name, p in own.items()}
        for x, y in feed.batches():
            with torch.autocast(device.type, torch.bfloat16, enabled=narrow):
                grads = each(own, x.view(case.at_once, case.views, *x.shape[1:]), y)
            squares = torch.stack([g.flatten(1).square().sum(1) for g in grads.values()])
            factor = (CLIP / (squares.sum(0).sqrt() + 1e-6)).clamp(max=1.0)
            for name, g in grads.items():
                sums[name] += torch.einsum("n,n...->...", factor.to(g.dtype), g)
        for name, p in parameters.items():
            p.grad = (sums[name] + SIGMA * CLIP * torch.randn_like(p)) / case.batch
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        taken += 1
        average.update(model, taken)

    how = "bfloat16 autocast, eager" if narrow else "float32, eager"
    return Contender(step, how, model=model)
