"""MXFP4 matrices laid out for mxfp4.h: codes and scales of 16 outputs together, block by block."""

from __future__ import annotations

import math

import torch
from torch import Tensor
from torch.nn.functional import pad

LANES = 16
BLOCK = 32
GROUPS = 4
INPUTS = (0, 2, 4, 6, 1, 3, 5, 7)
"""Of a group of 8 inputs, in the order of an output's nibbles."""


class PackedPanels:
    """Copies of matrices [..., out, in] in MXFP4: `codes` uint8 [..., panels, in/32, 4, 64] and `scales` uint8
    [..., panels, in/32, 16]; outputs beyond the last are zeros. ValueError for a scale byte 255, which is no number."""

    def __init__(self, packed: Tensor, scales: Tensor) -> None:
        """`packed` uint8 [..., out, in/2] and `scales` uint8 [..., out, in/32], as in `k3rl.kernels.mxfp4`."""
        if bool((scales == 255).any()):
            raise ValueError("MXFP4 weights with a scale byte 255 are not numbers")
        self.out, self.inputs = packed.shape[-2], 2 * packed.shape[-1]
        self.count = math.prod(packed.shape[:-2])
        rows = (0, 0, 0, -self.out % LANES)
        self.scales = pad(scales, rows).unflatten(-2, (-1, LANES)).mT.contiguous()
        codes = torch.stack((packed & 15, packed >> 4), dim=-1).flatten(-2)
        # [..., panel, lane, block, group, input] -> [..., panel, block, group, lane, input]
        codes = pad(codes, rows).unflatten(-1, (-1, GROUPS, 8)).unflatten(-4, (-1, LANES))
        codes = codes[..., list(INPUTS)].movedim(-4, -2)
        pairs = codes.unflatten(-1, (4, 2))
        self.codes = (pairs[..., 0] | pairs[..., 1] << 4).flatten(-2).contiguous()

    def bytes(self) -> tuple[Tensor, Tensor]:
        """The packed codes and scales again, read back from the panels."""
        pairs = self.codes.unflatten(-1, (LANES, 4))
        codes = torch.stack((pairs & 15, pairs >> 4), dim=-1).flatten(-2)
        order = torch.tensor(INPUTS).argsort()
        codes = codes[..., order].movedim(-2, -4).flatten(-3).flatten(-3, -2)
        pairs = codes[..., : self.out, :].unflatten(-1, (-1, 2))
        scales = self.scales.mT.flatten(-3, -2)[..., : self.out, :]
        return pairs[..., 0] | pairs[..., 1] << 4, scales.contiguous()
