"""What publication asks of a model. `k3rl.model.Model` has it; sync does not import it (architecture.md)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

from torch import Tensor


class PublishedModel(Protocol):
    """A model whose weights can be read out and replaced under public names.

    Legend: T tokens, V vocabulary, M MoE layers, K experts per token, D sparse-attention layers, S selected positions.
    """

    config: Any

    def state_for_publication(self) -> dict[str, Tensor]:
        """Public name -> tensor: packed codes and scales (uint8) of routed experts, everything else as it is."""
        ...

    def load_published(self, state: Mapping[str, Tensor]) -> None:
        """Replace all weights in place and prepare the layout that decoding reads."""
        ...

    def working_weights(self) -> Mapping[str, Tensor]:
        """Public name (experts: `X.weight`, unpacked) -> the values that decoding multiplies by, read back from the
        layout in which it does so."""
        ...

    def __call__(self, tokens: Tensor, *, replay: Any = None) -> Any:
        """Full forward of one sequence [T]: logits [T, V], experts [T, M, K], selected [T, D, S]."""
        ...

    def prefill(self, tokens: Tensor) -> tuple[Any, Any]:
        """A snapshot after one sequence [T] in chunk form, and what `__call__` returns."""
        ...

    def new_cache(self, *, slots: int, max_context: int) -> Any:
        """An empty decoding cache."""
        ...

    def decode(self, tokens: Tensor, cache: Any, slots: Tensor) -> Any:
        """A token for each of `slots` [n]: logits [n, V], experts [n, M, K], selected [n, D, S]."""
        ...
