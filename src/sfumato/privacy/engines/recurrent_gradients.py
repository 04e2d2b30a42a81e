"""Recurrent layers over all time steps, whose leaves receive per-example gradients.

The backward pass goes through the steps once for the gradients of the gates. Everything that does
not depend on the order of steps is computed for all of them together: the derivatives of the gates,
and the per-example gradients of the hidden weights, one product of matrices for each example.
PyTorch's fused kernels return sums over the batch, and no gradients of gates.

Gates are `(sequences, steps, gates)`, with the sequences of an example beside each other. Hidden
states are `(steps, sequences, width)`, as in the results of PyTorch.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from sfumato.privacy.engines.autograd_functions import unobserved
from sfumato.privacy.engines.products import matrix_gradients


class _LSTM(torch.autograd.Function):
    """Long short-term memory, with a projection of the hidden state where one is given."""

    @staticmethod
    def forward(
        ctx: Any,
        gates: Tensor,
        hidden: Tensor,
        cell: Tensor,
        weight: Tensor,
        bias: Tensor | None,
        projection: Tensor | None,
        weight_leaf: Tensor | None,
        bias_leaf: Tensor | None,
        projection_leaf: Tensor | None,
        examples: int,
    ) -> tuple[Tensor, Tensor]:
        given = gates if bias is None else gates + bias
        width, turned = cell.shape[1], weight.t()
        hs, cs, ms, ts, acts = [hidden], [cell], [], [], []
        for before in given.unbind(1):
            a = torch.addmm(before, hs[-1], turned)
            i, f = a[:, : 2 * width].sigmoid().chunk(2, 1)
            g, o = a[:, 2 * width : 3 * width].tanh(), a[:, 3 * width :].sigmoid()
            cs.append(torch.addcmul(f * cs[-1], i, g))
            ts.append(cs[-1].tanh())
            ms.append(o * ts[-1])
            hs.append(ms[-1] if projection is None else ms[-1] @ projection.t())
            acts += [i, f, g, o]
        every = torch.stack(hs)
        kept = torch.stack(acts).view(-1, 4, *cell.shape)
        middle = None if projection is None else torch.stack(ms)
        ctx.save_for_backward(
            weight, projection, every, torch.stack(cs[:-1]), torch.stack(ts), kept, middle
        )
        ctx.examples = examples
        ctx.set_materialize_grads(False)
        return every[1:].clone(), cs[-1].clone()

    @staticmethod
    @unobserved
    def backward(
        ctx: Any, saved: Any, of_hidden: Tensor | None, of_cell: Tensor | None
    ) -> tuple[Tensor | None, ...]:
        weight, projection, hs, cells, ts, kept, middle = saved
        i, f, g, o = kept.unbind(1)
        slopes = torch.stack(
            (g * i * (1 - i), cells * f * (1 - f), i * (1 - g * g), ts * o * (1 - o)), 2
        )
        to_cell = o * (1 - ts * ts)
        dh: Tensor = torch.zeros_like(hs[0])
        dc: Tensor = torch.zeros_like(cells[0]) if of_cell is None else of_cell
        found, at_output = [], []
        for t in reversed(range(len(ts))):
            dh = dh if of_hidden is None else dh + of_hidden[t]
            dm = dh if projection is None else dh @ projection
            dc = torch.addcmul(dc, dm, to_cell[t])
            d = (slopes[t] * torch.stack((dc, dc, dc, dm), 1)).flatten(1)
            found.append(d)
            at_output.append(dh)
            dh, dc = d @ weight, dc * f[t]
        d = torch.stack(found[::-1], 1)
        of_projection = None
        if ctx.needs_input_grad[8]:
            of_projection = _products(torch.stack(at_output[::-1], 1), middle, ctx.examples)
        of_weight, of_bias = _of_leaves(ctx.needs_input_grad[6:8], d, hs, ctx.examples)
        return d, dh, dc, None, None, None, of_weight, of_bias, of_projection, None


class _GRU(torch.autograd.Function):
    """Gated recurrent units."""

    @staticmethod
    def forward(
        ctx: Any,
        gates: Tensor,
        hidden: Tensor,
        weight: Tensor,
        bias: Tensor | None,
        weight_leaf: Tensor | None,
        bias_leaf: Tensor | None,
        examples: int,
    ) -> Tensor:
        width, turned = hidden.shape[1], weight.t()
        hs, acts = [hidden], []
        for x in gates.unbind(1):
            own = hs[-1] @ turned if bias is None else torch.addmm(bias, hs[-1], turned)
            r, z = (x[:, : 2 * width] + own[:, : 2 * width]).sigmoid().chunk(2, 1)
            inner = own[:, 2 * width :]
            n = torch.addcmul(x[:, 2 * width :], r, inner).tanh()
            hs.append(torch.addcmul(n, z, hs[-1] - n))
            acts += [r, z, n, inner]
        every = torch.stack(hs)
        ctx.save_for_backward(weight, every, torch.stack(acts).view(-1, 4, *hidden.shape))
        ctx.examples = examples
        return every[1:].clone()

    @staticmethod
    @unobserved
    def backward(ctx: Any, saved: Any, of_hidden: Tensor) -> tuple[Tensor | None, ...]:
        weight, hs, kept = saved
        r, z, n, inner = kept.unbind(1)
        to_n = (1 - z) * (1 - n * n)
        of_r, of_z = inner * r * (1 - r) * to_n, (hs[:-1] - n) * z * (1 - z)
        slopes = torch.stack((of_r, of_z, to_n * r, to_n), 2)
        dh: Tensor = torch.zeros_like(hs[0])
        found = []
        for t in reversed(range(len(n))):
            dh = dh + of_hidden[t]
            d = slopes[t] * dh.unsqueeze(1)
            found.append(d)
            dh = torch.addmm(dh * z[t], d[:, :3].flatten(1), weight)
        every = torch.stack(found[::-1], 1)
        d = torch.cat((every[:, :, :2], every[:, :, 3:]), 2).flatten(2)
        own = every[:, :, :3].flatten(2)
        of_weight, of_bias = _of_leaves(ctx.needs_input_grad[4:6], own, hs, ctx.examples)
        return d, dh, None, None, of_weight, of_bias, None


class _Elman(torch.autograd.Function):
    """A recurrent layer whose hidden state is one activation."""

    @staticmethod
    def forward(
        ctx: Any,
        gates: Tensor,
        hidden: Tensor,
        weight: Tensor,
        bias: Tensor | None,
        weight_leaf: Tensor | None,
        bias_leaf: Tensor | None,
        examples: int,
        rectified: bool,
    ) -> Tensor:
        given = gates if bias is None else gates + bias
        turned, hs = weight.t(), [hidden]
        for x in given.unbind(1):
            a = torch.addmm(x, hs[-1], turned)
            hs.append(a.relu() if rectified else a.tanh())
        every = torch.stack(hs)
        ctx.save_for_backward(weight, every)
        ctx.settings = examples, rectified
        return every[1:].clone()

    @staticmethod
    @unobserved
    def backward(ctx: Any, saved: Any, of_hidden: Tensor) -> tuple[Tensor | None, ...]:
        weight, hs = saved
        examples, rectified = ctx.settings
        slopes = (hs[1:] > 0).to(hs.dtype) if rectified else 1 - hs[1:] * hs[1:]
        dh: Tensor = torch.zeros_like(hs[0])
        found = []
        for t in reversed(range(len(slopes))):
            found.append((dh + of_hidden[t]) * slopes[t])
            dh = found[-1] @ weight
        d = torch.stack(found[::-1], 1)
        of_weight, of_bias = _of_leaves(ctx.needs_input_grad[4:6], d, hs, examples)
        return d, dh, None, None, of_weight, of_bias, None, None


def _of_leaves(
    needed: tuple[bool, bool], d: Tensor, hs: Tensor, examples: int
) -> tuple[Tensor | None, Tensor | None]:
    """Per-example gradients of the hidden weight and of its bias, where they are needed."""
    of_weight = _products(d, hs[:-1], examples) if needed[0] else None
    return of_weight, d.reshape(examples, -1, d.shape[2]).sum(1) if needed[1] else None


def _products(d: Tensor, inputs: Tensor, examples: int) -> Tensor:
    """Gradients `(examples, out, in)` of a matrix that all sequences and steps multiply."""
    d = d.reshape(examples, -1, 1, d.shape[2])
    x = inputs.transpose(0, 1).reshape(examples, -1, 1, inputs.shape[2])
    return matrix_gradients(d, x)[:, 0]


lstm: Callable[..., tuple[Tensor, Tensor]] = _LSTM.apply
gru: Callable[..., Tensor] = _GRU.apply
elman: Callable[..., Tensor] = _Elman.apply
