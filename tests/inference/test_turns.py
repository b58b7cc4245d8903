"""Turn rules: the close-think marker, budgets, limits."""

import numpy as np
import pytest

from k3rl.errors import ConfigError, UserError
from k3rl.inference.rules import CloseMatcher, Sampling, TurnRules
from k3rl.inference.turns import TurnRequest, Turns

RULES = TurnRules(stop=9, close_thinking=(1, 1, 2))


def _request(max_tokens=100, thinking_budget=None):
    return TurnRequest(given=np.zeros(0, np.int32), max_tokens=max_tokens, thinking_budget=thinking_budget)


def _run(turns, tokens, *, start=10):
    """Feed tokens to slot 0 until something happens: (tokens fed, stop, forced)."""
    for n, token in enumerate(tokens, start=1):
        stops, forced = turns.advance(np.array([0]), np.array([token]), np.array([start + n]))
        if stops or forced:
            return n, stops.get(0), forced.get(0)
    return len(tokens), None, None


@pytest.mark.parametrize("marker", [(1, 2, 3), (1, 1, 2), (1, 2, 1, 2, 3), (4,), (1, 1, 1)])
def test_the_matcher_finds_the_marker_wherever_a_search_finds_it(marker):
    rng = np.random.default_rng(0)
    for _ in range(300):
        tokens = rng.integers(1, 5, size=12)
        matcher, state = CloseMatcher(marker), np.array([0])
        closed_at = None
        for n, token in enumerate(tokens, start=1):
            state = matcher.advance(state, np.array([token]))
            spelled = max(k for k in range(len(marker) + 1) if tuple(tokens[n - k : n]) == marker[:k] and k <= n)
            if closed_at is None and spelled == len(marker):
                closed_at = n
            assert state[0] == (len(marker) if closed_at else spelled)


def test_a_spent_budget_forces_the_marker_and_completes_one_already_begun():
    turns = Turns(1, RULES)
    turns.begin(0, _request(thinking_budget=3), start=10, context=100)
    assert _run(turns, [5, 6, 7]) == (3, None, (1, 1, 2))
    turns.begin(0, _request(thinking_budget=3), start=10, context=100)
    assert _run(turns, [5, 6, 1]) == (3, None, (1, 2))
    assert turns.begin(0, _request(thinking_budget=0), start=10, context=100) == (1, 1, 2)
    assert _run(turns, [5] * 50) == (50, None, None)  # closed: nothing counts any more


def test_tokens_after_the_policy_closed_its_thinking_do_not_count():
    turns = Turns(1, RULES)
    turns.begin(0, _request(thinking_budget=4), start=10, context=100)
    assert _run(turns, [5, 1, 1, 2, 5, 5, 5, 5, 9]) == (9, "stop", None)


def test_the_first_limit_wins_and_a_finished_turn_forces_nothing():
    turns = Turns(1, RULES)
    turns.begin(0, _request(max_tokens=3, thinking_budget=3), start=10, context=100)
    assert _run(turns, [5, 5, 5]) == (3, "length", None)
    turns.begin(0, _request(max_tokens=3), start=10, context=12)
    assert _run(turns, [5, 5]) == (2, "context", None)
    turns.begin(0, _request(max_tokens=2), start=10, context=12)
    assert _run(turns, [5, 9]) == (2, "stop", None)
    assert not turns.running[0]


def test_requests_that_cannot_be_meant_are_refused():
    with pytest.raises(UserError, match="max_tokens is 0"):
        _request(max_tokens=0)
    with pytest.raises(UserError, match="thinking_budget is -1"):
        _request(thinking_budget=-1)
    with pytest.raises(ConfigError, match="temperature is nan"):
        Sampling(temperature=float("nan"))
    with pytest.raises(ConfigError, match="temperature is -1"):
        Sampling(temperature=-1)
    with pytest.raises(ConfigError, match="stop token 2 is part"):
        TurnRules(stop=2, close_thinking=(1, 2))
    with pytest.raises(ConfigError, match="close_thinking is empty"):
        TurnRules(stop=2, close_thinking=())
