"""The episode loop: turns and their tokens, all ways to stop, whose fault a failure is, what is always released."""

import asyncio
import itertools
from dataclasses import replace

import pytest
from played import WatchedDomain, WrittenPolicy, WrittenTurn

from k3rl.environment import StepResult
from k3rl.errors import EnvironmentFault, PolicyLostError, SandboxError, SyncError, UserError
from k3rl.rollout.episode import EpisodeLimits, run_episode
from k3rl.rollout.scripted import ScriptedPolicy
from k3rl.time_limit import queueing
from k3rl.types import Limits, Message, StopReason, Tier, ToolCall

LIMITS = EpisodeLimits(context=640, thinking={Tier.LOW: 7}, retries=2)


def say(text):
    return Message(role="assistant", content=text)


def echo(text):
    return Message(role="assistant", tool_calls=(ToolCall(id="echo:1", name="echo", arguments={"text": text}),))


@pytest.fixture
def play(renderer):
    async def run(domain, *turns, limits=LIMITS, policy=None):
        """Scored and policy; turns are messages, or written out."""
        written = [t if isinstance(t, WrittenTurn) else WrittenTurn(renderer.assistant(t)) for t in turns]
        policy = policy or WrittenPolicy(*written)
        scored = await run_episode(domain, domain.first_task(), policy, renderer, limits, sample=5, seed=11)
        return scored, policy

    return run


async def test_a_whole_episode_is_one_token_list(renderer, play):
    domain = WatchedDomain()
    task = domain.first_task()
    words = task.payload["words"]
    scored, policy = await play(domain, echo(words), say("done"))
    trajectory = scored.trajectory
    assert (trajectory.stop, trajectory.error, trajectory.sample) == (StopReason.ENDED, "", 5)
    assert scored.score.reward == 1.0
    reply = Message(role="tool", name="echo", tool_call_id="echo:1", content="ok")
    history = [*task.messages, echo(words), reply, say("done")]
    (log,) = trajectory.logs
    # The prefix rule: the list that grew is the rendering of the whole conversation, a next turn's header apart.
    whole = renderer.prompt(history, task.tools, task.tier)
    assert log.tokens.tolist() == whole[: len(log.tokens)]
    assert [turn.message for turn in trajectory.turns] == [echo(words), say("done")]
    for turn in trajectory.turns:
        assert log.tokens[turn.start : turn.end].tolist() == renderer.assistant(turn.message)
        assert log.mask[turn.start : turn.end].all()
    assert log.mask.sum() == sum(turn.end - turn.start for turn in trajectory.turns)
    (session,) = policy.sessions
    assert session.seed == 11
    assert session.asked[0] == {"given": [], "after": None, "max": 96, "thinking": 7}
    assert session.asked[1]["given"] == renderer.observation([reply])
    assert session.asked[1]["after"].messages == (reply,)
    assert session.ended == ["close", "abort"]
    assert domain.calls == ["open", "step", "step", "artifacts", "score", "close"]


async def test_malformed_markup_is_answered_and_the_environment_not_stepped(renderer, play):
    domain = WatchedDomain()
    broken = [*renderer.close_thinking, *renderer.close_thinking, renderer.stop_token]
    scored, policy = await play(domain, WrittenTurn(broken), say("sorry"))
    first, second = scored.trajectory.turns
    assert first.problems
    (answer,) = first.observation
    assert (answer.role, answer.content) == ("tool", "error: " + "; ".join(first.problems))
    assert domain.steps == [say("sorry")]
    assert policy.sessions[0].asked[1]["given"] == renderer.observation([answer])
    log = scored.trajectory.logs[0]
    assert log.tokens[first.start : first.end].tolist() == broken  # kept as sampled
    assert second.problems == ()
    assert scored.score.reward == 0.0


async def test_a_cut_turn_is_closed_by_forced_tokens(renderer, play):
    domain = WatchedDomain()
    cut = renderer.assistant(say("a long answer"))[:-4]
    scored, policy = await play(domain, WrittenTurn(cut, stop="length"), say("done"))
    first, second = scored.trajectory.turns
    log = scored.trajectory.logs[0]
    closing = renderer.close_turn(cut)
    assert log.tokens[first.end : first.end + len(closing)].tolist() == closing
    assert not log.mask[first.end : second.start].any()
    assert renderer.stop_token in closing
    assert policy.sessions[0].asked[1]["given"] == [*closing, *renderer.observation(first.observation)]
    assert "cut off" in first.problems[-1]
    assert domain.steps == [say("done")]
    # what is now in the list reads as a whole turn
    parser = renderer.parser()
    parser.feed_many(log.tokens[first.start : first.end + len(closing)].tolist())
    assert parser.done


