"""Schedules by hand-worked points, and which parameters move and decay, by name."""

import pytest
import torch
from torch.nn import Parameter

from k3rl.errors import ConfigError
from k3rl.learner.optimizer import Schedule, parameter_groups


def test_schedules_at_worked_points() -> None:
    warm = Schedule(kind="constant", warmup=4)
    assert [warm.rate(s) for s in range(6)] == [0.25, 0.5, 0.75, 1.0, 1.0, 1.0]
    cosine = Schedule(kind="cosine", warmup=2, steps=10, floor=0.1)
    assert [cosine.rate(s) for s in (0, 1, 2)] == [0.5, 1.0, 1.0]
    assert cosine.rate(6) == pytest.approx(0.55)
    assert cosine.rate(10) == cosine.rate(99) == pytest.approx(0.1)
    with pytest.raises(ConfigError, match="none left after 5"):
        Schedule(kind="cosine", warmup=5, steps=5)


def named(*pairs: tuple[str, tuple[int, ...]]) -> list[tuple[str, Parameter]]:
    return [(name, Parameter(torch.zeros(shape))) for name, shape in pairs]


PARAMETERS = (
    ("layers.0.self_attn.q_proj.weight", (4, 4)),
    ("layers.0.self_attn.A_log", (1, 1, 4, 1)),
    ("layers.0.self_attn.dt_bias", (4,)),
    ("layers.0.input_layernorm.weight", (4,)),
    ("layers.1.self_attn.indexer.wq_b.weight", (4, 4)),
    ("layers.1.self_attn.indexer.k_bias", (4,)),
    ("layers.1.feed_forward.experts.w13", (3, 4, 4)),
    ("layers.1.feed_forward.router", (3, 4)),
)


def test_the_model_trains_without_its_indexer() -> None:
    parameters = named(*PARAMETERS)
    groups = parameter_groups(parameters, train="model", weight_decay=0.1, expert_rate=3.0)
    by_name = {name: (g.weight_decay, g.rate) for g in groups for name, _ in g.parameters}
    assert by_name == {
        "layers.0.self_attn.q_proj.weight": (0.1, 1.0),
        "layers.0.self_attn.A_log": (0.0, 1.0),
        "layers.0.self_attn.dt_bias": (0.0, 1.0),
        "layers.0.input_layernorm.weight": (0.0, 1.0),
        "layers.1.feed_forward.experts.w13": (0.1, 3.0),
        "layers.1.feed_forward.router": (0.1, 1.0),
    }
    assert {name for name, p in parameters if not p.requires_grad} == {name for name, _ in PARAMETERS} - by_name.keys()


def test_a_rate_of_zero_freezes_the_experts() -> None:
    parameters = named(*PARAMETERS)
    groups = parameter_groups(parameters, train="model", weight_decay=0.1, expert_rate=0.0)
    assert {"layers.1.feed_forward.experts.w13"} == {name for name, _ in PARAMETERS if "indexer" not in name} - {
        name for g in groups for name, _ in g.parameters
    }
    assert not dict(parameters)["layers.1.feed_forward.experts.w13"].requires_grad


def test_the_indexer_trains_alone() -> None:
    parameters = named(*PARAMETERS)
    groups = parameter_groups(parameters, train="indexer", weight_decay=0.1, expert_rate=1.0)
    assert {name for g in groups for name, _ in g.parameters} == {name for name, _ in PARAMETERS if "indexer" in name}


def test_a_filter_that_matches_nothing_is_refused() -> None:
    with pytest.raises(ConfigError, match="nothing to train"):
        parameter_groups(named(PARAMETERS[0]), train="indexer", weight_decay=0.0, expert_rate=1.0)
