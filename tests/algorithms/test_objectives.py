"""Objectives against float64 Python loops, with gradients by finite differences of those loops."""

import math

import pytest
import torch

from k3rl.algorithms.objectives import GRPO, SFT, Objective, Signals
from k3rl.errors import ConfigError

N = 41


def data(seed: int = 0) -> tuple[torch.Tensor, Signals]:
    g = torch.Generator().manual_seed(seed)
    rollout = -3 * torch.rand(N, generator=g, dtype=torch.float64)
    logp = rollout + 0.4 * torch.randn(N, generator=g, dtype=torch.float64)
    weight = (torch.rand(N, generator=g) < 0.6).double()
    advantages = torch.randn(N, generator=g, dtype=torch.float64)
    return logp, Signals(weight=weight, advantages=advantages * weight, rollout_logp=rollout * weight)


def grpo_loop(logp: list[float], s: Signals, low: float, high: float, denominator: float) -> dict[str, float]:
    out = dict.fromkeys(("loss", "ratio", "clip_fraction", "kl"), 0.0) | {"ratio_max": 0.0}
    for i, m in enumerate(s.weight.tolist()):
        if m == 0.0:
            continue
        log_ratio = logp[i] - s.rollout_logp[i].item()
        r, a = math.exp(log_ratio), s.advantages[i].item()
        clipped = min(max(r, 1 - low), 1 + high)
        out["loss"] -= m * min(r * a, clipped * a) / denominator
        out["ratio"] += m * r / denominator
        out["clip_fraction"] += m * ((a > 0 and r > 1 + high) or (a < 0 and r < 1 - low)) / denominator
        out["kl"] += m * (r - 1 - log_ratio) / denominator
        out["ratio_max"] = max(out["ratio_max"], r)
    return out


def gradient(objective: Objective, logp: torch.Tensor, signals: Signals, denominator: float) -> torch.Tensor:
    leaf = logp.clone().requires_grad_()
    (grad,) = torch.autograd.grad(objective(leaf, signals, denominator).loss, leaf)
    return grad


def test_grpo_values_equal_the_loop() -> None:
    logp, signals = data()
    got = GRPO(clip_low=0.1, clip_high=0.3)(logp, signals, 57.0)
    want = grpo_loop(logp.tolist(), signals, 0.1, 0.3, 57.0)
    assert got.loss.item() == pytest.approx(want["loss"], rel=1e-12)
    assert 0 < want["clip_fraction"] < 0.6
    for name in ("ratio", "clip_fraction", "kl"):
        assert got.means[name].item() == pytest.approx(want[name], rel=1e-12)
    assert got.maxima["ratio_max"].item() == pytest.approx(want["ratio_max"], rel=1e-12)


def test_grpo_gradient_equals_finite_differences_of_the_loop() -> None:
    logp, signals = data(1)
    got = gradient(GRPO(clip_low=0.1, clip_high=0.3), logp, signals, 57.0)
    values, h = logp.tolist(), 1e-6
    for i in range(N):
        up, down = values.copy(), values.copy()
        up[i], down[i] = values[i] + h, values[i] - h
        difference = (
            grpo_loop(up, signals, 0.1, 0.3, 57.0)["loss"] - grpo_loop(down, signals, 0.1, 0.3, 57.0)["loss"]
        ) / (2 * h)
        assert got[i].item() == pytest.approx(difference, abs=1e-9)


def test_on_policy_the_gradient_is_the_policy_gradient() -> None:
    _, signals = data(2)
    got = gradient(GRPO(), signals.rollout_logp, signals, 10.0)
    torch.testing.assert_close(got, -signals.weight * signals.advantages / 10.0, rtol=1e-12, atol=0)


def test_sft_is_weighted_cross_entropy() -> None:
    g = torch.Generator().manual_seed(3)
    logits = torch.randn(N, 9, generator=g, dtype=torch.float64)
    targets = torch.randint(9, (N,), generator=g)
    weight = torch.rand(N, generator=g, dtype=torch.float64)
    logp = logits.log_softmax(-1).gather(1, targets[:, None])[:, 0]
    zeros = torch.zeros_like(weight)
    got = SFT()(logp, Signals(weight=weight, advantages=zeros, rollout_logp=zeros), weight.sum().item())
    each = torch.nn.functional.cross_entropy(logits, targets, reduction="none")
    assert got.loss.item() == pytest.approx((each * weight).sum().item() / weight.sum().item(), rel=1e-12)


@pytest.mark.parametrize("objective", [GRPO(), SFT()])
def test_the_split_into_micro_batches_changes_nothing(objective: Objective) -> None:
    logp, s = data(4)
    whole = objective(logp, s, 20.0)
    parts = [
        objective(
            logp[a:b],
            Signals(weight=s.weight[a:b], advantages=s.advantages[a:b], rollout_logp=s.rollout_logp[a:b]),
            20.0,
        )
        for a, b in [(0, 7), (7, 8), (8, N)]
    ]
    assert sum(p.loss.item() for p in parts) == pytest.approx(whole.loss.item(), rel=1e-12)
    for name, value in whole.means.items():
        assert sum(p.means[name].item() for p in parts) == pytest.approx(value.item(), rel=1e-12)


@pytest.mark.parametrize("objective", [GRPO(), SFT()])
def test_nothing_leaks_from_outside_the_mask(objective: Objective) -> None:
    logp, s = data(5)
    wild = torch.where(s.weight > 0, logp, -math.inf)
    got = objective(wild, s, 20.0)
    assert got.loss.item() == objective(logp, s, 20.0).loss.item()
    grad = gradient(objective, wild, s, 20.0)
    assert torch.isfinite(grad).all()
    assert not grad[s.weight == 0].any()


def test_a_micro_batch_that_counts_for_nothing_gives_zeros() -> None:
    zeros = torch.zeros(4)
    empty = Signals(weight=zeros, advantages=zeros, rollout_logp=zeros)
    got = GRPO()(torch.full((4,), -2.0), empty, 5.0)
    assert got.loss.item() == 0.0
    assert all(v.item() == 0.0 for v in (*got.means.values(), *got.maxima.values()))


def test_configurations_without_meaning_are_refused() -> None:
    with pytest.raises(ConfigError, match="clip_low"):
        GRPO(clip_low=1.5)
    with pytest.raises(ConfigError, match="temperature must be positive"):
        SFT(temperature=0.0)
    with pytest.raises(ConfigError, match="twice"):
        GRPO(proximal="recomputed")  # type: ignore[arg-type]