async def test_out_of_turns(play):
    scored, _ = await play(WatchedDomain(), echo("a"), echo("b"), echo("c"), say("never asked"))
    assert (scored.trajectory.stop, len(scored.trajectory.turns)) == (StopReason.TURNS, 3)
    assert scored.score.reward == 0.0


async def test_out_of_context_as_the_policy_says(renderer, play):
    cut = renderer.assistant(echo("a"))[:-2]
    scored, _ = await play(WatchedDomain(), WrittenTurn(cut, stop="context"))
    assert (scored.trajectory.stop, len(scored.trajectory.turns)) == (StopReason.TOKENS, 1)
    assert scored.score is not None


async def test_out_of_context_by_what_is_given(renderer, play):
    domain = WatchedDomain()
    task = domain.first_task()
    length = len(renderer.prompt(task.messages, task.tools, task.tier)) + len(renderer.assistant(echo("a")))
    for limits in (
        (replace(LIMITS, context=length + 1), domain),
        (LIMITS, WatchedDomain(limits=Limits(turns=3, context=length + 1))),
    ):
        scored, policy = await play(limits[1], echo("a"), say("never asked"), limits=limits[0])
        assert scored.trajectory.stop is StopReason.TOKENS
        assert len(policy.sessions[0].asked) == 1


async def test_out_of_seconds_of_the_environment(play):
    domain = WatchedDomain(limits=Limits(turns=3, seconds=0.0))
    scored, _ = await play(domain, echo("a"), say("never asked"))
    assert (scored.trajectory.stop, len(scored.trajectory.turns)) == (StopReason.SECONDS, 1)
    assert scored.score is not None


class CrowdedDomain(WatchedDomain):
    """Every call of the environment waits in a queue for 50 ms."""

    async def happen(self, what):
        with queueing():
            await asyncio.sleep(0.05)
        await super().happen(what)


async def test_queues_count_neither_as_the_environment_s_time_nor_as_its_hanging(play):
    domain = CrowdedDomain(limits=Limits(turns=3, seconds=0.04))
    scored, _ = await play(domain, echo("a"), say("done"), limits=replace(LIMITS, call_deadline=0.04))
    assert (scored.trajectory.stop, len(scored.trajectory.turns)) == (StopReason.ENDED, 2)


@pytest.mark.parametrize("how", [{"terminated": True}, {"truncated": True}])
async def test_the_environment_ends_the_episode(play, how):
    scored, _ = await play(WatchedDomain(results=[StepResult(**how)]), echo("a"), say("never asked"))
    assert (scored.trajectory.stop, len(scored.trajectory.turns)) == (StopReason.ENDED, 1)


async def test_step_rewards_are_one_more_part_of_the_score(play):
    rewarded = [StepResult(reward=0.25), StepResult(), StepResult(reward=-0.125, terminated=True)]
    scored, _ = await play(WatchedDomain(results=rewarded), echo("a"), echo("b"), say("done"))
    assert scored.score.parts == {"echoed": 0.0, "steps": 0.125}
    assert scored.score.reward == 0.0  # as the domain's score says
    scored, _ = await play(WatchedDomain(), say("done"))
    assert scored.score.parts == {"echoed": 0.0}
    scored, _ = await play(WatchedDomain(results=[StepResult(reward=float("nan"))]), echo("a"))
    assert scored.trajectory.stop is StopReason.ENVIRONMENT
    assert "a step's reward is nan" in scored.trajectory.error


async def test_a_script_that_is_over_ends_the_episode(renderer, play):
    async def script(task):
        yield echo(task.payload["words"])

    scored, _ = await play(WatchedDomain(), policy=ScriptedPolicy(script=script, renderer=renderer))
    assert (scored.trajectory.stop, scored.score.reward) == (StopReason.ENDED, 1.0)


@pytest.mark.parametrize("place", ["open", "step", "artifacts", "score", "close"])
async def test_infrastructure_is_retried_and_then_told_and_never_scored(play, place):
    domain = WatchedDomain(faults={place: lambda: SandboxError("the sandbox\ndied")})
    scored, policy = await play(domain, echo("a"), say("done"))
    trajectory = scored.trajectory
    assert (trajectory.stop, trajectory.error, scored.score) == (StopReason.INFRASTRUCTURE, "the sandbox died", None)
    assert domain.calls.count("open") == 1 + LIMITS.retries
    assert domain.calls.count("close") == (0 if place == "open" else 1 + LIMITS.retries)
    assert all(session.seed == 11 and session.ended[-1] == "abort" for session in policy.sessions)


