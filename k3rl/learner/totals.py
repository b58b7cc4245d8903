"""Sums and maxima of one optimizer step, over micro-batches and then over ranks."""

from __future__ import annotations

from collections.abc import Mapping

import torch
import torch.distributed as dist
from torch import Tensor


class Totals:
    """Float64 scalars by name. Every rank must add the same names: they are what is exchanged."""

    def __init__(self) -> None:
        self._sums: dict[str, Tensor] = {}
        self._maxima: dict[str, Tensor] = {}

    def add(self, sums: Mapping[str, Tensor | float]) -> None:
        """Add to sums that started at 0."""
        for name, value in sums.items():
            self._sums[name] = self._sums.get(name, torch.zeros((), dtype=torch.float64)) + _double(value)

    def raise_to(self, maxima: Mapping[str, Tensor | float]) -> None:
        """Keep the largest value seen of each name."""
        for name, value in maxima.items():
            seen = self._maxima.get(name)
            self._maxima[name] = _double(value) if seen is None else torch.maximum(seen, _double(value))

    def reduced(self) -> tuple[dict[str, float], dict[str, float]]:
        """(sums, maxima) over all ranks; collective."""
        return _exchange(self._sums, dist.ReduceOp.SUM), _exchange(self._maxima, dist.ReduceOp.MAX)


def _double(value: Tensor | float) -> Tensor:
    return torch.as_tensor(value, dtype=torch.float64).detach().cpu()


def _exchange(values: Mapping[str, Tensor], operation: dist.ReduceOp.RedOpType) -> dict[str, float]:
    names = sorted(values)
    if not names:
        return {}
    vector = torch.stack([values[name] for name in names])
    if dist.get_world_size() > 1:
        vector = vector.to("cuda" if dist.get_backend() == "nccl" else "cpu")
        dist.all_reduce(vector, op=operation)
    return dict(zip(names, vector.tolist(), strict=True))
