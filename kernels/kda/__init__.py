"""Kimi Delta Attention: the gated delta rule with a decay per key channel."""

from k3rl.kernels.kda.chunk import chunk_kda
from k3rl.kernels.kda.reference import recurrent_kda, step_kda

__all__ = ["chunk_kda", "recurrent_kda", "step_kda"]
