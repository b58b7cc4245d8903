"""The KDA layer: projections, short convolutions, gates, the delta rule in chunk form or by one step, gated output."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import linear

from k3rl.kernels.kda import chunk_kda, step_kda
from k3rl.model.config import KdaConfig, ModelConfig
from k3rl.model.functional import l2_norm, rms_norm
from k3rl.model.layout import Layout

L2_EPS = 1e-6


@dataclass
class KdaMemory:
    """What a KDA layer remembers: state [B, heads, dk, dv] and the last inputs of its convolutions
    [B, kernel - 1, 3 x width], oldest first, channels in the order q, k, v."""

    state: Tensor
    inputs: Tensor

    def first(self, rows: int) -> KdaMemory:
        """The first rows, sharing memory."""
        return KdaMemory(self.state[:rows], self.inputs[:rows])


class _ConvSilu(torch.autograd.Function):
    """silu of the causal depthwise convolution: y[:, t] = sum_j w[:, K-1-j] x[:, t-j]."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor) -> Tensor:
        taps = weight.mT.contiguous()
        y = x * taps[-1]
        for j in range(1, len(taps)):
            y[:, j:].addcmul_(x[:, :-j], taps[-1 - j])
        sigmoid = y.sigmoid()
        ctx.save_for_backward(x, taps, y, sigmoid)
        return y * sigmoid

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, Tensor]:
        x, taps, y, sigmoid = ctx.saved_tensors
        dy = (1 - sigmoid).mul_(y).add_(1).mul_(sigmoid).mul_(gradient)
        dx = dy * taps[-1]
        d_taps = torch.empty_like(taps)
        d_taps[-1] = (dy * x).sum(dim=(0, 1))
        for j in range(1, len(taps)):
            dx[:, :-j].addcmul_(dy[:, j:], taps[-1 - j])
            d_taps[-1 - j] = (dy[:, j:] * x[:, :-j]).sum(dim=(0, 1))
        return dx, d_taps.mT


class Kda(nn.Module):
    """in_proj rows: q, k, v (width each), f_a (head_dim), b (heads), then g (width) or g_a (head_dim)."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        kda: KdaConfig = config.kda
        self.kda, self.eps = kda, config.rms_norm_eps
        hidden, width, rank = config.hidden_size, kda.width, kda.head_dim
        gate_rows = width if kda.full_rank_gate else rank
        self.rows = (3 * width, rank, kda.num_heads, gate_rows)
        self.in_proj = nn.Parameter(torch.empty(sum(self.rows), hidden))
        self.conv = nn.Parameter(torch.empty(3 * width, kda.conv_kernel))
        self.f_b = nn.Parameter(torch.empty(width, rank))
        self.g_b = None if kda.full_rank_gate else nn.Parameter(torch.empty(width, rank))
        self.a_log = nn.Parameter(torch.empty(kda.num_heads))
        self.dt_bias = nn.Parameter(torch.empty(width))
        self.o_norm = nn.Parameter(torch.empty(kda.head_dim))
        self.o_proj = nn.Parameter(torch.empty(hidden, width))

    def forward(self, x: Tensor, layout: Layout, *, remember: bool = False) -> tuple[Tensor, KdaMemory | None]:
        """x [N, H] to [N, H]; with `remember`, also what the layer holds after each sequence's last token."""
        qkv, f, b, g = linear(x, self.in_proj).split(self.rows, dim=-1)
        qkv, gates, betas = layout.pad(qkv), layout.pad(self._gates(f)), layout.pad(b.sigmoid())
        if remember:
            gates, betas = gates * layout.valid[..., None], betas * layout.valid[..., None]
        heads = (self.kda.num_heads, self.kda.head_dim)
        q, k, v = _ConvSilu.apply(qkv, self.conv).unflatten(-1, (3, *heads)).permute(2, 0, 3, 1, 4).flatten(1, 2)  # type: ignore[no-untyped-call]
        outputs, state = chunk_kda(
            l2_norm(q, L2_EPS, self.kda.head_dim**-0.5),
            l2_norm(k, L2_EPS),
            v,
            gates.unflatten(-1, heads).transpose(1, 2).flatten(0, 1),
            betas.transpose(1, 2).flatten(0, 1),
            bounded=self.kda.gate_lower_bound is not None,
        )
        outputs = layout.unpad(outputs.unflatten(0, (-1, heads[0])).transpose(1, 2))
        memory = KdaMemory(state.unflatten(0, (-1, heads[0])), self._tail(qkv, layout)) if remember else None
        return self._output(outputs, g), memory

    def step(self, x: Tensor, memory: KdaMemory, active: Tensor) -> Tensor:
        """One token per slot: x [B, H], `memory` advanced in place where `active` [B] is True."""
        qkv, f, b, g = linear(x, self.in_proj).split(self.rows, dim=-1)
        window = torch.cat((memory.inputs, qkv.unsqueeze(1)), dim=1)
        torch.where(active[:, None, None], window[:, 1:], memory.inputs, out=memory.inputs)
        mixed = (window * self.conv.mT).sum(dim=1)
        heads = (self.kda.num_heads, self.kda.head_dim)
        q, k, v = (mixed * mixed.sigmoid()).unflatten(-1, (3, *heads)).unbind(1)
        outputs = step_kda(
            l2_norm(q, L2_EPS, self.kda.head_dim**-0.5).flatten(0, 1),
            l2_norm(k, L2_EPS).flatten(0, 1),
            v.flatten(0, 1),
            (self._gates(f) * active[:, None]).view(-1, heads[1]),
            (b.sigmoid() * active[:, None]).flatten(),
            memory.state.flatten(0, 1),
        )
        return self._output(outputs.unflatten(0, (-1, heads[0])), g)

    def _gates(self, f: Tensor) -> Tensor:
        """Log decay per key channel [N, width]."""
        z = linear(f, self.f_b) + self.dt_bias
        rate = self.a_log.exp().repeat_interleave(self.kda.head_dim)
        if self.kda.gate_lower_bound is None:
            return -rate * nn.functional.softplus(z)
        return self.kda.gate_lower_bound * (rate * z).sigmoid()

    def _output(self, outputs: Tensor, g: Tensor) -> Tensor:
        """outputs [N, heads, dv] and gate logits (or their low-rank input) to [N, H]."""
        gate = (g if self.g_b is None else linear(g, self.g_b)).sigmoid()
        return linear(rms_norm(outputs, self.o_norm, self.eps).flatten(1) * gate, self.o_proj)

    def _tail(self, qkv: Tensor, layout: Layout) -> Tensor:
        """The last kernel - 1 convolution inputs of each sequence, zeros before its start."""
        reach = self.kda.conv_kernel - 1
        index = layout.lengths[:, None] - reach + torch.arange(reach, device=qkv.device)
        rows = qkv.gather(1, index.clamp(min=0)[..., None].expand(-1, -1, qkv.shape[-1]))
        return rows * (index >= 0)[..., None]
