"""From logits to tokens: one uniform number per (seed, position), inverse CDF in float64.

The uniform comes from a counter-based hash, not from a generator with a state, so a token depends on the request's
seed and on its place in the token list alone: never on the slot, on the neighbours in the batch, or on a restart.
Legend: B slots, V vocabulary.
"""

from __future__ import annotations

import ctypes
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from k3rl.kernels.cpu import library

_GOLDEN = np.uint64(0x9E3779B97F4A7C15)


@dataclass(frozen=True, kw_only=True, slots=True)
class Draw:
    """One token for every row: tokens int64 [B]; logprobs and entropies float64 [B], nats, of the distribution really
    sampled from (a greedy row samples from a point mass: both are 0)."""

    tokens: NDArray[np.int64]
    logprobs: NDArray[np.float64]
    entropies: NDArray[np.float64]


def uniforms(seeds: NDArray[np.uint64], positions: NDArray[np.int64]) -> NDArray[np.float64]:
    """Uniform numbers in [0, 1) on the 2^-53 grid, one per (seed, position).

    The stream of a seed is SplitMix64 (Steele, Lea, Flood 2014: state += golden ratio, then the mixer), started at the
    mixed seed so that the streams of neighbouring seeds do not overlap; `position` is the index in that stream.
    """
    with np.errstate(over="ignore"):  # arithmetic modulo 2^64 is meant
        state = _mix(seeds + _GOLDEN) + (positions.astype(np.uint64) + np.uint64(1)) * _GOLDEN
        bits = _mix(state)
    return (bits >> np.uint64(11)).astype(np.float64) * 2.0**-53


def draw(logits: Tensor, temperatures: NDArray[np.float64], uniform: NDArray[np.float64]) -> Draw:
    """Sample every row of `logits` [B, V] (any float dtype) at its temperature [B]; 0 takes the largest logit, the
    lowest id among equals.

    The token is the first whose cumulative weight exceeds uniform * total. In float64, (1 - 2^-53) * total rounds to
    less than total, so there is always one and its own weight is above zero. A row with a logit that is not finite
    gives an entropy that is not finite: the caller decides whether that row mattered.
    """
    native = library() if logits.device.type == "cpu" and logits.dtype == torch.float32 else None
    if native is None:
        return _torch_draw(logits, temperatures, uniform)
    return _cpu_draw(native, logits, temperatures, uniform)


def _cpu_draw(
    native: ctypes.CDLL, logits: Tensor, temperatures: NDArray[np.float64], uniform: NDArray[np.float64]
) -> Draw:
    logits = logits.contiguous()
    rows, vocabulary = logits.shape
    given = [np.ascontiguousarray(array, np.float64) for array in (temperatures, uniform)]
    result = Draw(tokens=np.empty(rows, np.int64), logprobs=np.empty(rows), entropies=np.empty(rows))
    native.k3rl_draw(
        ctypes.c_void_p(logits.data_ptr()),
        ctypes.c_int64(rows),
        ctypes.c_int64(vocabulary),
        *(ctypes.c_void_p(array.ctypes.data) for array in (*given, result.tokens, result.logprobs, result.entropies)),
    )
    return result


def _torch_draw(logits: Tensor, temperatures: NDArray[np.float64], uniform: NDArray[np.float64]) -> Draw:
    device = logits.device
    greedy = temperatures == 0
    scaled = logits.to(torch.float64)
    scaled = scaled - scaled.amax(-1, keepdim=True)
    if not np.all(temperatures == 1):
        scaled = scaled / torch.from_numpy(np.where(greedy, 1.0, temperatures)).to(device)[:, None]
    weights = scaled.exp()
    cumulative = weights.cumsum(-1)
    total = cumulative[:, -1]
    target = torch.from_numpy(uniform).to(device) * total
    tokens = torch.searchsorted(cumulative, target[:, None], right=True).clamp_(max=logits.shape[1] - 1)
    log_total = total.log()
    logprobs = scaled.gather(1, tokens)[:, 0] - log_total
    entropies = log_total - torch.linalg.vecdot(weights, scaled) / total
    result = Draw(tokens=tokens[:, 0].cpu().numpy(), logprobs=logprobs.cpu().numpy(), entropies=entropies.cpu().numpy())
    return _take_largest(result, logits, greedy) if greedy.any() else result


def _take_largest(sampled: Draw, logits: Tensor, greedy: NDArray[np.bool_]) -> Draw:
    """Replace greedy rows; numpy's argmax promises the first of equals, torch's does not."""
    largest = logits.float().cpu().numpy() if logits.dtype == torch.bfloat16 else logits.cpu().numpy()
    unusable = np.where(np.isfinite(sampled.entropies), 0.0, np.nan)  # stays visible to the caller
    return Draw(
        tokens=np.where(greedy, largest.argmax(-1), sampled.tokens),
        logprobs=np.where(greedy, unusable, sampled.logprobs),
        entropies=np.where(greedy, unusable, sampled.entropies),
    )


def _mix(value: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """SplitMix64's output function, a bijection of 64-bit words."""
    value = (value ^ (value >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    value = (value ^ (value >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return value ^ (value >> np.uint64(31))
