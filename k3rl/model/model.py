"""The model as the rest of k3rl sees it: whole-sequence forward, decoding, and its state as public tensors."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from k3rl.model.config import ModelConfig
from k3rl.model.cpu_decode import CpuDecoder
from k3rl.model.decode import Cache, Snapshot, Step, decode, prefill, prepare
from k3rl.model.tensors import public_tensors, write_tensors
from k3rl.model.transformer import Transformer
from k3rl.model.working import working_weights


class Model(Transformer):
    """`Model(preset("nano"))` with fresh weights, or `load_model(folder)`.

    `model(tokens, cu_seqlens)` runs whole sequences (see `Transformer.forward`); `prefill`, `new_cache` and `decode`
    serve them: a prompt, then tokens of many slots per step. They read a layout of the weights made by `new_cache` and
    `load_published`; after changing parameters otherwise, call `prepare`.
    """

    native: CpuDecoder | None = None

    @classmethod
    def empty(cls, config: ModelConfig, dtype: torch.dtype = torch.float32) -> Model:
        """A model whose parameters are allocated and not filled."""
        with torch.device("meta"):
            model = cls(config)
        return model.to_empty(device="cpu").to(dtype)

    def new_cache(self, *, slots: int, max_context: int) -> Cache:
        """Empty memory for `slots` sequences of up to `max_context` tokens (rounded up to a multiple of 64)."""
        self.prepare()
        return Cache(self, slots=slots, max_context=max_context, tiled=self.native is not None)

    def prepare(self) -> None:
        """Lay out the weights for decoding."""
        self.native = prepare(self)

    def decode(self, tokens: Tensor, cache: Cache, slots: Tensor, *, logits_at: Tensor | None = None) -> Step:
        """Feed tokens int64 [n] to `slots` int64 [n] of the cache, tokens of one slot side by side; advances `cache`.
        `logits_at` int64: rows, ascending, whose logits are wanted (all by default). No gradients."""
        return decode(self, self.native, tokens, cache, slots, logits_at=logits_at)

    def prefill(self, tokens: Tensor, *, logits_at: Tensor | None = None) -> tuple[Snapshot, Step]:
        """Run one sequence, int64 [T], from empty: what a slot would hold after it (`cache.load`), and the results of
        its positions (logits of `logits_at` only, if given). No gradients."""
        return prefill(self, self.native, tokens, logits_at=logits_at)

    def state_for_publication(self) -> dict[str, Tensor]:
        """Version v of the weights: public names to tensors, routed experts of an MXFP4 model as bytes and scales
        (uint8), the rest as it is. Views of the live state where nothing was packed."""
        return public_tensors(self, packed=self.config.moe.expert_format == "mxfp4")

    @torch.no_grad()
    def load_published(self, tensors: Mapping[str, Tensor]) -> None:
        """Replace the weights by published ones, in place, and lay them out for decoding. Caches keep their contents,
        which belong to the old weights."""
        write_tensors(self, tensors, source="published weights")
        self.prepare()

    def working_weights(self) -> dict[str, Tensor]:
        """Public names to the values that `decode` multiplies by, read back from the layout it reads."""
        return working_weights(self, self.native)
