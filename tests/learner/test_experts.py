"""Routed experts: dithering at load, flips as the published bytes show them, router balancing; indexer warm-up."""

from pathlib import Path

import pytest
import torch
from torch import Tensor

from k3rl.algorithms.objectives import GRPO, SFT
from k3rl.kernels.mxfp4 import dequantize
from k3rl.learner.config import LearnerConfig
from k3rl.learner.experts import count_loads
from k3rl.learner.learner import Learner
from k3rl.model import Model, load_model
from tests.learner.nano import rollouts, supervised, write_model


def published_values(model: Model) -> dict[str, Tensor]:
    state = model.state_for_publication()
    return {
        name: dequantize(packed, state[name.replace("_packed", "_scale")])
        for name, packed in state.items()
        if name.endswith("_packed")
    }


def test_dithered_masters_change_neither_forward_nor_published_bytes(folder: Path) -> None:
    plain, learner = load_model(folder), Learner(folder, LearnerConfig(dither=True))
    tokens = torch.arange(60)
    with torch.no_grad():
        assert learner.model(tokens).logits.equal(plain(tokens).logits)
    before, after = plain.state_for_publication(), learner.model.state_for_publication()
    assert all(before[name].equal(after[name]) for name in before)
    stacks = {n: p for n, p in plain.named_parameters() if ".experts." in n}
    assert len(stacks) == 6
    for name, weight in stacks.items():
        assert (learner.model.get_parameter(name) != weight).float().mean() > 0.99
    other = Learner(folder, LearnerConfig(dither=False))
    assert all(other.model.get_parameter(name).equal(weight) for name, weight in stacks.items())


def test_full_precision_masters_are_not_dithered(tmp_path: Path) -> None:
    folder = write_model(tmp_path / "m", packed=False)
    plain, learner = load_model(folder), Learner(folder, LearnerConfig(dither=True))
    assert all(p.equal(q) for p, q in zip(plain.parameters(), learner.model.parameters(), strict=True))


@pytest.mark.parametrize(("rate", "still"), [(1e-4, 0.0), (1e-12, 1.0)])
def test_flips_are_counted_in_what_is_published(folder: Path, rate: float, still: float) -> None:
    learner = Learner(folder, LearnerConfig(learning_rate=rate))
    before = published_values(learner.model)
    metrics = learner.step(rollouts(folder, [40, 50]), GRPO())
    after = published_values(learner.model)
    flips = sum(int((before[name] != after[name]).sum()) for name in before)
    assert metrics["experts/flips"] == flips
    assert metrics["experts/flip_share"] == pytest.approx(flips / sum(v.numel() for v in before.values()))
    assert metrics["experts/alarm_still"] == still
    assert (flips == 0) == bool(still)


def test_without_quantization_there_are_no_flips_to_count(folder: Path) -> None:
    metrics = Learner(folder, LearnerConfig(quantize=False)).step(rollouts(folder, [40]), GRPO())
    assert "experts/flips" not in metrics


def test_experts_may_have_a_rate_of_their_own(folder: Path) -> None:
    learner = Learner(folder, LearnerConfig(learning_rate=1e-4, expert_rate=1e-8))
    metrics = learner.step(rollouts(folder, [40, 50]), GRPO())
    assert metrics["experts/flips"] == 0
    assert not learner.model.lm_head.equal(load_model(folder).lm_head)


def test_router_biases_follow_the_sign_of_the_load(folder: Path) -> None:
    samples = supervised([40, 30])
    learner = Learner(folder, LearnerConfig(balance_rate=0.001))
    with torch.no_grad():
        chosen = [learner.model(torch.from_numpy(s.tokens).long()).experts for s in samples]
    loads = count_loads(torch.cat(chosen), 8)
    assert loads.sum(dim=1).tolist() == [140.0] * 3
    metrics = learner.step(samples, SFT())
    biases = torch.stack([b for n, b in learner.model.state_dict().items() if n.endswith(".bias")])
    torch.testing.assert_close(biases, 0.001 * torch.sign(70 / 4 - loads).float())
    assert metrics["experts/imbalance"] == pytest.approx((loads / 17.5).max().item())


def test_balancing_evens_out_the_loads(folder: Path) -> None:
    samples = supervised([60] * 8)
    learner = Learner(folder, LearnerConfig(balance_rate=0.02, learning_rate=1e-9))
    for name, bias in learner.model.state_dict().items():
        if name.endswith(".bias"):
            bias[3] = 1.0  # over every score: each token chooses this expert, 4 times its share
    first, *_, last = [learner.step(samples, SFT())["experts/imbalance"] for _ in range(40)]
    assert first == 4.0
    assert last < 1.5


def test_router_biases_are_frozen_by_default(folder: Path) -> None:
    learner = Learner(folder, LearnerConfig())
    learner.step(rollouts(folder, [30]), GRPO())
    assert not any(b.any() for n, b in learner.model.state_dict().items() if n.endswith(".bias"))


@pytest.mark.parametrize("max_tokens", [60, 10_000])
def test_the_indexer_learns_alone_towards_attention(folder: Path, max_tokens: int) -> None:
    samples = supervised([50, 20, 60, 33])
    config = LearnerConfig(train="indexer", sparse=False, learning_rate=3e-3, max_tokens=max_tokens)
    learner = Learner(folder, config)
    before = {n: p.detach().clone() for n, p in learner.model.named_parameters()}
    with torch.no_grad():
        mean = [learner.model(torch.from_numpy(s.tokens).long(), want=("indexer_loss",)).indexer_loss for s in samples]
    wanted = sum(len(s.tokens) * m.item() for s, m in zip(samples, mean, strict=True)) / 163
    losses = [learner.warm_up_indexer(samples)["loss"] for _ in range(25)]
    assert losses[0] == pytest.approx(wanted, rel=1e-5)
    assert losses[-1] < 0.8 * losses[0]
    for name, parameter in learner.model.named_parameters():
        assert parameter.equal(before[name]) == ("indexer" not in name), name
