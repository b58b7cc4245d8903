"""A session's result depends on its request alone: bit for bit, whatever else runs, wherever it sits."""

import random

import numpy as np
import pytest
from engine_driver import RULES, Request, drive, open_session

from k3rl.inference import Engine

_RANDOM = random.Random(0)


def _tokens(count):
    return tuple(_RANDOM.randrange(90) for _ in range(count))


# Prompts and turns below and above the sparse attention's top-k; one with a budget, one greedy.
SCRIPT = Request(_tokens(23), 5, ((_tokens(0), 9, None), (_tokens(7), 12, 4), (_tokens(3), 30, None)))
OTHERS = [
    Request(_tokens(n), seed, ((_tokens(g), m, 3), (_tokens(4), m, None)), temperature)
    for n, seed, g, m, temperature in [
        (1, 1, 0, 20, 1.0),
        (90, 2, 5, 15, 0.0),
        (40, 3, 2, 35, 1.5),
        (17, 5, 1, 8, 0.6),
        (64, 9, 0, 15, 1.0),
    ]
]


def assert_same(log, expected):
    for name in ("tokens", "mask", "logprobs", "entropies", "versions"):
        assert np.array_equal(getattr(log, name), getattr(expected, name)), name
    assert np.array_equal(log.routes.experts, expected.routes.experts)
    assert np.array_equal(log.routes.selected, expected.routes.selected)


@pytest.fixture(scope="module")
def alone(model):
    """The script's log when nothing else runs, in slot 0."""
    engine = Engine(model, slots=4, max_context=160, rules=RULES, version=0)
    (log,), _ = drive(engine, [SCRIPT])
    assert log.mask.sum() >= 20
    return log


@pytest.mark.parametrize("slot", [1, 2, 3])
def test_another_slot(engine, alone, slot):
    holders = [open_session(engine, OTHERS[n]) for n in range(slot)]
    for session in holders:
        engine.start_turn(session, (), max_tokens=1, thinking_budget=None)
    engine.step()
    (log,), _ = drive(engine, [SCRIPT])
    assert_same(log, alone)


def test_a_full_batch_of_longer_and_shorter_neighbours(engine, alone):
    logs, _ = drive(engine, [OTHERS[0], OTHERS[1], SCRIPT, OTHERS[2]])
    assert_same(logs[2], alone)


@pytest.mark.parametrize("place", [0, 11, 20])
def test_however_many_rows_are_computed(model, alone, place, monkeypatch):
    """Twenty neighbours come to their ends one by one."""
    requests = [Request(_tokens(3 + n), 50 + n, ((_tokens(1), 60 - 3 * n, None),)) for n in range(20)]
    requests.insert(place, SCRIPT)
    computed, decode = set(), model.decode

    def watched(tokens, cache, slots, *, logits_at):
        computed.add(len(slots))
        return decode(tokens, cache, slots, logits_at=logits_at)

    monkeypatch.setattr(model, "decode", watched)
    logs, _ = drive(Engine(model, slots=40, max_context=160, rules=RULES, version=0), requests)
    assert {1, 2, 7, 13, 20} <= computed
    assert_same(logs[place], alone)


def test_parked_and_restored_while_others_run(model):
    """Six sessions over two slots: nearly every turn parks somebody, who comes back to another slot."""
    requests = [SCRIPT, *OTHERS]
    quiet = Engine(model, slots=2, max_context=160, rules=RULES, version=0)
    expected = [drive(quiet, [request])[0][0] for request in requests]
    logs, _ = drive(Engine(model, slots=2, max_context=160, rules=RULES, version=0), requests)
    for log, quiet_log in zip(logs, expected, strict=True):
        assert_same(log, quiet_log)


def test_a_turn_in_pieces_is_the_turn(engine, alone):
    """max_tokens only interrupts: what comes after is the same."""
    first = int(alone.mask.argmax())
    pieces = ((), 2, None), ((), 3, None)
    (log,), turns = drive(engine, [Request(SCRIPT.prompt, SCRIPT.seed, pieces)])
    assert [turn.stop for turn in turns[0]] == ["length", "length"]
    assert np.array_equal(log.tokens, alone.tokens[: first + 5])
    assert np.array_equal(log.logprobs, alone.logprobs[: first + 5])


def test_seed_decides(engine):
    request = Request(SCRIPT.prompt, 1, (((), 20, None),))
    other = Request(SCRIPT.prompt, 2, (((), 20, None),))
    (a, b, c), _ = drive(engine, [request, other, request])
    assert_same(c, a)
    assert not np.array_equal(a.tokens, b.tokens)
