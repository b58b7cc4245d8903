"""Packed sequences and their padded view.

Projections, norms and experts run on packed tokens [N]; attention cores and KDA see [B, L], L the longest sequence
rounded up to a KDA tile. Padding stands at the right, so causal operations never read it, and each packed row has
exactly one place in the view: both directions are gathers, and so are their gradients.
"""

from __future__ import annotations

from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from k3rl.errors import UserError

TILE = 16


class Layout:
    """Where N packed tokens of B sequences lie in the padded view [B, L].

    positions int64 [N], place in the sequence; lengths int64 [B]; valid bool [B, L].
    """

    def __init__(self, cu_seqlens: Tensor, tokens: int) -> None:
        bounds = cu_seqlens.to(torch.int64)
        self.lengths = bounds[1:] - bounds[:-1]
        if int(bounds[0]) != 0 or int(bounds[-1]) != tokens or bool((self.lengths <= 0).any()):
            raise UserError(f"cu_seqlens must rise from 0 to the token count {tokens}: got {cu_seqlens.tolist()}")
        self.sequences = self.lengths.shape[0]
        longest = int(self.lengths.max())
        self.length = -(-longest // TILE) * TILE
        columns = torch.arange(self.length, device=bounds.device)
        self.valid = columns < self.lengths[:, None]
        # Places beyond a sequence's end repeat its last token: finite values that nothing valid reads.
        self._source = (bounds[:-1, None] + torch.minimum(columns, self.lengths[:, None] - 1)).flatten()
        self._place = self.valid.flatten().nonzero().squeeze(-1)
        self.positions = torch.arange(tokens, device=bounds.device) - bounds[:-1].repeat_interleave(self.lengths)
        self.sequence = torch.arange(self.sequences, device=bounds.device).repeat_interleave(self.lengths)
        self.dense = tokens == self.sequences * self.length

    @cached_property
    def causal(self) -> Tensor:
        """Which positions each place may read, bool [B, L, L] (expanded)."""
        square = torch.ones(self.length, self.length, dtype=torch.bool, device=self.valid.device).tril()
        return square.expand(self.sequences, -1, -1)

    def pad(self, packed: Tensor) -> Tensor:
        """[N, ...] to [B, L, ...]; the gradient of padding is dropped."""
        if self.dense:
            return packed.unflatten(0, (self.sequences, self.length))
        view = _Gather.apply(packed, self._source, self._place, None)  # type: ignore[no-untyped-call]
        return view.unflatten(0, (self.sequences, self.length))  # type: ignore[no-any-return]

    def unpad(self, view: Tensor) -> Tensor:
        """[B, L, ...] to [N, ...]."""
        flat = view.flatten(0, 1)
        if self.dense:
            return flat
        return _Gather.apply(flat, self._place, self._source, self.valid.flatten())  # type: ignore[no-any-return, no-untyped-call]


class _Gather(torch.autograd.Function):
    """rows[index]; the gradient is gradient[back], zeroed where `mask` is False (nothing was read there)."""

    @staticmethod
    def forward(ctx: Any, rows: Tensor, index: Tensor, back: Tensor, mask: Tensor | None) -> Tensor:
        ctx.back, ctx.mask = back, mask
        return rows.index_select(0, index)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None, None, None]:
        rows = gradient.index_select(0, ctx.back)
        if ctx.mask is not None:
            rows *= ctx.mask.view(-1, *(1,) * (rows.ndim - 1))
        return rows, None, None, None
