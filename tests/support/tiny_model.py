"""A model small enough for tests of the whole loop: it says random words, well formed, so `guess_domain` is chance."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from random import Random

import numpy as np
import torch
from torch.nn.functional import cross_entropy

from k3rl.chat import XtmlRenderer, load_tokenizer
from k3rl.environments.pools import WORDS
from k3rl.model import Model, preset, save_model
from k3rl.model_folder import tokenizer_folder
from k3rl.supervised.rendering import render_chat
from k3rl.supervised.start import copy_tokenizer
from k3rl.types import Message, Tier, TokenLog

STEPS = 45


def make_tiny_model(folder: Path) -> Path:
    """Two layers that have learned the chat format from random words: a model folder, packed, with a tokenizer."""
    torch.set_num_threads(1)
    torch.manual_seed(0)
    source = tokenizer_folder("nano")
    renderer = XtmlRenderer(load_tokenizer(source))
    shape = preset("nano").with_vocabulary(renderer.tokenizer.vocab_size)
    model = Model(replace(shape, num_layers=2, full_attention=(1,), hidden_size=64, intermediate_size=64))
    optimizer = torch.optim.AdamW(model.parameters(), lr=6e-3, betas=(0.9, 0.95), weight_decay=0.0)
    rng = Random(0)
    for _ in range(STEPS):
        optimizer.zero_grad()
        _loss(model, [_chat(renderer, rng) for _ in range(12)]).backward()
        optimizer.step()
    save_model(model, folder, packed=True)
    copy_tokenizer(source, folder)
    return folder


def _chat(renderer: XtmlRenderer, rng: Random) -> TokenLog:
    messages = [Message(role="user", content=f"{rng.choice(('say', 'tell'))} {rng.choice(WORDS)}")]
    messages.append(Message(role="assistant", content=rng.choice(WORDS)))
    if rng.random() < 0.5:
        messages += [Message(role="user", content="again"), Message(role="assistant", content=rng.choice(WORDS))]
    return render_chat(renderer, messages, [], Tier.LOW)


def _loss(model: Model, logs: list[TokenLog]) -> torch.Tensor:
    tokens = torch.from_numpy(np.concatenate([log.tokens for log in logs]).astype(np.int64))
    ends = np.cumsum([0, *(len(log.tokens) for log in logs)]).astype(np.int32)
    predicts = np.concatenate([np.append(log.mask[1:], False) for log in logs])
    logits = model(tokens, torch.from_numpy(ends)).logits
    places = torch.from_numpy(np.flatnonzero(predicts))
    return cross_entropy(logits[places], tokens[places + 1])
