"""The engine's records against full forwards, its limits, shared prompts, and weights replaced under way."""

import numpy as np
import pytest
import torch
from engine_driver import RULES, Request, drive, open_session, random_model

from k3rl.errors import ConfigError, InfrastructureError, SyncError, UserError
from k3rl.inference import Engine, TurnRules
from k3rl.model import Replay

PROMPT = tuple(range(40))


class NewWeights:
    """A publication that copies another model's parameters, unverified."""

    def __init__(self, version, source):
        self.version = version
        self._source = source

    def apply_to(self, model):
        model.load_published(self._source.state_for_publication())


def _forward_logprobs(model, log, temperature):
    """log p of every token and the entropies by one full forward over the finished list, routes replayed."""
    tokens = torch.from_numpy(log.tokens.astype(np.int64))
    replay = Replay(
        experts=torch.from_numpy(log.routes.experts.astype(np.int64)),
        selected=torch.from_numpy(log.routes.selected.astype(np.int64)),
    )
    with torch.no_grad():
        logp = (model(tokens, replay=replay).logits.double() / temperature).log_softmax(-1)[:-1]
    return logp.gather(1, tokens[1:, None])[:, 0].numpy(), -(logp.exp() * logp).sum(-1).numpy()


@pytest.mark.parametrize(("dtype", "mean_bar", "p99_bar"), [(torch.float32, 5e-5, 5e-4), (torch.float64, 1e-9, 1e-9)])
@pytest.mark.parametrize("temperature", [1.0, 0.7])
def test_logprobs_are_those_of_a_full_forward(dtype, mean_bar, p99_bar, temperature):
    """The bars of engine and learner: entropy over 0.1, sampled tokens, one version."""
    model = random_model(dtype=dtype)
    engine = Engine(model, slots=4, max_context=200, rules=RULES, version=0)
    sessions = [open_session(engine, Request(PROMPT[: 10 + 5 * n], n, (), temperature=temperature)) for n in range(4)]
    for session in sessions:
        engine.start_turn(session, PROMPT[:5], max_tokens=100, thinking_budget=20)
    while engine.has_work:
        engine.step()
    differences = []
    for session in sessions:
        logprobs, entropies = engine.rows.logprobs[session.slot].copy(), engine.rows.entropies[session.slot].copy()
        log = engine.close(session)
        expected, expected_entropy = _forward_logprobs(model, log, temperature)
        counted = np.flatnonzero(log.mask & (log.entropies > 0.1))
        differences.append(np.abs(logprobs[counted] - expected[counted - 1]))
        assert np.abs(entropies[counted] - expected_entropy[counted - 1]).max() < p99_bar
        assert np.array_equal(log.logprobs, logprobs[: len(log.tokens)].astype(np.float32))
    difference = np.concatenate(differences)
    assert len(difference) > 100
    assert difference.mean() < mean_bar
    assert np.quantile(difference, 0.99) < p99_bar


def test_an_engine_one_version_old_is_caught_by_the_same_bar(engine):
    """The learner is a step of 1e-4 per parameter ahead of the weights that sampled."""
    (log,), _ = drive(engine, [Request(PROMPT, 3, (((), 60, None),))])
    ahead = random_model()
    with torch.no_grad():
        for n, parameter in enumerate(ahead.parameters()):
            generator = torch.Generator().manual_seed(n)
            parameter.add_(torch.randn(parameter.shape, generator=generator).sign(), alpha=1e-4)
    sampled = np.flatnonzero(log.mask)
    same, stale = (
        np.abs(log.logprobs[sampled] - _forward_logprobs(learner, log, 1.0)[0][sampled - 1]).mean()
        for learner in (engine.model, ahead)
    )
    assert same < 5e-5 < stale


