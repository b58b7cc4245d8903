"""Prompts computed once for all sessions that begin with them."""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from k3rl.inference.rows import Record
from k3rl.model import Model, Snapshot


@dataclass(frozen=True, kw_only=True, slots=True)
class Prefix:
    """The state at the end of a prompt: the model's snapshot, the logits [V] that follow the last token, and the
    prompt's record (tokens and routes)."""

    snapshot: Snapshot
    logits: Tensor
    record: Record


class PrefixCache:
    """The most recently used prompts, by (version, tokens); `computed` counts prefills."""

    def __init__(self, model: Model, capacity: int) -> None:
        self._model = model
        self._capacity = capacity
        self._entries: OrderedDict[tuple[int, bytes], Prefix] = OrderedDict()
        self.computed = 0

    def get(self, version: int, tokens: NDArray[np.int32]) -> Prefix:
        """The prefix of `tokens` int32 [T] under the weights `version`, computed unless kept."""
        key = (version, tokens.tobytes())
        prefix = self._entries.pop(key, None)
        if prefix is None:
            prefix = self._prefill(tokens)
            while len(self._entries) >= self._capacity:
                self._entries.popitem(last=False)
        self._entries[key] = prefix
        return prefix

    def clear(self) -> None:
        """Drop all: the weights have changed."""
        self._entries.clear()

    def _prefill(self, tokens: NDArray[np.int32]) -> Prefix:
        self.computed += 1
        device = next(self._model.parameters()).device
        length = len(tokens)
        last = torch.tensor([length - 1], device=device)
        snapshot, out = self._model.prefill(torch.from_numpy(tokens.astype(np.int64)).to(device), logits_at=last)
        record = Record(
            tokens=tokens,
            mask=np.zeros(length, np.bool_),
            logprobs=np.zeros(length),
            entropies=np.zeros(length),
            versions=np.full(length, -1, np.int32),
            experts=out.experts.cpu().numpy().astype(np.int16),
            selected=out.selected.cpu().numpy().astype(np.int32),
            processed=length,
        )
        return Prefix(snapshot=snapshot, logits=out.logits[0], record=record)
