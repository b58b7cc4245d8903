"""Feed-forward blocks: the dense one, and the latent mixture of experts with replayable routing."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor, nn
from torch.nn.functional import linear

from k3rl.kernels.moe import choose, dense_experts, grouped_experts, route_weights
from k3rl.kernels.mxfp4 import dequantize, fake_quantize, quantize
from k3rl.model.config import ModelConfig
from k3rl.model.functional import rms_norm, silu_glu, situ_glu


def glu(config: ModelConfig) -> partial[Tensor]:
    """The gated activation of the config: [..., 2F] (gate, up) to [..., F]."""
    if config.activation == "silu":
        return partial(silu_glu)
    return partial(situ_glu, beta=config.situ_beta, linear_beta=config.situ_linear_beta)


class DenseFeedForward(nn.Module):
    """down(glu(gate_up x)); gate_up rows: gate, then up."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.gate_up = nn.Parameter(torch.empty(2 * config.intermediate_size, config.hidden_size))
        self.down = nn.Parameter(torch.empty(config.hidden_size, config.intermediate_size))
        self.glu = glu(config)

    def forward(self, x: Tensor) -> Tensor:
        return linear(self.glu(linear(x, self.gate_up)), self.down)


class Experts(nn.Module):
    """Routed experts, stacked: w13 [E, 2F, D] (gate rows, then up rows) and w2 [E, D, F].

    `qat`: the forward multiplies by the weights' MXFP4 values and passes gradients straight through. `packed` holds
    the published bytes the weights came from, if they did: (packed, scales) per tensor name.
    """

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        experts, width, entry = config.moe.num_experts, config.moe.expert_dim, config.expert_input
        self.w13 = nn.Parameter(torch.empty(experts, 2 * width, entry))
        self.w2 = nn.Parameter(torch.empty(experts, entry, width))
        self.qat = config.moe.expert_format == "mxfp4"
        self.packed: dict[str, tuple[Tensor, Tensor]] = {}

    def weights(self) -> tuple[Tensor, Tensor]:
        """What the forward multiplies by."""
        return (fake_quantize(self.w13), fake_quantize(self.w2)) if self.qat else (self.w13, self.w2)

    def bytes(self, name: str, owner: str) -> tuple[Tensor, Tensor]:
        """MXFP4 codes and scales of the stack `name`: those it was loaded with while its values are still theirs
        (another scale rule may have made them), else freshly quantized. `owner` is for the message of a weight that
        cannot be."""
        weight = getattr(self, name).detach()
        carried = self.packed.get(name)
        if carried is None or not torch.equal(dequantize(*carried, dtype=weight.dtype), weight):
            carried = quantize(weight, name=f"{owner}.{name}")
        return carried


@dataclass
class Routed:
    """outputs [N, H]; experts int64 [N, K] ascending per token; weights [N, K]; own_experts: what the router would have
    chosen itself (only where asked for)."""

    outputs: Tensor
    experts: Tensor
    weights: Tensor
    own_experts: Tensor | None = None


class LatentMoe(nn.Module):
    """y = shared(x) + W_up RMSNorm(sum_i p_i E_i(W_down x)); in_proj rows: shared gate, shared up, W_down.

    Without a latent the experts read x and their sum is added as it is.
    """

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.moe, self.eps = config.moe, config.rms_norm_eps
        hidden, latent = config.hidden_size, config.moe.latent_dim
        shared = config.moe.num_shared_experts * config.moe.expert_dim
        self.rows = (2 * shared, latent or 0)
        self.router = nn.Parameter(torch.empty(config.moe.num_experts, hidden))
        self.register_buffer("bias", torch.zeros(config.moe.num_experts))
        self.bias: Tensor
        self.in_proj = nn.Parameter(torch.empty(sum(self.rows), hidden))
        self.shared_down = nn.Parameter(torch.empty(hidden, shared))
        self.latent_norm = None if latent is None else nn.Parameter(torch.empty(latent))
        self.latent_up = None if latent is None else nn.Parameter(torch.empty(hidden, latent))
        self.experts = Experts(config)
        self.glu = glu(config)

    def forward(self, x: Tensor, replay: Tensor | None = None, *, want_own: bool = False) -> Routed:
        """x [N, H]; `replay` int64 [N, K] are expert ids to use, rows of -1 choose freely."""
        scores = linear(x, self.router).sigmoid()
        own = None
        if replay is None or want_own or bool((replay < 0).any()):
            own = choose(scores.detach(), self.bias, self.moe.experts_per_token)
        experts = own if replay is None else replay if own is None else torch.where(replay < 0, own, replay)
        assert experts is not None
        weights = route_weights(scores, experts, renormalize=self.moe.renormalize, scaling=self.moe.scaling)
        shared, latent = linear(x, self.in_proj).split(self.rows, dim=-1)
        mixture = grouped_experts(
            x if self.latent_up is None else latent, experts, weights, *self.experts.weights(), self.glu
        )
        return Routed(self._output(shared, mixture), experts, weights, own if want_own else None)

    def prepare(self) -> None:
        """Lay out the experts' forward weights for decoding."""
        w13, w2 = (w.detach() for w in self.experts.weights())
        self.decode_w13, self.decode_w2 = w13, w2.mT.contiguous()

    def step(self, x: Tensor) -> Routed:
        """One token per slot, x [B, H]; no row depends on another."""
        scores = linear(x, self.router).sigmoid()
        experts = choose(scores, self.bias, self.moe.experts_per_token)
        weights = route_weights(scores, experts, renormalize=self.moe.renormalize, scaling=self.moe.scaling)
        shared, latent = linear(x, self.in_proj).split(self.rows, dim=-1)
        entry = x if self.latent_up is None else latent
        mixture = dense_experts(entry, experts, weights, self.decode_w13, self.decode_w2, self.glu)
        return Routed(self._output(shared, mixture), experts, weights)

    def _output(self, shared: Tensor, mixture: Tensor) -> Tensor:
        outputs = linear(self.glu(shared), self.shared_down)
        if self.latent_up is None or self.latent_norm is None:
            return outputs + mixture
        return outputs + linear(rms_norm(mixture, self.latent_norm, self.eps), self.latent_up)
