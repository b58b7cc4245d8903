"""Products with packed MXFP4 weights on a CPU: C++ (kernels/cpu/mxfp4.h), or torch where there is no compiler.

Legend: N rows, G groups (matrices).
"""

from __future__ import annotations

import ctypes
from itertools import pairwise

import torch
from torch import Tensor

from k3rl.kernels.cpu import PackedPanels, library, structs
from k3rl.kernels.mxfp4.reference import dequantize


def matmul(x: Tensor, weight: PackedPanels) -> Tensor:
    """x [N, in] times the transpose of one matrix [out, in]: fp32 [N, out]. See `grouped_matmul`."""
    return grouped_matmul(x, weight, torch.tensor([0, x.shape[0]]))


def grouped_matmul(x: Tensor, weights: PackedPanels, offsets: Tensor) -> Tensor:
    """Rows offsets[g] to offsets[g + 1] of x [N, in] times the transpose of matrix g of `weights` [G, out, in] (or of
    one [out, in]): fp32 [N, out]; `offsets` int64 [G + 1], from 0 to N, ascending.

    x is float32, or bfloat16, which is faster on machines that multiply it; sums are fp32 either way, scaled block by
    block, and a row's result does not depend on the other rows. No gradients. torch.get_num_threads() threads.
    """
    _check(x, weights, offsets)
    native = library()
    if native is None:
        return _plain(x, weights, offsets)
    if x.dtype == torch.bfloat16 and not native.k3rl_mxfp4_takes_bfloat16():
        x = x.float()
    x, result = x.contiguous(), x.new_empty(x.shape[0], weights.out, dtype=torch.float32)
    native.k3rl_mxfp4_matmul(
        structs.packed(weights),
        offsets.shape[0] - 1,
        ctypes.c_void_p(offsets.data_ptr()),
        ctypes.c_void_p(x.data_ptr()),
        int(x.dtype == torch.bfloat16),
        ctypes.c_void_p(result.data_ptr()),
        torch.get_num_threads(),
    )
    return result


def _check(x: Tensor, weights: PackedPanels, offsets: Tensor) -> None:
    """The C++ reads what these say, so they are checked before it does."""
    if x.device.type != "cpu" or x.dtype not in (torch.float32, torch.bfloat16):
        raise ValueError(f"rows are {x.dtype} on {x.device}: wanted float32 or bfloat16 on the CPU")
    if x.ndim != 2 or x.shape[1] != weights.inputs:
        raise ValueError(f"rows are {list(x.shape)}: wanted [N, {weights.inputs}]")
    if offsets.dtype != torch.int64 or offsets.shape != (weights.count + 1,):
        raise ValueError(f"offsets are {offsets.dtype} {list(offsets.shape)}: wanted int64 [{weights.count + 1}]")
    if offsets[0] != 0 or offsets[-1] != x.shape[0] or bool((offsets.diff() < 0).any()):
        raise ValueError(f"offsets {offsets.tolist()} do not ascend from 0 to the {x.shape[0]} rows")


def _plain(x: Tensor, weights: PackedPanels, offsets: Tensor) -> Tensor:
    matrices = dequantize(*weights.bytes()).view(-1, weights.out, weights.inputs)
    parts = [x[a:b].float() @ w.mT for w, (a, b) in zip(matrices, pairwise(offsets.tolist()), strict=True)]
    return torch.cat(parts)
