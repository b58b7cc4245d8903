"""Initial weights, by the parameter's role. Draws come from torch's global generator: `torch.manual_seed` first."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from k3rl.model.config import ModelConfig

HEAD_OF_EMBEDDING = 0.2
"""The head starts as this multiple of the embedding: a token attended to is at once a token predicted, which is what
makes copying learnable in minutes at nano's size. The two are separate parameters from then on."""

EMBEDDING = 0.3
"""Standard deviation of embeddings where the config gives no initializer_range, and matrices follow their fan-in (the
variance of torch.nn.Linear). At nano's width a plain 0.02 learned no copying in three times the tokens
(docs/log.md)."""


@torch.no_grad()
def initialize(model: nn.Module, config: ModelConfig) -> None:
    """Fill every parameter of a Model in place."""
    for name, parameter in model.named_parameters():
        _fill(name.rpartition(".")[2], name, parameter, config)
    head, embed = model.get_parameter("lm_head"), model.get_parameter("embed")
    head.copy_(embed * HEAD_OF_EMBEDDING)


def _fill(leaf: str, name: str, parameter: Tensor, config: ModelConfig) -> None:
    if leaf == "dt_bias":
        # softplus(dt_bias) is log-uniform in [1e-3, 0.1]
        dt = torch.empty_like(parameter).uniform_(math.log(1e-3), math.log(0.1)).exp()
        parameter.copy_(dt + torch.log(-torch.expm1(-dt)))
    elif leaf == "a_log":
        if config.kda.gate_lower_bound is None:
            parameter.uniform_(1, 16).log_()
        else:
            parameter.zero_()
    elif leaf == "k_bias" or "mix.proj" in name:
        parameter.zero_()
    elif parameter.ndim == 1:
        parameter.fill_(1.0)
    elif leaf == "conv":
        parameter.uniform_(-(config.kda.conv_kernel**-0.5), config.kda.conv_kernel**-0.5)
    elif config.initializer_range is not None:
        parameter.normal_(0.0, config.initializer_range)
    elif leaf == "embed":
        parameter.normal_(0.0, EMBEDDING)
    else:
        parameter.normal_(0.0, (3 * parameter.shape[-1]) ** -0.5)
