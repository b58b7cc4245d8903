"""Weights laid out for linear.h: panels of 32 outputs, zeros beyond the last."""

from __future__ import annotations

from torch import Tensor
from torch.nn.functional import pad

PANEL = 32


class Panels:
    """Copies of matrices [..., out, in] as [..., panels, in, 32], float32 on the CPU."""

    def __init__(self, weight: Tensor) -> None:
        self.out, self.inputs = weight.shape[-2:]
        padded = pad(weight.detach(), (0, 0, 0, -self.out % PANEL))
        self.data = padded.unflatten(-2, (-1, PANEL)).mT.contiguous()

    def weight(self) -> Tensor:
        """The matrices again, read back from the panels."""
        return self.data.mT.flatten(-3, -2)[..., : self.out, :]
