"""The definition of MXFP4 storage (`mxfp4-pack-quantized`), in plain torch.

A weight [..., out, in] becomes `packed` uint8 [..., out, in/2] (low nibble: even position) and `scales` uint8
[..., out, in/32] with scale = 2^(byte - 127), byte 255 NaN. A code is sign << 3 | index into VALUES. Rounding is to
nearest with ties to the even code, saturating at 6 (OCP Microscaling Formats 1.0, section 5.3.3).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Literal

import torch
from torch import Tensor

BLOCK = 32
VALUES = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0)

ScaleRule = Literal["even", "floor", "rceil"]


def _even(magnitude: Tensor) -> Tensor:
    """Scale bytes from fp32 block maxima: a quarter of a binade is added before the exponent is floored, so that a
    block whose maximum is at least 1.75 x 2^e (it would saturate) moves up one exponent."""
    return ((magnitude.view(torch.int32) + (1 << 21)) >> 23) - 2


def _floor(magnitude: Tensor) -> Tensor:
    """The maximum's own exponent (OCP Microscaling Formats 1.0, section 6.3): maxima beyond 1.5 x 2^e saturate."""
    return (magnitude.view(torch.int32) >> 23) - 2


def _rceil(magnitude: Tensor) -> Tensor:
    """The least exponent at which nothing saturates: ceil(log2(maximum / 6)), a significand beyond 1.5 moving up."""
    return ((magnitude.view(torch.int32) + (1 << 22) - 1) >> 23) - 2


# Each rule maps fp32 block maxima (non-negative) to unclamped scale bytes, int32.
RULES: Mapping[ScaleRule, Callable[[Tensor], Tensor]] = {"even": _even, "floor": _floor, "rceil": _rceil}


def quantize(
    weight: Tensor, *, rule: ScaleRule = "even", generator: torch.Generator | None = None, name: str = "weight"
) -> tuple[Tensor, Tensor]:
    """Round `weight` [..., in] (in a multiple of 32) to (packed uint8 [..., in/2], scales uint8 [..., in/32]).

    With a `generator` (of the weight's device) rounding is stochastic: to one of the two neighbouring values, so that
    the mean is the weight where it does not saturate, which under rule `rceil` it never does. A block of zeros gets
    scale byte 0 and zero codes. ValueError with `name` for a non-finite weight.
    """
    blocks = _blocks(weight.detach(), name)
    scales = _scales(blocks, rule)
    scaled = blocks / _powers(scales).unsqueeze(-1)
    magnitude = scaled.abs()
    index = _index(magnitude) if generator is None else _random_index(magnitude, generator)
    codes = index | (torch.signbit(scaled).to(torch.uint8) << 3)
    codes *= blocks.any(dim=-1, keepdim=True)  # a block of zeros has zero codes, whatever the zeros' signs
    pairs = codes.flatten(-2).unflatten(-1, (-1, 2))
    return pairs[..., 0] | (pairs[..., 1] << 4), scales


def dequantize(packed: Tensor, scales: Tensor, dtype: torch.dtype = torch.float32) -> Tensor:
    """The exact values [..., in] of packed codes [..., in/2] under scales [..., in/32]."""
    codes = torch.stack((packed & 15, packed >> 4), dim=-1).flatten(-2)
    table = torch.tensor((*VALUES, *(-v for v in VALUES)), dtype=torch.float32, device=packed.device)
    values = table[codes.int()].unflatten(-1, (-1, BLOCK))
    return (values * _powers(scales).unsqueeze(-1)).flatten(-2).to(dtype)


class _StraightThrough(torch.autograd.Function):
    """dequantize(quantize(w)) forward, the identity backward."""

    @staticmethod
    def forward(ctx: Any, weight: Tensor, rule: ScaleRule) -> Tensor:
        blocks = _blocks(weight, "weight")
        powers = _powers(_scales(blocks, rule)).unsqueeze(-1)
        scaled = blocks / powers
        return torch.copysign(_round(scaled.abs()), scaled).mul_(powers).reshape(weight.shape).to(weight.dtype)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        return gradient, None


def fake_quantize(weight: Tensor, *, rule: ScaleRule = "even") -> Tensor:
    """dequantize(quantize(weight)) in the weight's dtype, bit for bit (up to the sign of zero), with the gradient
    passed straight through to `weight`. Training forwards use it."""
    return _StraightThrough.apply(weight, rule)  # type: ignore[no-any-return, no-untyped-call]


def _blocks(weight: Tensor, name: str) -> Tensor:
    if weight.shape[-1] % BLOCK:
        raise ValueError(f"{name}: the input axis ({weight.shape[-1]}) is not a multiple of {BLOCK}")
    # Master weights beyond fp32 (float64 tests) are rounded to fp32 first: the format is defined on fp32 bits.
    blocks = weight.to(torch.float32).unflatten(-1, (-1, BLOCK))
    if not torch.isfinite(blocks.sum()) and not torch.isfinite(blocks).all():
        raise ValueError(f"{name}: a non-finite weight cannot be quantized to MXFP4")
    return blocks


def _scales(blocks: Tensor, rule: ScaleRule) -> Tensor:
    magnitude = blocks.abs().amax(dim=-1)
    return RULES[rule](magnitude).clamp_(0, 254).to(torch.uint8)


def _powers(scales: Tensor) -> Tensor:
    """2^(byte - 127) as fp32, exact down to the subnormal of byte 0; byte 255 is NaN."""
    table = torch.tensor([*(2.0 ** (byte - 127) for byte in range(255)), torch.nan], device=scales.device)
    return table[scales.int()]


def _index(magnitude: Tensor) -> Tensor:
    """Index of the nearest value, ties to the even index, uint8. `right` decides which side a tie falls on: the
    thresholds between odd and even index belong to the even one."""
    above = torch.tensor((0.75, 1.75, 3.5), device=magnitude.device)  # reaching these moves up to an even index
    beyond = torch.tensor((0.25, 1.25, 2.5, 5.0), device=magnitude.device)  # passing these moves up to an odd index
    return (torch.bucketize(magnitude, above, right=True) + torch.bucketize(magnitude, beyond)).to(torch.uint8)


def _random_index(magnitude: Tensor, generator: torch.Generator) -> Tensor:
    """Index of one of the two values around, the upper one as often as the magnitude is near it, uint8."""
    values = torch.tensor(VALUES, device=magnitude.device)
    magnitude = magnitude.clamp(max=6.0)
    low = torch.bucketize(magnitude, values, right=True) - 1
    step = values[(low + 1).clamp(max=7)] - values[low]  # 0 beyond the last
    draw = torch.rand(magnitude.shape, generator=generator, device=magnitude.device)
    return (low + (draw * step < magnitude - values[low])).to(torch.uint8)


def _round(magnitude: Tensor) -> Tensor:
    """The nearest value itself: rounding to a step of half the binade (0.5 below 2, 1 below 4, 2 above) is half to
    even in torch, and even multiples of the step are exactly the even codes."""
    magnitude = magnitude.clamp(max=6.0)
    step = torch.where(magnitude < 2, 0.5, torch.where(magnitude < 4, 1.0, 2.0))
    return torch.round(magnitude / step).mul_(step)
