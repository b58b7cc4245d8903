"""Shared by the model's tests: where the reference sets lie, awkward weights, random tokens, packed bounds."""

from __future__ import annotations

from pathlib import Path

import torch

from k3rl.model import Model

DATA = Path(__file__).parents[1] / "data"
SETS = ("k3_tiny", "k3_tiny_mxfp4", "k31_tiny")


def roughen(model: Model, seed: int = 0) -> Model:
    """Move every parameter away from its neutral start, so that no norm, bias or mix is a no-op."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, parameter in (*model.named_parameters(), *model.named_buffers()):
            noise = torch.randn(parameter.shape, generator=generator, dtype=torch.float64).to(parameter.dtype)
            if "mix.proj" in name:
                noise *= 0.3
            parameter.add_(noise * (0.1 if parameter.ndim == 1 else 0.05))
    return model


def random_tokens(count: int, seed: int = 0, vocabulary: int = 200) -> torch.Tensor:
    return torch.randint(0, vocabulary, (count,), generator=torch.Generator().manual_seed(seed))


def bounds(*lengths: int) -> torch.Tensor:
    return torch.tensor([0, *lengths]).cumsum(0).int()
