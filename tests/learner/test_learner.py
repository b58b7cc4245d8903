"""The learner's step against a plain torch loop over single sequences, and what it reports against direct sums."""

import copy
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor

from k3rl.algorithms.objectives import GRPO, SFT
from k3rl.errors import ConfigError, UserError
from k3rl.learner.config import LearnerConfig
from k3rl.learner.learner import Learner
from k3rl.learner.optimizer import parameter_groups
from k3rl.model import Model, Replay
from k3rl.types import Sample
from tests.learner.nano import rollouts, supervised

LENGTHS = [37, 12, 25, 40, 9, 31, 18]


def plain_loss(model: Model, samples: list[Sample], low: float, high: float) -> Tensor:
    """GRPO, one unpacked sequence at a time."""
    total, count = torch.zeros(()), 0.0
    for s in samples:
        assert s.routes is not None
        replay = Replay(
            experts=torch.from_numpy(s.routes.experts.astype(np.int64)),
            selected=torch.from_numpy(s.routes.selected.astype(np.int64)),
        )
        tokens = torch.from_numpy(s.tokens.astype(np.int64))
        logp = model(tokens, replay=replay).logits.log_softmax(-1)[:-1].gather(1, tokens[1:, None])[:, 0]
        mask, old, gain = (torch.from_numpy(a[1:]) for a in (s.loss_mask, s.logprobs, s.advantages))
        ratio = (logp - old).exp()
        total = total - (mask * torch.minimum(ratio * gain, ratio.clamp(1 - low, 1 + high) * gain)).sum()
        count += mask.sum().item()
    return total / count


def capture(learner: Learner) -> dict[str, Tensor]:
    """Gradients of the next step, filled when it happens."""
    found: dict[str, Tensor] = {}
    update = learner.sharded.step

    def step(scale: float) -> float:
        found.update(learner.sharded.gradients())
        return update(scale)

    learner.sharded.step = step  # type: ignore[method-assign]
    return found


@pytest.mark.parametrize("max_tokens", [41, 90, 10_000])
def test_a_step_equals_torch_on_single_sequences(folder: Path, max_tokens: int) -> None:
    samples = rollouts(folder, LENGTHS, shift=0.05)
    config = LearnerConfig(max_tokens=max_tokens, learning_rate=1e-3, weight_decay=0.1, clip_gradient=0.05)
    learner = Learner(folder, config)
    reference = copy.deepcopy(learner.model)
    loss = plain_loss(reference, samples, 0.04, 0.03)
    loss.backward()
    wanted = {name: p.grad for name, p in reference.named_parameters() if p.grad is not None}
    found = capture(learner)
    metrics = learner.step(samples, GRPO(clip_low=0.04, clip_high=0.03), lr_scale=0.5)
    assert metrics["loss"] == pytest.approx(loss.item(), rel=1e-5)
    assert 0 < metrics["clip_fraction"] < 1
    trained = {n for n, p in learner.model.named_parameters() if p.requires_grad}
    assert found.keys() == wanted.keys() == {n for n in trained if "layers.0.attention_mix" not in n}, (
        "no bank yet there"
    )
    for name, gradient in wanted.items():
        assert (found[name] - gradient).norm() <= 1e-5 * gradient.norm(), name
    groups = parameter_groups(reference.named_parameters(), train="model", weight_decay=0.1, expert_rate=1.0)
    adam = torch.optim.AdamW(
        [{"params": [p for _, p in g.parameters], "weight_decay": g.weight_decay} for g in groups],
        lr=0.5e-3,
        betas=(0.9, 0.95),
    )
    norm = torch.nn.utils.clip_grad_norm_([p for g in groups for _, p in g.parameters], 0.05)
    assert norm > 0.05
    assert metrics["grad_norm"] == pytest.approx(norm.item(), rel=1e-5)
    for p in reference.parameters():  # one step of Adam is the sign of the gradient: where that is noise, skip it
        if p.grad is not None:
            p.grad = torch.where(p.grad.abs() > 1e-4 * p.grad.abs().max(), p.grad, 0.0)
    before = {n: p.detach().clone() for n, p in reference.named_parameters()}
    adam.step()
    for (name, after), p in zip(reference.named_parameters(), learner.model.parameters(), strict=True):
        moved = torch.ones_like(after) if after.grad is None else after.grad != 0
        torch.testing.assert_close(p[moved.bool()], after[moved.bool()], rtol=0, atol=2e-6, msg=name)
        assert "indexer" not in name or p.equal(before[name]), "the indexer is frozen"


