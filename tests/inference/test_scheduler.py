"""Who gets which slot."""

import numpy as np

from k3rl.inference import Sampling
from k3rl.inference.scheduler import Scheduler
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
