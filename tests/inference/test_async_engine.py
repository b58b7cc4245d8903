"""The engine in its thread: many sessions, errors to every waiter, cancelling, pausing, time limits."""

import asyncio
import threading

import numpy as np
import pytest
from engine_driver import RULES, Request, drive, random_model

from k3rl.errors import DeadlineError, InfrastructureError, SyncError, UserError
from k3rl.inference import AsyncEngine, Engine, Sampling

PROMPT = tuple(range(30))
TURNS = (((), 12, None), ((1, 2), 9, 3))


@pytest.fixture
def core(model):
    return Engine(model, slots=4, max_context=128, rules=RULES, version=0)


@pytest.fixture
def engine(core):
    with AsyncEngine(core, wait_seconds=60) as running:
        yield running


async def episode(engine, seed, turns=TURNS, prompt=PROMPT):
    session = await engine.open(prompt, seed=seed, sampling=Sampling(), group_key=f"group {len(prompt)}")
    for given, max_tokens, budget in turns:
        await session.turn(given, max_tokens=max_tokens, thinking_budget=budget)
        await asyncio.sleep(0)  # the environment's turn
    return await session.close()


async def test_many_episodes_give_what_the_synchronous_engine_gives(engine, model):
    logs = await asyncio.gather(*(episode(engine, seed) for seed in range(12)))
    quiet = Engine(model, slots=4, max_context=128, rules=RULES, version=0)
    for seed, log in enumerate(logs):
        (expected,), _ = drive(quiet, [Request(PROMPT, seed, TURNS)])
        assert np.array_equal(log.tokens, expected.tokens)
        assert np.array_equal(log.logprobs, expected.logprobs)
        assert np.array_equal(log.routes.selected, expected.routes.selected)


async def test_an_error_in_the_thread_reaches_every_waiter_and_every_later_call(core, monkeypatch):
    steps = iter(range(3))

    def step(real=core.step):
        if next(steps, None) is None:
            raise RuntimeError("kernel fell over")
        return real()

    monkeypatch.setattr(core, "step", step)
    with AsyncEngine(core, wait_seconds=60) as engine:
        results = await asyncio.gather(*(episode(engine, seed) for seed in range(6)), return_exceptions=True)
        assert len(results) == 6
        for error in results:
            assert isinstance(error, InfrastructureError)
            assert "RuntimeError: kernel fell over" in str(error)
        with pytest.raises(InfrastructureError, match="kernel fell over"):
            await engine.open(PROMPT, seed=0, sampling=Sampling(), group_key="late")


async def test_a_cancelled_turn_frees_its_slot(engine, core):
    engine.pause()
    tasks = [asyncio.create_task(episode(engine, seed)) for seed in range(9)]
    await asyncio.sleep(0.05)
    for task in tasks[:8]:
        task.cancel()
    await asyncio.gather(*tasks[:8], return_exceptions=True)
    engine.resume()
    log = await tasks[8]
    assert log.mask.any()
    await engine.publish(_Same(5))  # a call that runs after the aborts
    assert not core.has_work
    assert not core._scheduler.holders


async def test_aborting_a_session_wakes_whoever_waits_for_its_turn(engine, core):
    session = await engine.open(PROMPT, seed=0, sampling=Sampling(), group_key="g")
    engine.pause()
    waiting = asyncio.create_task(session.turn((), max_tokens=5))
    await asyncio.sleep(0.05)
    with pytest.raises(UserError, match="inside a turn"):
        await session.turn((), max_tokens=5)  # a mistake, which ends the session
    with pytest.raises(InfrastructureError, match=r"session g \(seed 0\) was aborted"):
        await waiting
    assert not core.has_work


async def test_a_wait_past_its_limit_raises_and_frees_the_session(core, monkeypatch):
    release = threading.Event()

    def step(real=core.step):
        release.wait(20)
        return real()

    monkeypatch.setattr(core, "step", step)
    with AsyncEngine(core, wait_seconds=0.2) as engine:
        session = await engine.open(PROMPT, seed=0, sampling=Sampling(), group_key="slow")
        with pytest.raises(DeadlineError, match=r"session slow \(seed 0\): a turn: .* within 0.2 s"):
            await session.turn((), max_tokens=4)
        release.set()


async def test_paused_time_does_not_count_against_the_limit(core):
    with AsyncEngine(core, wait_seconds=1.0) as engine:
        session = await engine.open(PROMPT, seed=0, sampling=Sampling(), group_key="g")
        engine.pause()
        turn = asyncio.create_task(session.turn((), max_tokens=4))
        await asyncio.sleep(1.3)
        assert not turn.done()
        engine.resume()
        assert len((await turn).tokens) == 4


class _Same:
    def __init__(self, version):
        self.version = version

    def apply_to(self, model):
        """The same weights once more."""


class _Broken:
    version = 9

    def apply_to(self, model):
        raise SyncError("tensor w has the wrong hash")


async def test_publishing_under_way_marks_tokens_by_version(engine):
    sessions = [await engine.open(PROMPT, seed=s, sampling=Sampling(), group_key="g") for s in range(2)]
    for session in sessions:
        await session.turn((), max_tokens=3)
    await engine.publish(_Same(1))
    for session in sessions:
        await session.turn((), max_tokens=3)
        assert (await session.close()).versions[30:].tolist() == [0, 0, 0, 1, 1, 1]


async def test_a_failed_publication_reaches_publisher_and_turns_and_the_next_one_serves_again(core):
    with AsyncEngine(core, wait_seconds=60) as engine:
        engine.pause()
        waiting = asyncio.create_task(episode(engine, 0))
        await asyncio.sleep(0.05)
        with pytest.raises(SyncError, match="tensor w has the wrong hash"):
            await engine.publish(_Broken())
        engine.resume()
        with pytest.raises(SyncError, match="tensor w has the wrong hash"):
            await waiting
        with pytest.raises(SyncError, match="holds no verified weights"):
            await episode(engine, 1)
        await engine.publish(_Same(10))
        assert set((await episode(engine, 1)).versions.tolist()) == {-1, 10}


async def test_mistakes_of_one_caller_do_not_stop_the_others(engine):
    with pytest.raises(UserError, match="prompt of 500 tokens"):
        await engine.open([1] * 500, seed=0, sampling=Sampling(), group_key="long")
    session = await engine.open(PROMPT, seed=0, sampling=Sampling(), group_key="g")
    with pytest.raises(UserError, match="max_tokens is 0"):
        await session.turn((), max_tokens=0)
    assert (await episode(engine, 2)).mask.any()


async def test_shutdown_ends_turns_that_wait():
    engine = AsyncEngine(Engine(random_model(), slots=1, max_context=128, rules=RULES, version=0))
    engine.pause()
    waiting = asyncio.create_task(episode(engine, 0))
    await asyncio.sleep(0.05)
    engine.shutdown()
    with pytest.raises(InfrastructureError, match="shut down"):
        await waiting
