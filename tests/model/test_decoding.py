"""Decoding of nano: agreement with the training forward, independence of batch mates, snapshots, limits."""

import pytest
import torch
from model_cases import bounds, random_tokens, roughen

from k3rl.errors import UserError
from k3rl.model import Model, Replay, preset

LENGTH, PROMPT = 180, 75
pytestmark = pytest.mark.usefixtures("decoder")


def rollout(model: Model, tokens: torch.Tensor, prompt: int):
    """Prefill a prompt, decode the rest beside an unrelated slot: logits, experts, selections of every position."""
    snapshot, pre = model.prefill(tokens[:prompt])
    cache = model.new_cache(slots=2, max_context=256)
    cache.load(1, snapshot)
    logits, experts, selected = [pre.logits], [pre.experts], [pre.selected]
    for token in tokens[prompt:]:
        step = model.decode(torch.stack((token * 0 + 3, token)), cache, torch.tensor([0, 1]))
        logits.append(step.logits[1:])
        experts.append(step.experts[1:])
        selected.append(step.selected[1:])
    return torch.cat(logits), Replay(experts=torch.cat(experts), selected=torch.cat(selected))


@pytest.mark.parametrize(
    ("dtype", "mean", "p99"), [(torch.float32, 5e-5, 5e-4), (torch.float64, 1e-9, 1e-9)], ids=["fp32", "float64"]
)
def test_decoding_agrees_with_the_training_forward(dtype: torch.dtype, mean: float, p99: float):
    """The bars of engine and learner, on log-probabilities, with routes and selections replayed in packed training."""
    torch.manual_seed(0)
    model = roughen(Model(preset("nano").with_vocabulary(200))).to(dtype)
    first, second = random_tokens(LENGTH, 1), random_tokens(90, 2)
    rolled = [rollout(model, tokens, PROMPT) for tokens in (first, second)]
    replay = Replay(
        experts=torch.cat([r.experts for _, r in rolled]), selected=torch.cat([r.selected for _, r in rolled])
    )
    with torch.no_grad():
        out = model(torch.cat((first, second)), bounds(LENGTH, 90), replay, want=("choices",))
    difference = (
        (out.logits.log_softmax(-1) - torch.cat([logits for logits, _ in rolled]).log_softmax(-1)).abs().flatten()
    )
    assert difference.mean() < mean
    assert difference.quantile(0.99) < p99
    assert torch.equal(out.experts, replay.experts)
    assert torch.equal(out.selected, replay.selected)
    assert (out.own_experts != replay.experts).double().mean() < 0.01
    assert (out.own_selected != replay.selected).double().mean() < 0.01
    assert (replay.selected[PROMPT:LENGTH] >= 0).any(), "the test must reach real selections"


def steps(model: Model, slots: int, slot: int, tokens: torch.Tensor, mates: int, busy: bool) -> list:
    """Decode `tokens` in one slot among others that hold their own histories and are active or not, at random."""
    torch.manual_seed(mates)
    cache = model.new_cache(slots=slots, max_context=256)
    for other in range(slots):
        cache.load(other, model.prefill(random_tokens(10 + 7 * other % 150, seed=mates + other))[0])
    cache.load(slot, model.prefill(random_tokens(70, seed=5))[0])
    results = []
    for token in tokens:
        fed, active = torch.randint(0, 200, (slots,)), torch.rand(slots) < (0.7 if busy else 0.0)
        fed[slot], active[slot] = token, True
        running = active.nonzero()[:, 0]
        at = int(active[:slot].sum())
        step = model.decode(fed[running], cache, running)
        results.append((step.logits[at], step.experts[at], step.selected[at]))
    return results, cache.snapshot(slot)


def memories(snapshot):
    return [tensor for layer in snapshot.layers for tensor in vars(layer).values()]


