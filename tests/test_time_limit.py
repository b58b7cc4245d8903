"""Time limits: what works too long is cancelled, what waits in a queue is not."""

import asyncio

import pytest

from k3rl.time_limit import TimeLimit, queueing


async def test_work_past_the_limit_is_cancelled_and_counted():
    limit = TimeLimit(0.05)
    with pytest.raises(TimeoutError):
        async with limit:
            await asyncio.sleep(5)
    assert limit.expired
    assert 0.05 <= limit.worked < 1


async def work(seconds, *, after_queueing):
    with queueing():
        await asyncio.sleep(after_queueing)
    await asyncio.sleep(seconds)


async def test_time_in_a_queue_does_not_count():
    async with TimeLimit(0.2) as limit:
        await work(0, after_queueing=0.3)
    assert not limit.expired
    assert limit.worked < 0.1


async def test_the_clock_goes_on_behind_the_queue():
    limit = TimeLimit(0.2)
    with pytest.raises(TimeoutError):
        async with limit:
            await work(5, after_queueing=0.3)
    assert 0.2 <= limit.worked < 1


async def test_queues_in_tasks_of_the_call_stop_its_clock_until_the_last_is_over():
    async def queue(seconds):
        with queueing():
            await asyncio.sleep(seconds)

    async with TimeLimit(0.15) as limit, asyncio.TaskGroup() as group:
        group.create_task(queue(0.1))
        group.create_task(queue(0.3))
    assert limit.worked < 0.1


async def test_only_the_innermost_limit_waits():
    outer, inner = TimeLimit(0.1), TimeLimit(0.05)
    with pytest.raises(TimeoutError):
        async with outer, inner:
            await work(0, after_queueing=5)
    assert (outer.expired, inner.expired) == (True, False)


async def test_another_timeout_is_not_the_limit_s_and_a_queue_needs_no_limit():
    with queueing():
        pass
    limit = TimeLimit(5)
    with pytest.raises(TimeoutError, match="mine"):
        async with limit:
            raise TimeoutError("mine")
    assert not limit.expired


async def test_a_task_that_outlives_the_call_queues_like_any_other():
    async with TimeLimit(5) as limit:
        left_behind = asyncio.create_task(work(0, after_queueing=0.05))
        await asyncio.sleep(0)
    await left_behind
    assert limit.worked < 0.05


async def test_cleaning_up_behind_the_limit_may_queue():
    async def tidy():
        try:
            await asyncio.sleep(5)
        finally:
            await work(0, after_queueing=0.05)

    limit = TimeLimit(0.05)
    with pytest.raises(TimeoutError):
        async with limit:
            await tidy()
    assert limit.expired