@pytest.mark.parametrize("place", ["open", "step", "artifacts", "score", "close"])
async def test_an_environment_that_hangs_runs_into_its_deadline(play, place):
    domain = WatchedDomain(hang=place)
    scored, policy = await play(domain, echo("a"), say("done"), limits=replace(LIMITS, call_deadline=0.01))
    trajectory = scored.trajectory
    assert (trajectory.stop, scored.score) == (StopReason.INFRASTRUCTURE, None)
    task = domain.first_task().id
    assert trajectory.error.startswith(f"{task}: {place} of the environment did not return within 0.01 s")
    assert domain.calls.count("open") == 1 + LIMITS.retries
    assert domain.calls.count("close") == (0 if place == "open" else 1 + LIMITS.retries)
    assert all(session.ended[-1] == "abort" for session in policy.sessions)


async def test_a_timeout_of_the_domain_s_own_is_its_fault(play):
    scored, _ = await play(WatchedDomain(faults={"step": lambda: TimeoutError("mine")}), echo("a"))
    assert (scored.trajectory.stop, scored.trajectory.error) == (StopReason.ENVIRONMENT, "TimeoutError: mine")


async def test_one_failure_of_infrastructure_leaves_no_trace(play):
    failures = itertools.chain([SandboxError("once")], itertools.repeat(None))
    domain = WatchedDomain(faults={"step": lambda: next(failures)})
    scored, policy = await play(domain, echo(domain.first_task().payload["words"]), say("done"))
    assert (scored.trajectory.stop, scored.score.reward, len(scored.trajectory.turns)) == (StopReason.ENDED, 1.0, 2)
    assert [session.ended for session in policy.sessions] == [["abort"], ["close", "abort"]]


@pytest.mark.parametrize("place", ["open", "step", "artifacts", "score", "close"])
@pytest.mark.parametrize(
    ("error", "text"), [(KeyError("x"), "KeyError: 'x'"), (EnvironmentFault("bad\ntask"), "bad task")]
)
async def test_an_environment_that_raises_is_told_once_with_its_error(play, place, error, text):
    domain = WatchedDomain(faults={place: lambda: error})
    scored, _ = await play(domain, echo("a"), say("done"))
    assert (scored.trajectory.stop, scored.trajectory.error) == (StopReason.ENVIRONMENT, text)
    assert scored.score is None
    assert domain.calls.count("open") == 1
    assert domain.calls.count("close") == (0 if place == "open" else 1)


async def test_a_setting_that_a_task_does_not_fit_is_told_once_and_is_no_fault_of_the_domain(play):
    policy = WrittenPolicy(open_error=UserError("max_context=64: raise it"))
    scored, _ = await play(WatchedDomain(), policy=policy)
    trajectory = scored.trajectory
    assert (trajectory.stop, trajectory.error, scored.score) == (
        StopReason.INFRASTRUCTURE,
        "max_context=64: raise it",
        None,
    )


@pytest.mark.parametrize("when", ["open", "turn"])
async def test_a_lost_policy_is_not_the_episode_s_to_retry(renderer, play, when):
    domain = WatchedDomain()
    lost = PolicyLostError("gone")
    policy = WrittenPolicy(open_error=lost) if when == "open" else WrittenPolicy(WrittenTurn(error=lost))
    with pytest.raises(PolicyLostError):
        await play(domain, policy=policy)
    assert domain.calls == ["open", "close"]
    assert [session.ended for session in policy.sessions] == ([["abort"]] if when == "turn" else [])


async def test_a_policy_that_fails_is_infrastructure(play):
    scored, _ = await play(WatchedDomain(), WrittenTurn(error=SyncError("no weights")))
    assert (scored.trajectory.stop, scored.trajectory.error) == (StopReason.INFRASTRUCTURE, "no weights")


async def test_a_policy_that_hangs_runs_into_its_deadline(renderer, play):
    class Hanging(WrittenPolicy):
        async def open(self, task, prompt, *, seed):
            session = await super().open(task, prompt, seed=seed)
            session.turn = lambda *arguments, **named: asyncio.sleep(60)
            return session

    policy = Hanging()
    limits = replace(LIMITS, turn_deadline=0.01, retries=0)
    scored, _ = await play(WatchedDomain(), policy=policy, limits=limits)
    assert scored.trajectory.stop is StopReason.INFRASTRUCTURE
    assert "waited 0.01 s for the policy" in scored.trajectory.error
    assert policy.sessions[0].ended == ["abort"]


async def test_a_cancelled_episode_releases_all_it_held(renderer, play):
    begun = asyncio.Event()

    class Hanging(WrittenPolicy):
        async def open(self, task, prompt, *, seed):
            session = await super().open(task, prompt, seed=seed)

            async def turn(*arguments, **named):
                begun.set()
                await asyncio.sleep(60)

            session.turn = turn
            return session

    domain, policy = WatchedDomain(), Hanging()
    running = asyncio.create_task(play(domain, policy=policy))
    await begun.wait()
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    assert domain.calls == ["open", "close"]
    assert policy.sessions[0].ended == ["abort"]