@pytest.mark.parametrize("slots", [1, 3, 8, 64])
def test_a_row_is_bitwise_independent_of_its_batch_mates_and_of_its_slot(nano: Model, slots: int):
    tokens = random_tokens(12, seed=4)
    wanted, memory = steps(nano, slots, 0, tokens, mates=100, busy=True)
    for slot, mates, busy in ((0, 200, True), (0, 300, False), (slots // 2, 400, True), (slots - 1, 500, True)):
        got, its = steps(nano, slots, slot, tokens, mates=mates, busy=busy)
        for step_got, step_wanted in zip(got, wanted, strict=True):
            assert all(torch.equal(a, b) for a, b in zip(step_got, step_wanted, strict=True))
        assert all(torch.equal(a, b) for a, b in zip(memories(its), memories(memory), strict=True))


def test_several_tokens_of_a_slot_in_one_step_are_bitwise_the_same_as_one_by_one(nano: Model):
    first, second = random_tokens(100, seed=1), random_tokens(90, seed=2)
    slow, fast = (nano.new_cache(slots=3, max_context=128) for _ in range(2))
    one_by_one = {
        slot: [nano.decode(token[None], slow, torch.tensor([slot])) for token in tokens]
        for slot, tokens in ((2, first), (0, second))
    }
    for begin, end in ((0, 1), (1, 40), (40, 90)):
        count = end - begin
        slots = torch.tensor([2] * count + [0] * count)
        tokens = torch.cat((first[begin:end], second[begin:end]))
        step = nano.decode(tokens, fast, slots, logits_at=torch.tensor([0, count - 1, count, 2 * count - 1]))
        wanted = one_by_one[2][begin:end] + one_by_one[0][begin:end]
        ends = (wanted[0], wanted[count - 1], wanted[count], wanted[-1])
        assert torch.equal(step.logits, torch.cat([one.logits for one in ends]))
        assert torch.equal(step.experts, torch.cat([one.experts for one in wanted]))
        assert torch.equal(step.selected, torch.cat([one.selected for one in wanted]))
    assert fast.length[:3].tolist() == [90, 0, 90]
    assert all(torch.equal(a, b) for a, b in zip(memories(fast.snapshot(0)), memories(slow.snapshot(0)), strict=True))


def test_inactive_slots_keep_their_memory_exactly(nano: Model):
    cache = nano.new_cache(slots=2, max_context=64)
    cache.load(0, nano.prefill(random_tokens(20))[0])
    before = cache.snapshot(0)
    for token in (1, 2, 3):
        nano.decode(torch.tensor([token]), cache, torch.tensor([1]))
    after = cache.snapshot(0)
    assert cache.length[:2].tolist() == [20, 3]
    assert all(torch.equal(a, b) for a, b in zip(memories(before), memories(after), strict=True))


def test_a_snapshot_continues_bitwise_and_a_cleared_slot_starts_over(nano: Model):
    tokens = random_tokens(40)
    slot = torch.tensor([0])
    cache = nano.new_cache(slots=1, max_context=64)
    for token in tokens[:30]:
        nano.decode(token[None], cache, slot)
    snapshot = cache.snapshot(0)
    wanted = [nano.decode(token[None], cache, slot).logits for token in tokens[30:]]
    cache.clear(0)
    first = nano.decode(tokens[:1], cache, slot).logits
    fresh = nano.decode(tokens[:1], nano.new_cache(slots=1, max_context=64), slot).logits
    assert torch.equal(first, fresh)
    cache.load(0, snapshot)
    for token, logits in zip(tokens[30:], wanted, strict=True):
        assert torch.equal(nano.decode(token[None], cache, slot).logits, logits)


def test_decoding_without_selection_agrees_too(nano: Model):
    nano.double().sparse = False
    tokens = random_tokens(150)
    logits, replay = rollout(nano, tokens, 20)
    with torch.no_grad():
        out = nano(tokens[None], replay=Replay(experts=replay.experts))
    assert (out.logits[0] - logits).abs().max() < 1e-9
    assert replay.selected.eq(-1).all()


def test_a_full_context_is_refused_and_a_full_idle_slot_is_not(nano: Model):
    cache = nano.new_cache(slots=2, max_context=64)
    cache.load(0, nano.prefill(random_tokens(64))[0])
    nano.decode(torch.tensor([1]), cache, torch.tensor([1]))
    with pytest.raises(UserError, match="64"):
        nano.decode(torch.tensor([1, 1]), cache, torch.tensor([0, 1]))
    with pytest.raises(UserError, match="65 tokens"):
        cache.load(1, nano.prefill(random_tokens(65))[0])


@pytest.mark.parametrize("token", [-1, 200])
def test_a_token_beyond_the_vocabulary_is_refused(nano: Model, token: int):
    cache = nano.new_cache(slots=1, max_context=64)
    with pytest.raises(UserError, match=rf"token ids {token} to {token} in a vocabulary of 200"):
        nano.decode(torch.tensor([token]), cache, torch.tensor([0]))
    assert cache.length[0] == 0


def test_prefill_gives_what_the_packed_forward_gives(nano: Model):
    tokens = random_tokens(33)
    _, pre = nano.prefill(tokens, logits_at=torch.tensor([32]))
    with torch.no_grad():
        out = nano(tokens[None])
    assert torch.equal(pre.experts, out.experts[0])
    torch.testing.assert_close(pre.logits[0], out.logits[0, 32], rtol=1e-5, atol=1e-5)
