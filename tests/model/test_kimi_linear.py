"""The parts shared with Kimi Linear (softplus KDA, MLA without query latent, SwiGLU experts, plain residuals), values
and gradients, against transformers' own implementation with the same random weights."""

from __future__ import annotations

import pytest
import torch
from kimi_linear import public, their_model
from model_cases import roughen

from k3rl.model import Model, ModelConfig
from k3rl.model.config import KdaConfig, MlaConfig, MoeConfig
from k3rl.model.names import slots
from k3rl.model.tensors import view, write_tensors

CONFIG = ModelConfig(
    vocab_size=97,
    hidden_size=48,
    num_layers=4,
    full_attention=(1, 3),
    intermediate_size=80,
    kda=KdaConfig(num_heads=2, head_dim=16, gate_lower_bound=None, full_rank_gate=False),
    mla=MlaConfig(num_heads=2, kv_lora_rank=20, nope_dim=12, rope_dim=8, v_dim=16, output_gate=False),
    moe=MoeConfig(
        num_experts=6, experts_per_token=2, num_shared_experts=1, expert_dim=24, latent_dim=None, scaling=2.446
    ),
    residual_block=None,
    activation="silu",
)


@pytest.fixture(scope="module")
def pair():
    torch.manual_seed(0)
    ours, theirs = Model(CONFIG), their_model(CONFIG).eval()
    roughen(theirs)
    write_tensors(ours, public(theirs.state_dict()), source="transformers")
    return ours, theirs


@pytest.mark.parametrize("length", [5, 70])
def test_logits_and_gradients(pair, length: int):
    ours, theirs = pair
    tokens = torch.randint(0, 97, (2, length))
    logits = ours(tokens).logits
    wanted = theirs(tokens).logits
    assert (logits - wanted).abs().max() < 1e-4 * wanted.std()
    weight = torch.randn_like(logits) / length
    grads = []
    for model, values in ((ours, logits), (theirs, wanted)):
        model.zero_grad()
        (values * weight).sum().backward()
        grads.append({n: torch.zeros_like(p) if p.grad is None else p.grad for n, p in model.named_parameters()})
    expected = public(grads[1])
    for slot in slots(CONFIG):
        if slot.key in grads[0]:  # router biases are no parameters
            got, want = view(grads[0], slot), expected[slot.name]
            assert (got - want).norm() < 1e-4 * want.norm() + 1e-6, slot.name


def test_cached_decoding(pair):
    ours, theirs = pair
    tokens = torch.randint(0, 97, (2, 40))
    cache, past = ours.new_cache(slots=2, max_context=64), None
    for column in tokens.unbind(1):
        logits = ours.decode(column, cache, torch.tensor([0, 1])).logits
        with torch.no_grad():
            step = theirs(column[:, None], cache=past, use_cache=True)
        past = step.cache
        assert (logits - step.logits[:, 0]).abs().max() < 1e-4 * step.logits.std()
