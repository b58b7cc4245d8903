"""Busy slots stay together: a step costs as many rows as the highest of them."""

import numpy as np

from k3rl.inference import Sampling
from k3rl.inference.scheduler import STRIDE, Scheduler
from k3rl.inference.session import Session


def sessions(count):
    return [
        Session(prompt=np.array([1], np.int32), seed=n, sampling=Sampling(temperature=1.0), context=8, group_key=f"{n}")
        for n in range(count)
    ]


def seat(scheduler, session):
    assert not scheduler.request(session)
    (placement,) = scheduler.place()
    session.slot = placement.slot
    return placement.slot


def test_the_lowest_free_slot_is_taken():
    scheduler = Scheduler(16)
    members = sessions(10)
    assert [seat(scheduler, session) for session in members] == list(range(10))
    for slot in (7, 2, 5):
        scheduler.remove(members[slot])
    assert [seat(scheduler, session) for session in sessions(4)] == [2, 5, 7, 10]


def test_a_session_above_what_the_holders_need_gives_its_slot_up():
    scheduler = Scheduler(3 * STRIDE)
    members = sessions(2 * STRIDE + 1)
    for session in members:
        seat(scheduler, session)
    last = members[-1]
    assert scheduler.end_turn(last)  # 17 holders need three strides
    assert scheduler.request(last)
    scheduler.remove(members[0])
    assert not scheduler.end_turn(last)  # 16 need two, and slot 16 is in the third
    last.slot = None
    assert last not in scheduler.holders.values()
    assert seat(scheduler, last) == 0


def test_a_session_below_keeps_its_slot():
    scheduler = Scheduler(2 * STRIDE)
    members = sessions(STRIDE + 3)
    for session in members:
        seat(scheduler, session)
    for session in members[STRIDE:]:
        scheduler.remove(session)
    assert all(scheduler.end_turn(session) for session in members[:STRIDE])
