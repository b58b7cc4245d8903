"""The model against the reference sets of tests/data, within the tolerances of their READMEs."""

import pytest
import torch
from model_cases import DATA

from k3rl.model import load_model

PUBLIC = ("k3_tiny", "k3_tiny_mxfp4")


def largest(got: torch.Tensor, wanted: torch.Tensor) -> float:
    return (got - wanted).abs().max().item()


def rms(got: torch.Tensor, wanted: torch.Tensor) -> float:
    return (got - wanted).square().mean().sqrt().item()


@pytest.mark.parametrize("name", [*PUBLIC, "k31_tiny"])
def test_float64_logits(name: str, expected):
    model = load_model(DATA / name, torch.float64)
    with torch.no_grad():
        logits = model(expected[name]["input_ids"]).logits
    assert largest(logits, expected[name]["logits_float64"]) < 1e-9


@pytest.mark.parametrize(("name", "limit"), [("k3_tiny", 1e-3), ("k3_tiny_mxfp4", 1e-3), ("k31_tiny", 2e-3)])
def test_fp32_logits(name: str, limit: float, expected):
    with torch.no_grad():
        logits = load_model(DATA / name)(expected[name]["input_ids"]).logits
    assert largest(logits, expected[name]["logits"]) < limit
    assert rms(logits, expected[name]["logits"]) < 1e-4


@pytest.mark.parametrize("name", PUBLIC)
def test_hidden_states_attention_outputs_and_routes(name: str, expected):
    wanted = expected[name]
    model = load_model(DATA / name)
    with torch.no_grad():
        out = model(wanted["input_ids"], want=("hidden", "attn_out", "router_weights"))
    length = wanted["input_ids"].shape[1]
    for layer in range(model.config.num_layers):
        assert largest(out.taps["hidden"][layer][:length], wanted[f"hidden.{layer}"]) < 5e-4
        assert largest(out.taps["attn_out"][layer][:length], wanted[f"attn_out.{layer}"]) < 1e-4
    assert largest(out.hidden[0], wanted["final_hidden"]) < 5e-4
    for i, layer in enumerate(model.config.moe_layers):
        assert torch.equal(out.experts[:, :, i].int(), wanted[f"router_ids.{layer}"])
        weights = out.taps["router_weights"][i].view_as(wanted[f"router_weights.{layer}"])
        assert largest(weights, wanted[f"router_weights.{layer}"]) < 2e-5


@pytest.mark.parametrize("name", PUBLIC)
def test_kda_states_after_the_last_token(name: str, expected):
    wanted = expected[name]
    model = load_model(DATA / name)
    snapshot, _ = model.prefill(wanted["input_ids"][0])
    for layer, memory in enumerate(snapshot.layers):
        if layer not in model.config.full_attention:
            assert largest(memory.state, wanted[f"kda_state.{layer}"]) < 2e-5


def decoded(model, tokens: torch.Tensor) -> torch.Tensor:
    """Logits of tokens [B, T] fed one at a time from empty caches."""
    cache = model.new_cache(slots=tokens.shape[0], max_context=tokens.shape[1])
    slots = torch.arange(tokens.shape[0])
    return torch.stack([model.decode(column, cache, slots).logits for column in tokens.unbind(1)], dim=1)


@pytest.mark.usefixtures("decoder")
@pytest.mark.parametrize("name", PUBLIC)
def test_cached_decoding(name: str, expected):
    wanted = expected[name]
    logits = decoded(load_model(DATA / name), wanted["input_ids"])
    assert largest(logits, wanted["logits_cached"]) < 1e-3
    assert rms(logits, wanted["logits_cached"]) < 1e-4


@pytest.mark.parametrize("name", [*PUBLIC, "k31_tiny"])
def test_float64_decoding(name: str, expected):
    logits = decoded(load_model(DATA / name, torch.float64), expected[name]["input_ids"])
    assert largest(logits, expected[name]["logits_float64"]) < 1e-9


@pytest.mark.usefixtures("decoder")
@pytest.mark.parametrize(("dtype", "score_limit"), [(torch.float32, 5e-4), (torch.float64, 1e-9)])
def test_index_scores_and_selections(dtype: torch.dtype, score_limit: float, expected):
    wanted = expected["k31_tiny"]
    model = load_model(DATA / "k31_tiny", dtype)
    tokens = wanted["input_ids"]
    with torch.no_grad():
        out = model(tokens, want=("index_scores",))
    cache = model.new_cache(slots=2, max_context=48)
    steps = [model.decode(column, cache, torch.tensor([0, 1])).selected for column in tokens.unbind(1)]
    for i, layer in enumerate(model.config.dsa_layers):
        assert largest(out.taps["index_scores"][i].tril(), wanted[f"index_scores.{layer}"]) < score_limit
        selected = wanted[f"selected.{layer}"].long()
        everything = torch.arange(48) < model.config.dsa.top_k  # such rows are given as -1 alone
        selected = selected.masked_fill(everything[:, None], -1)
        assert torch.equal(out.selected[:, :, i], selected)
        assert torch.equal(torch.stack(steps, dim=1)[:, :, i], selected)
