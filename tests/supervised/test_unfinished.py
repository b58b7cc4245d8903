"""Demonstrations that stop early: the drawn lengths follow the chances, and what is left is as it was."""

from collections import Counter
from math import prod
from random import Random

import pytest

from k3rl.supervised.rendering import render_chat, token_log
from k3rl.supervised.unfinished import GIVEN_UP, stop_early
from k3rl.types import Message, Tier, ToolCall

ENDING = (7, 8)
TURNS = 4
WORK = [((2, 3), True), ((4,), False)]
WHOLE = token_log([((1,) * 5, False), *WORK * TURNS, ((5, 6, 6), True)])


def turns(log):
    """Turns with work in it, of a log cut from WHOLE."""
    return log.tokens.tolist().count(2)


@pytest.mark.parametrize("chances", [(0.15, 0.35, 0.6), (0.3,), (0.0, 0.0, 0.5, 0.2, 0.9)])
def test_work_ends_before_a_turn_as_often_as_the_chances_say(chances):
    drawn = 4000
    counts = Counter(turns(stop_early(WHOLE, ENDING, chances, Random(n))) for n in range(drawn))
    before = [chances[min(turn, len(chances) - 1)] for turn in range(TURNS)]
    for done in range(TURNS + 1):
        going_on = prod(1 - chance for chance in before[:done])
        share = going_on * (before[done] if done < TURNS else 1.0)
        assert counts[done] / drawn == pytest.approx(share, abs=4 * (share * (1 - share) / drawn) ** 0.5)


def test_an_unfinished_chat_is_rendered_as_if_it_had_ended_there(renderer):
    def work(turn):
        call = ToolCall(id=f"shell:{turn}", name="shell", arguments={"command": f"ls {turn}"})
        return [
            Message(role="assistant", tool_calls=(call,)),
            Message(role="tool", content=f"result {turn}", tool_call_id=call.id),
        ]

    chat = [Message(role="user", content="work"), *work(1), *work(2), Message(role="assistant", content="all of it")]
    log = render_chat(renderer, chat, (), Tier.LOW)
    drawn = [stop_early(log, renderer.assistant(GIVEN_UP), (0.5,), Random(n)) for n in range(40)]
    ends = [render_chat(renderer, [*chat[:end], GIVEN_UP], (), Tier.LOW) for end in (1, 3)] + [log]
    seen = {one.tokens.tobytes() + one.mask.tobytes() + one.versions.tobytes() for one in drawn}
    assert seen == {one.tokens.tobytes() + one.mask.tobytes() + one.versions.tobytes() for one in ends}


def test_nobody_stops_early_without_chances_or_without_work():
    assert stop_early(WHOLE, ENDING, (), Random(0)) is WHOLE
    answer = token_log([([1, 1], False), ([5, 6], True)])
    assert stop_early(answer, ENDING, (0.99,), Random(0)) is answer
