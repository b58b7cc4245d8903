"""A scripted policy's token list is the one that rendering the finished conversation gives."""

import pytest
from echo_domain import EchoDomain

from k3rl.rollout.episode import EpisodeLimits, run_episode
from k3rl.rollout.scripted import ScriptedPolicy
from k3rl.supervised.rendering import render_chat
from k3rl.types import Message, StopReason, Tier, ToolCall

LIMITS = EpisodeLimits(context=640, thinking={})


async def chatty(task):
    """Thinks, makes two calls at once, says something beside a call."""
    calls = [ToolCall(id=f"echo:{n}", name="echo", arguments={"text": f"word {n}"}) for n in (1, 2, 3)]
    yield Message(role="assistant", reasoning="two at once", tool_calls=tuple(calls[:2]))
    yield Message(role="assistant", content="one more", tool_calls=(calls[2],))
    yield Message(role="assistant", content="done")


@pytest.mark.parametrize("script", [chatty, EchoDomain().solve])
@pytest.mark.parametrize("level", [1, 2])
async def test_rendering_a_chat_gives_the_episode_s_tokens_and_mask(renderer, script, level):
    domain = EchoDomain()
    task = domain.task("train", seed=0, level=level, index=3)
    policy = ScriptedPolicy(script=script, renderer=renderer)
    scored = await run_episode(domain, task, policy, renderer, LIMITS, sample=0, seed=0)
    assert scored.trajectory.stop is StopReason.ENDED
    turns = scored.trajectory.turns
    chat = [*task.messages, *(m for turn in turns for m in (turn.message, *turn.observation))]
    rendered = render_chat(renderer, chat, task.tools, Tier.LOW)
    (log,) = scored.trajectory.logs
    for name in ("tokens", "mask", "versions", "logprobs", "entropies"):
        assert getattr(rendered, name).tolist() == getattr(log, name).tolist()
    assert scored.score.reward == float(script is not chatty)


async def test_a_script_that_raises_is_the_domain_s_fault(renderer):
    async def broken(task):
        yield Message(role="assistant", tool_calls=(ToolCall(id="echo:1", name="echo", arguments={"text": "a"}),))
        raise IndexError("out of ideas")

    domain = EchoDomain()
    task = domain.task("train", seed=0, level=1, index=0)
    policy = ScriptedPolicy(script=broken, renderer=renderer)
    scored = await run_episode(domain, task, policy, renderer, LIMITS, sample=0, seed=0)
    assert (scored.trajectory.stop, scored.trajectory.error) == (StopReason.ENVIRONMENT, "IndexError: out of ideas")
