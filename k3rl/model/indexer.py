"""The indexer of sparse attention: which past tokens a query reads (as in DeepSeek-V3.2, without RoPE)."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn.functional import layer_norm, linear

from k3rl.kernels.sparse_attention import index_scores
from k3rl.model.config import ModelConfig
from k3rl.model.layout import Layout


class Indexer(nn.Module):
    """wq_b reads the normed query latent; wk and weights_proj (rows of `in_proj`, in this order) the layer's normed
    input. I_ts = sum_j w_tj relu(q_tj . k_s), w scaled by heads^-1/2 d^-1/2."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        assert config.dsa is not None
        dsa = config.dsa
        self.num_heads, self.head_dim, self.top_k = dsa.num_heads, dsa.head_dim, dsa.top_k
        self.eps = config.rms_norm_eps
        query_width = config.mla.q_lora_rank or config.hidden_size
        self.wq_b = nn.Parameter(torch.empty(dsa.num_heads * dsa.head_dim, query_width))
        self.in_proj = nn.Parameter(torch.empty(dsa.head_dim + dsa.num_heads, config.hidden_size))
        self.k_norm = nn.Parameter(torch.empty(dsa.head_dim))
        self.k_bias = nn.Parameter(torch.empty(dsa.head_dim))

    def keys(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Shared keys [N, d] and scaled head weights [N, j] of x [N, H]."""
        key, weights = linear(x, self.in_proj).split((self.head_dim, self.num_heads), dim=-1)
        key = layer_norm(key, (self.head_dim,), self.k_norm, self.k_bias, self.eps)
        return key, weights * (self.num_heads * self.head_dim) ** -0.5

    def forward(self, x: Tensor, latent: Tensor, layout: Layout) -> Tensor:
        """Index scores [B, L, L] of packed inputs; future positions hold values to be masked."""
        key, weights = self.keys(x)
        queries = linear(latent, self.wq_b).unflatten(-1, (self.num_heads, self.head_dim))
        return index_scores(layout.pad(queries), layout.pad(key), layout.pad(weights))

    def step(self, latent: Tensor, weights: Tensor, keys: Tensor) -> Tensor:
        """Index scores [B, T] of one query per slot against keys [B, T, d]."""
        queries = linear(latent, self.wq_b).unflatten(-1, (1, self.num_heads, self.head_dim))
        return index_scores(queries, keys, weights.unsqueeze(1)).squeeze(1)

    def loss(self, scores: Tensor, target: Tensor, allowed: Tensor, layout: Layout) -> Tensor:
        """Mean over tokens of KL(target || softmax of scores) over allowed positions.

        scores, target (attention probabilities averaged over heads, a distribution per row) and allowed are [B, L, L].
        """
        predicted = scores.masked_fill(~allowed, -torch.inf).log_softmax(dim=-1).masked_fill(~allowed, 0.0)
        divergence = (torch.xlogy(target, target) - target * predicted).sum(dim=-1)
        return (divergence * layout.valid).sum() / layout.valid.sum()
