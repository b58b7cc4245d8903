"""Elementwise blocks with hand-written gradients: RMSNorm, SiTU-GLU, and the mix of attention residuals.

At small widths a model's time on a CPU is the number of operations and the memory they touch, not the matrix
products; one autograd node per block with a short backward is several times cheaper than its composition.
Shapes: N tokens, H hidden, S sources of a mix.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor


class _RmsNorm(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, eps: float) -> Tensor:
        rms = torch.linalg.vecdot(x, x).div_(x.shape[-1]).add_(eps).rsqrt_().unsqueeze(-1)
        normed = x * rms
        ctx.save_for_backward(normed, rms, weight)
        return normed * weight

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, Tensor, None]:
        normed, rms, weight = ctx.saved_tensors
        return (*_rms_backward(gradient, normed, rms, weight), None)


def _rms_backward(gradient: Tensor, normed: Tensor, rms: Tensor, weight: Tensor) -> tuple[Tensor, Tensor]:
    """Gradients to the input and the weight of y = weight * normed, normed = x * rms."""
    d_weight = (gradient * normed).flatten(0, -2).sum(0)
    d_normed = gradient * weight
    projection = torch.linalg.vecdot(d_normed, normed).div_(normed.shape[-1]).unsqueeze(-1)
    return d_normed.addcmul_(normed, projection, value=-1).mul_(rms), d_weight


def rms_norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """x / sqrt(mean(x^2) + eps) * weight over the last axis; `weight` [x.shape[-1]]."""
    return _RmsNorm.apply(x, weight, eps)  # type: ignore[no-any-return, no-untyped-call]


class _Situ(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, gate_up: Tensor, beta: float, linear_beta: float) -> Tensor:
        gate, up = gate_up.chunk(2, dim=-1)
        tanh_gate = (gate / beta).tanh_()
        sigmoid = gate.sigmoid()
        tanh_up = (up / linear_beta).tanh_()
        ctx.save_for_backward(tanh_gate, sigmoid, tanh_up)
        ctx.betas = beta, linear_beta
        return (tanh_gate * sigmoid).mul_(tanh_up).mul_(beta * linear_beta)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None, None]:
        tanh_gate, sigmoid, tanh_up = ctx.saved_tensors
        return _situ_backward(gradient, tanh_gate, sigmoid, tanh_up, *ctx.betas), None, None


def _situ_backward(
    gradient: Tensor, tanh_gate: Tensor, sigmoid: Tensor, tanh_up: Tensor, beta: float, linear_beta: float
) -> Tensor:
    """With a = tanh(g/b), s = sigmoid(g), c = tanh(u/l): d/dg (b a s) = s (1 - a^2 + b a (1 - s)),
    d/du (l c) = 1 - c^2."""
    d_gate_up = gradient.new_empty(*gradient.shape[:-1], 2 * gradient.shape[-1])
    d_gate, d_up = d_gate_up.chunk(2, dim=-1)
    scaled = gradient * sigmoid
    torch.mul(tanh_gate, 1 - sigmoid, out=d_gate)
    d_gate.mul_(beta).addcmul_(tanh_gate, tanh_gate, value=-1).add_(1).mul_(scaled).mul_(tanh_up).mul_(linear_beta)
    torch.mul(tanh_up, tanh_up, out=d_up)
    d_up.neg_().add_(1).mul_(scaled).mul_(tanh_gate).mul_(beta)
    return d_gate_up


class _SiluGlu(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, gate_up: Tensor) -> Tensor:
        gate, up = gate_up.chunk(2, dim=-1)
        sigmoid = gate.sigmoid()
        ctx.save_for_backward(gate_up, sigmoid)
        return (gate * sigmoid).mul_(up)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        gate_up, sigmoid = ctx.saved_tensors
        gate, up = gate_up.chunk(2, dim=-1)
        scaled = gradient * sigmoid
        d_gate = (1 - sigmoid).mul_(gate).add_(1).mul_(scaled).mul_(up)
        return torch.cat((d_gate, scaled.mul_(gate)), dim=-1)


def situ_glu(gate_up: Tensor, beta: float, linear_beta: float) -> Tensor:
    """beta tanh(g/beta) sigmoid(g) * linear_beta tanh(u/linear_beta) of `gate_up` [..., 2F] = (g, u); [..., F]."""
    return _Situ.apply(gate_up, beta, linear_beta)  # type: ignore[no-any-return, no-untyped-call]


def silu_glu(gate_up: Tensor) -> Tensor:
    """silu(g) * u of `gate_up` [..., 2F] = (g, u); [..., F]."""
    return _SiluGlu.apply(gate_up)  # type: ignore[no-any-return, no-untyped-call]


class _ResidualMix(torch.autograd.Function):
    """score_i = (V_i . w) r_i with r_i = (mean V_i^2 + eps)^-1/2, p = softmax over i, mixed = sum p_i V_i,
    y = norm_weight * mixed / rms(mixed)."""

    @staticmethod
    def forward(ctx: Any, weight: Tensor, norm_weight: Tensor, eps: float, *sources: Tensor) -> Tensor:
        width = weight.shape[0]
        scale = torch.stack([torch.linalg.vecdot(v, v) for v in sources], dim=-1).div_(width).add_(eps).rsqrt_()
        scores = torch.stack([v @ weight for v in sources], dim=-1).mul_(scale)
        mass = scores.softmax(dim=-1)
        mixed = sources[0] * mass[:, :1]
        for i in range(1, len(sources)):
            mixed.addcmul_(sources[i], mass[:, i : i + 1])
        rms = torch.linalg.vecdot(mixed, mixed).div_(width).add_(eps).rsqrt_().unsqueeze(-1)
        normed = mixed.mul_(rms)
        ctx.save_for_backward(weight, norm_weight, scale, scores, mass, normed, rms, *sources)
        return normed * norm_weight

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        weight, norm_weight, scale, scores, mass, normed, rms, *sources = ctx.saved_tensors
        d_mixed, d_norm_weight = _rms_backward(gradient, normed, rms, norm_weight)
        d_mass = torch.stack([torch.linalg.vecdot(d_mixed, v) for v in sources], dim=-1)
        d_scores = (d_mass - torch.linalg.vecdot(mass, d_mass).unsqueeze(-1)).mul_(mass)
        d_dot = d_scores * scale
        shrink = (d_scores * scores).mul_(scale).mul_(scale).div_(weight.shape[0])
        d_weight = torch.zeros_like(weight)
        d_sources = []
        for i, v in enumerate(sources):
            d_weight += v.mT @ d_dot[:, i]
            d_v = (d_mixed * mass[:, i : i + 1]).addcmul_(v, shrink[:, i : i + 1], value=-1)
            d_sources.append(d_v.addr_(d_dot[:, i].contiguous(), weight))
        return d_weight, d_norm_weight, None, *d_sources


def residual_mix_norm(sources: list[Tensor], weight: Tensor, norm_weight: Tensor, eps: float) -> Tensor:
    """RMSNorm(mix(sources)): the softmax-weighted sum of S block sums [N, H], then the norm of the block that reads it.

    `weight` [H] is the mix's norm weight times its projection; `norm_weight` [H] the following RMSNorm's.
    """
    return _ResidualMix.apply(weight, norm_weight, eps, *sources)  # type: ignore[no-any-return, no-untyped-call]


class _L2Norm(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, eps: float, scale: float) -> Tensor:
        inverse = torch.linalg.vecdot(x, x).add_(eps).rsqrt_().unsqueeze(-1)
        normed = x * inverse
        ctx.save_for_backward(normed, inverse)
        ctx.scale = scale
        return normed * scale if scale != 1.0 else normed

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None, None]:
        normed, inverse = ctx.saved_tensors
        projection = torch.linalg.vecdot(gradient, normed).unsqueeze(-1)
        return torch.addcmul(gradient, normed, projection, value=-1).mul_(inverse * ctx.scale), None, None


def l2_norm(x: Tensor, eps: float, scale: float = 1.0) -> Tensor:
    """scale * x / sqrt(sum(x^2) + eps) over the last axis."""
    return _L2Norm.apply(x, eps, scale)  # type: ignore[no-any-return, no-untyped-call]
