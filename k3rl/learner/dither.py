"""Masters of MXFP4 weights, spread over their rounding cells.

A master read from an MXFP4 checkpoint sits in the middle of its cell: small updates in one direction would move no
code for thousands of steps, then many at once. Masters that were trained lie anywhere in their cells, so ours start
there: uniform within the cell, with every packed byte the same, so that the forward does not change by one bit.
"""

from __future__ import annotations

import torch
from torch import Tensor

from k3rl.kernels.mxfp4 import BLOCK, dequantize, quantize
from k3rl.kernels.mxfp4.reference import VALUES

# The cell of each magnitude, in units of the block's scale: midpoints to the neighbours. The last one ends at 7: a
# block's largest magnitude at or over that (and one below 3.5 if it leads the block) would choose another scale.
LOWER = (0.0, 0.25, 0.75, 1.25, 1.75, 2.5, 3.5, 5.0)
UPPER = (0.25, 0.75, 1.25, 1.75, 2.5, 3.5, 5.0, 7.0)
MARGIN = 1e-3  # of a cell's width, kept from its ends: ties and rounding of the product with the scale live there


def dither(weight: Tensor, generator: torch.Generator) -> Tensor:
    """A master for each value of `weight` (fp32 [..., in], any values), uniform in its cell: same bytes, other weights.

    Blocks whose bytes would not come out the same (zero blocks) keep their weights.
    """
    packed, scales = quantize(weight)
    values = dequantize(packed, scales)
    blocks = values.unflatten(-1, (-1, BLOCK))
    powers = torch.exp2(scales.clamp(min=1).to(torch.float32) - 127).unsqueeze(-1)
    table = torch.tensor(VALUES, device=weight.device)
    index = torch.bucketize((blocks.abs() / powers).contiguous(), table)  # exact: products with powers of two
    lower = torch.tensor(LOWER, device=weight.device)[index]
    width = torch.tensor(UPPER, device=weight.device)[index] - lower
    place = MARGIN + (1 - 2 * MARGIN) * torch.rand(blocks.shape, generator=generator, device=weight.device)
    spread = torch.copysign((lower + width * place) * powers, blocks).flatten(-2)
    packed_after, scales_after = quantize(spread)
    same = (packed == packed_after).unflatten(-1, (-1, BLOCK // 2)).all(-1) & (scales == scales_after) & (scales > 0)
    return torch.where(
        same.unsqueeze(-1), spread.unflatten(-1, (-1, BLOCK)), weight.unflatten(-1, (-1, BLOCK))
    ).flatten(-2)