def test_domains_and_tokens_are_reported_as_they_are(folder: Path) -> None:
    samples = rollouts(folder, LENGTHS)
    metrics = Learner(folder, LearnerConfig()).step(samples, GRPO())
    signal = {
        d: sum(np.abs(s.advantages * s.loss_mask).sum() for s in samples if s.domain == d) for d in ("code", "office")
    }
    for domain in ("code", "office"):
        mine = [s for s in samples if s.domain == domain]
        assert metrics[f"domain/{domain}/tokens"] == sum(s.loss_mask[1:].sum() for s in mine)
        assert metrics[f"domain/{domain}/signal"] == pytest.approx(signal[domain] / sum(signal.values()), rel=1e-5)
        entropy = np.concatenate([s.entropies[s.loss_mask > 0] for s in mine]).mean()
        assert metrics[f"domain/{domain}/entropy"] == pytest.approx(entropy, rel=1e-5)
    assert metrics["tokens"] == sum(LENGTHS)
    assert metrics["trained_tokens"] == sum(s.loss_mask.sum() for s in samples)


def test_tokens_are_counted_and_entropies_weighted_where_weights_are_fractions(folder: Path) -> None:
    """As with loss_mean=sequence, where the tokens of a trajectory share a weight of 1."""
    samples = [
        replace(s, loss_mask=s.loss_mask / np.float32(np.count_nonzero(s.loss_mask))) for s in rollouts(folder, LENGTHS)
    ]
    metrics = Learner(folder, LearnerConfig()).step(samples, GRPO())
    for domain in ("code", "office"):
        mine = [s for s in samples if s.domain == domain]
        assert metrics[f"domain/{domain}/tokens"] == sum(np.count_nonzero(s.loss_mask[1:]) for s in mine)
        means = [s.entropies[s.loss_mask > 0].mean() for s in mine]  # every trajectory counts the same
        assert metrics[f"domain/{domain}/entropy"] == pytest.approx(np.mean(means), rel=1e-5)
    assert metrics["trained_tokens"] == sum(metrics[f"domain/{name}/tokens"] for name in ("code", "office"))
    assert not [name for name in metrics if name.endswith("/weight")]


def test_temperature_is_that_of_sampling(folder: Path) -> None:
    """Rollouts logged at temperature 0.5 have ratio 1 there, and not at 1."""
    learner = Learner(folder, LearnerConfig(dither=False))
    samples = rollouts(folder, [30], shift=0.0)
    (s,) = samples
    tokens = torch.from_numpy(s.tokens.astype(np.int64))
    with torch.no_grad():
        logp = (learner.model(tokens).logits / 0.5).log_softmax(-1)[:-1].gather(1, tokens[1:, None])[:, 0].numpy()
    object.__setattr__(s, "logprobs", (s.loss_mask * np.append(0.0, logp)).astype(np.float32))
    assert learner.compare(samples, temperature=0.5).all.maximum < 1e-5
    assert learner.compare(samples, temperature=1.0).all.mean > 1e-2
    metrics = learner.step(samples, GRPO(temperature=0.5))
    assert metrics["ratio"] == pytest.approx(1.0, abs=1e-5)
    assert metrics["entropy"] < metrics["entropy_at_1"]


def test_supervised_loss_falls_and_counts_prompt_weights(folder: Path) -> None:
    samples = supervised([20, 33, 27])
    learner = Learner(folder, LearnerConfig(learning_rate=1e-2))
    losses = [learner.step(samples, SFT())["nll"] for _ in range(30)]
    assert losses[0] == pytest.approx(np.log(96), rel=0.1)
    assert losses[-1] < 0.7 * losses[0]


def test_a_step_without_tokens_that_count_moves_nothing(folder: Path) -> None:
    learner = Learner(folder, LearnerConfig())
    before = [p.clone() for p in learner.model.parameters()]
    assert learner.step([], GRPO())["skipped"] == 1.0
    assert all(a.equal(b) for a, b in zip(before, learner.model.parameters(), strict=True))
    assert learner.steps == 1


def test_a_gradient_that_is_not_finite_changes_no_weight(folder: Path) -> None:
    learner = Learner(folder, LearnerConfig())
    samples = rollouts(folder, [20, 30])
    object.__setattr__(samples[0], "logprobs", np.full(20, -np.inf, dtype=np.float32))
    before = [p.clone() for p in learner.model.parameters()]
    with pytest.raises(UserError, match=r"not finite: no weight was changed; lower learner\.learning_rate"):
        learner.step(samples, GRPO())
    assert all(a.equal(b) for a, b in zip(before, learner.model.parameters(), strict=True))


def test_the_wrong_kind_of_step_is_refused(folder: Path) -> None:
    with pytest.raises(ConfigError, match="needs train: indexer"):
        Learner(folder, LearnerConfig()).warm_up_indexer(supervised([9]))
    with pytest.raises(ConfigError, match="call warm_up_indexer"):
        Learner(folder, LearnerConfig(train="indexer", sparse=False)).step(supervised([9]), SFT())
    with pytest.raises(ConfigError, match="learning_rate must be positive"):
        LearnerConfig(learning_rate=0.0)
