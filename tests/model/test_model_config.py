"""Configs from and to public files, refusals, presets and their published sizes."""

import json
from dataclasses import replace

import pytest
import torch
from model_cases import DATA, SETS

from k3rl.errors import ConfigError
from k3rl.model import Model, ModelConfig, load_config, preset
from k3rl.model.config import MoeConfig
from k3rl.model.presets import PRESETS
from k3rl.model.sizes import sizes


@pytest.mark.parametrize("name", SETS)
def test_public_configs_survive_a_round_trip(name: str):
    config = load_config(DATA / name)
    assert ModelConfig.from_public(json.loads(json.dumps(config.to_public()))) == config


@pytest.mark.parametrize("name", PRESETS)
def test_presets_survive_a_round_trip(name: str):
    config = preset(name)
    assert ModelConfig.from_public(json.loads(json.dumps(config.to_public()))) == config


def test_fields_are_read_where_the_public_files_have_them():
    config = load_config(DATA / "k3_tiny_mxfp4")
    assert config.full_attention == (3, 5)
    assert config.moe_layers == (1, 2, 3, 4, 5)
    assert config.moe.expert_format == "mxfp4"
    assert config.dsa is None
    assert load_config(DATA / "k31_tiny").dsa.top_k == 8
    assert (config.bos_token, config.eos_token, config.pad_token, config.media_token) == (250, 251, 255, 252)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"moe_router_activation_func": "softmax"}, "moe_router_activation_func.*softmax"),
        ({"num_expert_group": 4}, "num_expert_group"),
        ({"tie_word_embeddings": True}, "tie_word_embeddings"),
        ({"hidden_act": "gelu"}, "hidden_act.*gelu"),
        ({"num_experts_per_token": 9}, "9 of 8"),
        ({"model_type": "llama"}, "not a Kimi"),
        ({"dsa_config": {"remainder": "block_mean"}}, "block_mean.*not supported"),
    ],
)
def test_what_would_compute_something_else_is_refused(change: dict, message: str):
    public = json.loads((DATA / "k31_tiny" / "config.json").read_text())
    for key, value in change.items():
        public["text_config"][key] = {**public["text_config"]["dsa_config"], **value} if key == "dsa_config" else value
    with pytest.raises(ConfigError, match=message):
        ModelConfig.from_public(public)


def test_a_missing_field_is_named():
    public = json.loads((DATA / "k3_tiny" / "config.json").read_text())
    del public["text_config"]["kv_lora_rank"]
    with pytest.raises(ConfigError, match="kv_lora_rank"):
        ModelConfig.from_public(public)


def test_impossible_shapes_are_refused():
    nano = preset("nano")
    with pytest.raises(ConfigError, match="layers"):
        replace(nano, full_attention=(4,))
    moe = {**vars(nano.moe), "expert_dim": 48}
    with pytest.raises(ConfigError, match="multiples"):
        replace(nano, moe=MoeConfig(**moe))
    with pytest.raises(ConfigError, match="nano"):
        preset("nanoo")


def test_k3_has_its_published_sizes():
    """Millions of parameters from the specification of the full model (text model with indexers)."""
    counted = sizes(preset("k3"))
    parts = {name: count / 1e6 for name, count in counted.parts.items()}
    assert parts["kda"] / 69 == pytest.approx(443.740, abs=1e-3)
    assert parts["mla"] / 24 == pytest.approx(232.196, abs=1e-3)
    assert parts["indexer"] / 24 == pytest.approx(7.439, abs=1e-3)
    assert parts["routed"] / 92 / 896 == pytest.approx(33.030, abs=1e-3)
    assert parts["shared"] / 92 == pytest.approx(132.121, abs=1e-3)
    assert parts["router"] / 92 == pytest.approx(6.423, abs=1e-3)
    assert parts["latent"] / 92 == pytest.approx(51.384, abs=1e-3)
    assert parts["dense"] == pytest.approx(726.663, abs=1e-3)
    assert parts["embedding"] == parts["head"] == pytest.approx(1174.405, abs=1e-3)
    vision = 401.214 + 46.145
    assert (counted.total / 1e6 + vision) / 1e3 == pytest.approx(2780.11, abs=0.01)
    assert counted.active / 1e9 == pytest.approx(104.37, abs=0.01)


def test_kimi_linear_has_its_published_sizes():
    """48B-A3B by name, 49.1B in the hub's count of its checkpoint."""
    counted = sizes(preset("kimi_linear_48b_a3b"))
    assert counted.total / 1e9 == pytest.approx(49.1, abs=0.05)
    assert counted.active / 1e9 == pytest.approx(3.0, abs=0.3)


@pytest.mark.parametrize("name", ["mini", "k3"])
def test_the_pattern_is_full_attention_every_fourth_layer_and_at_the_end(name):
    config = preset(name)
    last = config.num_layers - 1
    assert config.full_attention == (*(i for i in range(last) if i % 4 == 3), last)


def test_nano_counts_what_the_network_holds():
    config = preset("nano").with_vocabulary(1000)
    with torch.device("meta"):
        held = sum(p.numel() for p in Model(config).parameters())
    assert sizes(config).total == held
    assert 0.9e6 < held < 1.5e6