def test_a_log_says_what_was_given_and_what_was_sampled(engine):
    (log,), (turns,) = drive(engine, [Request(PROMPT, 3, (((), 6, None), ((1, 2, 3), 5, None)))])
    first, second = turns
    assert first.start == len(PROMPT)
    assert second.start == first.start + len(first.tokens) + 3
    expected = [*PROMPT, *first.tokens, 1, 2, 3, *second.tokens]
    assert log.tokens.tolist() == expected
    sampled = [False] * 40 + [True] * len(first.tokens) + [False] * 3 + [True] * len(second.tokens)
    assert log.mask.tolist() == sampled
    assert log.versions.tolist() == [0 if s else -1 for s in sampled]
    assert np.array_equal(log.logprobs != 0, log.mask)
    assert (log.routes.experts[:-1] >= 0).all()
    assert (log.routes.experts[-1] == -1).all()  # nobody processed the last token


def test_selections_are_of_earlier_positions_and_of_the_full_number(engine, model):
    top_k = model.config.dsa.top_k
    (log,), _ = drive(engine, [Request(PROMPT, 3, (((), 100, None),))])
    selected = log.routes.selected[:-1]
    assert (selected[:top_k] == -1).all()
    for t in range(top_k, len(selected)):
        for row in selected[t]:
            assert len(set(row.tolist())) == top_k
            assert row.min() >= 0
            assert row.max() <= t
            assert (np.diff(row) > 0).all()


def test_a_spent_thinking_budget_is_closed_by_given_tokens(engine):
    (log,), (turns,) = drive(engine, [Request(PROMPT, 3, (((), 12, 5), ((4,), 4, 0)))])
    start = turns[0].start
    assert turns[0].tokens[5:7] == RULES.close_thinking
    assert log.mask[start : start + 14].tolist() == [True] * 5 + [False] * 2 + [True] * 7
    assert turns[1].tokens[:2] == RULES.close_thinking
    assert len(turns[1].tokens) == 6
    assert log.logprobs[start + 5 : start + 7].tolist() == [0, 0]


def test_the_stop_token_ends_a_turn_and_belongs_to_it(model, engine):
    (_,), (free,) = drive(engine, [Request(PROMPT, 3, (((), 20, None),))])
    stop = free[0].tokens[7]
    stopping = Engine(model, slots=4, max_context=160, rules=TurnRules(stop=stop, close_thinking=(96, 97)), version=0)
    (_,), (turns,) = drive(stopping, [Request(PROMPT, 3, (((), 20, None),))])
    assert turns[0].stop == "stop"
    assert turns[0].tokens == free[0].tokens[: free[0].tokens.index(stop) + 1]


def test_a_full_context_is_reported_and_nothing_is_cut_silently(engine):
    request = Request(PROMPT, 3, (((), 50, None), ((1, 2), 5, None)), context=50)
    (log,), (turns,) = drive(engine, [request])
    assert [turn.stop for turn in turns] == ["context", "context"]
    assert len(turns[0].tokens) == 10
    assert turns[1].tokens == ()
    assert len(log.tokens) == 50
    (log,), (turns,) = drive(engine, [Request(PROMPT, 3, (((1, 2, 3, 4, 5, 6, 7, 8, 9), 5, 0),), context=50)])
    assert turns[0].tokens == (96,)  # the forced close filled the list
    assert turns[0].stop == "context"
    (log,), (turns,) = drive(engine, [Request(PROMPT, 3, (((), 500, None),))])
    assert len(log.tokens) == 160  # the engine's own limit
    assert turns[0].stop == "context"


def test_greedy_sessions_take_the_largest_logit(engine, model):
    (log,), _ = drive(engine, [Request(PROMPT, 3, (((), 30, None),), temperature=0.0)])
    with torch.no_grad():
        largest = model(torch.from_numpy(log.tokens.astype(np.int64))).logits.argmax(-1).numpy()
    assert np.array_equal(log.tokens[40:], largest[39:-1])
    assert not log.logprobs.any()


def test_a_group_computes_its_prompt_once(engine):
    requests = [Request(PROMPT, seed, (((), 5, None),)) for seed in range(10)]
    drive(engine, [*requests, Request(PROMPT[:20], 1, (((), 5, None),))])
    assert engine.prefixes.computed == 2
    drive(engine, requests)
    assert engine.prefixes.computed == 2


