"""Where the ranks meet: a port that is bound from the moment it is known."""

import socket
import subprocess
import sys

import pytest

from k3rl.errors import UserError
from k3rl.learner.zero import join, meeting_point

RANK_1 = """
import sys, torch, torch.distributed as dist
from k3rl.learner.zero import join
join(rank=1, world=2, rendezvous=f"tcp://127.0.0.1:{sys.argv[1]}", seconds=60)
number = torch.tensor(2.0)
dist.all_reduce(number)
print(number.item())
"""
RANK_0 = """
import subprocess, sys, torch, torch.distributed as dist
from k3rl.learner.zero import join, meeting_point
store = meeting_point(2, seconds=60)
other = subprocess.Popen([sys.executable, "-c", sys.argv[1], str(store.port)], stdout=subprocess.PIPE, text=True)
join(rank=0, world=2, rendezvous=store, seconds=60)
dist.all_reduce(torch.tensor(3.0))
print(other.communicate()[0].strip())
"""


def test_rank_0_s_own_store_and_its_address_are_one_meeting_point() -> None:
    done = subprocess.run([sys.executable, "-c", RANK_0, RANK_1], capture_output=True, text=True, timeout=120)
    assert (done.returncode, done.stdout) == (0, "5.0\n"), done.stderr


def test_its_port_is_taken_from_the_start() -> None:
    store = meeting_point(2)
    with socket.socket() as probe, pytest.raises(OSError, match="in use"):
        probe.bind(("", store.port))


def test_an_address_without_a_port_is_refused() -> None:
    with pytest.raises(UserError, match="'tcp://somewhere': must be tcp://host:port"):
        join(rank=1, world=2, rendezvous="tcp://somewhere")
