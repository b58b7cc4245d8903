"""A small model folder and rollouts of it, for the learner's tests (and for the processes that they start)."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import torch

from k3rl.model import Model, load_model, preset, save_model
from k3rl.model.config import DsaConfig
from k3rl.types import Routes, Sample

VOCABULARY = 96
TOP_K = 8


def write_model(folder: Path, *, packed: bool = True, seed: int = 0) -> Path:
    """Nano's blocks over a small vocabulary, with sparse attention that is sparse at test lengths."""
    torch.manual_seed(seed)
    shape = replace(preset("nano"), vocab_size=VOCABULARY, dsa=DsaConfig(num_heads=2, head_dim=32, top_k=TOP_K))
    save_model(Model(shape), folder, packed=packed)
    return folder


@torch.no_grad()
def rollouts(folder: Path, lengths: list[int], *, seed: int = 0, version: int = 0, shift: float = 0.0) -> list[Sample]:
    """Samples as an engine would log them: log-probabilities and choices of the model itself, moved by `shift` nats."""
    model = load_model(folder)
    rng = np.random.default_rng(seed)
    return [
        _rollout(model, rng, f"task/{i}#0", ("code", "office")[i % 2], n, version, shift) for i, n in enumerate(lengths)
    ]


def _rollout(
    model: Model, rng: np.random.Generator, key: str, domain: str, length: int, version: int, shift: float
) -> Sample:
    tokens = rng.integers(0, VOCABULARY, length)
    mask = rng.random(length) < 0.5
    mask[0], mask[-1] = False, True
    out = model(torch.from_numpy(tokens))
    logp_TV = out.logits.log_softmax(-1)
    logp = logp_TV[:-1].gather(1, torch.from_numpy(tokens[1:, None]))[:, 0].numpy()
    entropy = -(logp_TV.exp() * logp_TV).sum(-1)[:-1].numpy()
    experts = out.experts.numpy().astype(np.int16)
    experts[-1] = -1  # the last sampled token was never processed
    selected = out.selected.numpy().astype(np.int32)
    selected[-1] = -1
    return Sample(
        key=key,
        domain=domain,
        tokens=tokens.astype(np.int32),
        loss_mask=mask.astype(np.float32),
        advantages=(mask * rng.normal()).astype(np.float32),
        logprobs=(mask * np.append(0.0, logp + shift)).astype(np.float32),
        entropies=(mask * np.append(0.0, entropy)).astype(np.float32),
        versions=np.where(mask, version, -1).astype(np.int32),
        routes=Routes(experts=experts, selected=selected),
    )


def supervised(lengths: list[int], *, seed: int = 0) -> list[Sample]:
    """Demonstrations: weights of 1 and 0.3, nothing to replay."""
    rng = np.random.default_rng(seed)
    samples = []
    for i, n in enumerate(lengths):
        zeros = np.zeros(n, dtype=np.float32)
        weights = np.where(rng.random(n) < 0.5, 1.0, 0.3).astype(np.float32)
        samples.append(
            Sample(
                key=f"demonstration/{i}",
                domain="copy",
                tokens=rng.integers(0, VOCABULARY, n).astype(np.int32),
                loss_mask=weights,
                advantages=zeros,
                logprobs=zeros,
                entropies=zeros,
                versions=np.full(n, -1, dtype=np.int32),
            )
        )
    return samples