def test_publishing_the_same_weights_under_way_changes_the_version_alone():
    model = random_model()
    requests = [Request(PROMPT, seed, (((), 20, None), ((5, 6), 20, None))) for seed in range(6)]
    expected, _ = drive(Engine(model, slots=4, max_context=160, rules=RULES, version=3), requests)
    engine = Engine(model, slots=4, max_context=160, rules=RULES, version=3)
    same = NewWeights(4, random_model())
    logs, _ = drive(engine, requests, between_steps=lambda step: engine.publish(same) if step == 9 else None)
    assert engine.prefixes.computed == 2  # dropped with the old version, although two sessions were still to come
    for log, undisturbed in zip(logs, expected, strict=True):
        assert np.array_equal(log.tokens, undisturbed.tokens)
        assert np.array_equal(log.logprobs, undisturbed.logprobs)
    assert logs[0].versions[40:].tolist() == [3] * 9 + [4] * 11 + [-1] * 2 + [4] * (len(logs[0].tokens) - 62)
    assert set(logs[5].versions[logs[5].mask].tolist()) == {4}


def test_new_weights_take_effect_at_the_next_token():
    requests = [Request(PROMPT, 3, (((), 20, None),))]
    expected, _ = drive(Engine(random_model(), slots=2, max_context=160, rules=RULES, version=1), requests)
    engine = Engine(random_model(), slots=2, max_context=160, rules=RULES, version=1)
    other = NewWeights(2, random_model(seed=1))
    logs, _ = drive(engine, requests, between_steps=lambda step: engine.publish(other) if step == 5 else None)
    assert np.array_equal(logs[0].logprobs[:45], expected[0].logprobs[:45])
    assert (logs[0].logprobs[45:50] != expected[0].logprobs[45:50]).all()


def test_an_engine_serves_nothing_without_a_verified_version():
    class Broken:
        version = 2

        def apply_to(self, model):
            raise SyncError("tensor w is wrong")

    empty = Engine(random_model(), slots=2, max_context=64, rules=RULES)
    with pytest.raises(SyncError, match="holds no verified weights"):
        open_session(empty, Request(PROMPT, 0, ()))
    engine = Engine(random_model(), slots=2, max_context=64, rules=RULES, version=1)
    session = open_session(engine, Request(PROMPT, 0, ()))
    with pytest.raises(SyncError, match="tensor w is wrong"):
        engine.publish(Broken())
    with pytest.raises(SyncError, match="holds no verified weights"):
        engine.start_turn(session, (), max_tokens=1, thinking_budget=None)


def test_misuse_is_refused_in_one_line(engine):
    with pytest.raises(UserError, match="prompt of 160 tokens in a context of 160"):
        open_session(engine, Request(PROMPT * 4, 0, ()))
    with pytest.raises(UserError, match="context of 161 tokens"):
        open_session(engine, Request(PROMPT, 0, (), context=161))
    session = open_session(engine, Request(PROMPT, 0, ()))
    engine.start_turn(session, (), max_tokens=5, thinking_budget=None)
    with pytest.raises(UserError, match="inside a turn"):
        engine.start_turn(session, (), max_tokens=5, thinking_budget=None)
    with pytest.raises(UserError, match="close inside a turn"):
        engine.close(session)
    engine.abort(session)
    with pytest.raises(UserError, match="after close"):
        engine.start_turn(session, (), max_tokens=5, thinking_budget=None)
    with pytest.raises(ConfigError, match="0 slots"):
        Engine(engine.model, slots=0, max_context=10, rules=RULES)


def test_logits_that_are_not_finite_name_the_session():
    model = random_model()
    with torch.no_grad():
        model.lm_head[3] = torch.nan
    engine = Engine(model, slots=2, max_context=64, rules=RULES, version=7)
    session = open_session(engine, Request(PROMPT, 11, ()))
    engine.start_turn(session, (), max_tokens=5, thinking_budget=None)
    with pytest.raises(InfrastructureError, match=r"session test \(seed 11\).*not finite \(weights 7\)"):
        engine.step()
