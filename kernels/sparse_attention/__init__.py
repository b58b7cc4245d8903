"""Sparse attention: index scores, the selection of positions, and attention over what was selected."""

from k3rl.kernels.sparse_attention.blocks import attend_blocks
from k3rl.kernels.sparse_attention.reference import (
    GRID,
    attend,
    attend_latent,
    index_scores,
    select,
    selection_mask,
)

__all__ = ["GRID", "attend", "attend_blocks", "attend_latent", "index_scores", "select", "selection_mask"]
