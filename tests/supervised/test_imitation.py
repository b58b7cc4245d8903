"""A run's own trajectories as data: which are taken, and that their tokens are those that were sampled."""

from dataclasses import replace

import pytest
from echo_domain import EchoDomain
from played import WatchedDomain, WrittenPolicy, WrittenTurn

from k3rl.errors import UserError
from k3rl.observability.trajectories import write_trajectories
from k3rl.rollout.episode import EpisodeLimits, run_episode
from k3rl.rollout.scripted import ScriptedPolicy
from k3rl.supervised.conversations import folder_samples
from k3rl.types import Message, Tier

LIMITS = EpisodeLimits(context=640, thinking={Tier.LOW: 7})


@pytest.fixture
def play(renderer):
    async def run(index=0, split="train", policy=None):
        domain = EchoDomain()
        task = domain.task(split, seed=0, level=1, index=index)
        policy = policy or ScriptedPolicy(script=domain.solve, renderer=renderer)
        return await run_episode(domain, task, policy, renderer, LIMITS, sample=0, seed=0)

    return run


def store(folder, *steps):
    for number, scored in enumerate(steps, start=1):
        file = folder / f"step-{number:06d}.parquet"
        write_trajectories(file, scored, advantages=[0.0] * len(scored), step=number, run="r")


async def test_full_successes_of_the_training_split_are_imitated(renderer, play, tmp_path):
    solved = [await play(0), await play(1)]
    unsolved = await play(2, policy=WrittenPolicy(WrittenTurn(renderer.assistant(Message(role="assistant")))))
    broken = [*renderer.close_thinking, *renderer.close_thinking, renderer.stop_token]
    words = solved[0].trajectory.task.payload["words"]
    turns = [message async for message in EchoDomain().solve(solved[0].trajectory.task)]
    malformed = await play(0, policy=WrittenPolicy(*map(WrittenTurn, [broken, *map(renderer.assistant, turns)])))
    assert (unsolved.score.reward, malformed.score.reward, len(malformed.trajectory.turns)) == (0.0, 1.0, 3)
    store(tmp_path, [solved[0], unsolved, malformed], [await play(3, split="test"), solved[1]])
    samples = folder_samples(tmp_path, renderer, prompt_weight=0.25)
    assert [sample.key for sample in samples] == [scored.trajectory.task.id for scored in solved]
    assert {sample.domain for sample in samples} == {"echo"}
    for sample, scored in zip(samples, solved, strict=True):
        (log,) = scored.trajectory.logs
        assert sample.tokens.tolist() == log.tokens.tolist()
        assert sample.loss_mask.tolist() == [1.0 if sampled else 0.25 for sampled in log.mask]
    assert words in renderer.tokenizer.decode(samples[0].tokens.tolist())
    (one,) = folder_samples(tmp_path / "step-000002.parquet", renderer, prompt_weight=0.25)
    assert one.tokens.tolist() == samples[1].tokens.tolist()


async def test_trajectories_without_a_success_are_told(renderer, tmp_path):
    domain = WatchedDomain(faults={"open": lambda: KeyError("x")})
    policy = ScriptedPolicy(script=domain.solve, renderer=renderer)
    limits = replace(LIMITS, retries=0)
    scored = await run_episode(domain, domain.first_task(), policy, renderer, limits, sample=0, seed=0)
    store(tmp_path, [scored])
    with pytest.raises(UserError, match="none of 1 trajectories is a full success") as caught:
        folder_samples(tmp_path, renderer, prompt_weight=0.0)
    assert "\n" not in str(caught.value)
