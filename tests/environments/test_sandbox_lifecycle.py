"""What is left after close, cancellation and the owner's death: nothing."""

import asyncio
import errno
import os
import platform
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from k3rl.environments.sandbox import Sandbox, SandboxPool, SandboxSpec
from k3rl.errors import SandboxError

pytestmark = pytest.mark.skipif(shutil.which("bwrap") is None, reason="bubblewrap is not installed")
ROOT = Path(__file__).parents[2]

SYSV = "python3 -c 'import ctypes; ctypes.CDLL(None).shmget(7, 4096, 0o1666)'"
QUEUE = (
    "python3 -c 'import ctypes, os; print(ctypes.CDLL(None).mq_open(b\"/left\", os.O_CREAT | os.O_RDWR, 0o600, None))'"
)
ADD_KEY = 248 if platform.machine() == "x86_64" else 217
KEY = f'python3 -c \'import ctypes; ctypes.CDLL(None).syscall({ADD_KEY}, b"user", b"left", b"data", 4, -4)\''
OWNER = """
import asyncio, sys
from k3rl.environments.sandbox import SandboxPool, SandboxSpec
async def main():
    pool = SandboxPool(SandboxSpec(), 2)
    boxes = [await pool.acquire() for _ in range(2)]
    await boxes[0].bash("setsid sleep 600 & sleep 600 &")
    print("ready", flush=True)
    await boxes[1].bash("sleep 600", seconds=600)
asyncio.run(main())
"""


def descendants(pid: int) -> set[int]:
    """All processes below `pid`, from /proc."""
    parents = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                parents[int(entry.name)] = int((entry / "stat").read_text().rpartition(")")[2].split()[1])
            except OSError:
                continue  # it ended meanwhile
    found = {pid}
    while more := {child for child, parent in parents.items() if parent in found} - found:
        found |= more
    return found - {pid}


@pytest.fixture
async def pool() -> AsyncIterator[SandboxPool]:
    async with SandboxPool(SandboxSpec(), size=1) as made:
        yield made


async def boot_id(box: Sandbox) -> str:
    """Names the container: when its PID 1 started."""
    return (await box.bash("cut -d' ' -f22 /proc/1/stat")).text


async def test_close_wipes_and_reuses(pool: SandboxPool) -> None:
    box = await pool.acquire()
    first = await boot_id(box)
    await box.write({"d/a": b"1"})
    await box.bash("export LEFT=1; cp -r d /tmp; cp d/a /dev/shm; mkdir -p x/y; chmod 000 x; chmod 500 d; chmod 0 /w")
    await box.bash("setsid nohup sleep 600 > /dev/null 2>&1 &")
    await box.bash("mkdir -p /tmp/deep; cd /tmp/deep; for i in $(seq 300); do mkdir d; cd d; done")
    await box.close()
    box = await pool.acquire()
    assert await boot_id(box) == first
    assert (await box.bash("ls -A /w /tmp /dev/shm; pwd; echo $LEFT; set -- /proc/[0-9]*; echo $#")).text == (
        "/dev/shm:\n\n/tmp:\n\n/w:\n/w\n\n2\n"
    )
    await box.close()
    await box.close()


@pytest.mark.parametrize(
    "act",
    [SYSV, "prlimit --pid 1 --nofile=99", "renice 19 -p 1", QUEUE, KEY],
    ids=["sysv", "limits", "nice", "queue", "key"],
)
async def test_what_cannot_be_wiped_costs_the_container(pool: SandboxPool, act: str) -> None:
    box = await pool.acquire()
    first = await boot_id(box)
    result = await box.bash(act)
    assert result.code == 0, result
    await box.close()
    box = await pool.acquire()
    assert await boot_id(box) != first
    await box.close()


async def test_containers_are_replaced_after_their_uses() -> None:
    seen = []
    async with SandboxPool(SandboxSpec(uses=2), size=1) as pool:
        for _ in range(4):
            async with await pool.acquire() as box:
                seen.append(await boot_id(box))
    assert seen[0] == seen[1] != seen[2] == seen[3]


async def test_a_cancelled_command_costs_the_container_and_leaves_nothing(pool: SandboxPool) -> None:
    box = await pool.acquire()
    before = descendants(os.getpid())
    command = asyncio.create_task(box.bash("sleep 600", seconds=600))
    await asyncio.sleep(0.3)
    command.cancel()
    with pytest.raises(asyncio.CancelledError):
        await command
    with pytest.raises(SandboxError, match="broken"):
        await box.bash("true")
    await box.close()
    assert not before & descendants(os.getpid())
    async with await pool.acquire() as box:
        assert (await box.bash("echo fresh")).text == "fresh\n"
    await pool.close()
    assert not descendants(os.getpid())


async def test_acquire_waits_for_a_close(pool: SandboxPool) -> None:
    box = await pool.acquire()
    waiting = asyncio.create_task(pool.acquire())
    await asyncio.sleep(0.1)
    assert not waiting.done()
    await box.close()
    await (await waiting).close()
    await pool.close()
    with pytest.raises(SandboxError, match="closed"):
        await pool.acquire()


async def test_a_system_without_room_for_another_process_is_told_and_tried_again(
    pool: SandboxPool, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*arguments: object, **settings: object) -> None:
        raise BlockingIOError(errno.EAGAIN, "Resource temporarily unavailable")

    await (await pool.acquire()).close()
    await pool._idle.pop().discard()
    before = len(os.listdir("/proc/self/fd"))
    with monkeypatch.context() as patch:
        patch.setattr(subprocess, "Popen", full)
        for _ in range(3):  # the place in the pool is not lost either: there is only one
            with pytest.raises(SandboxError, match=r"no sandbox can be started: .*temporarily unavailable"):
                await asyncio.wait_for(pool.acquire(), 5)
    assert len(os.listdir("/proc/self/fd")) == before
    async with await pool.acquire() as box:
        assert (await box.bash("echo here")).text == "here\n"


async def test_a_container_that_died_is_told_and_replaced(pool: SandboxPool) -> None:
    box = await pool.acquire()
    for pid in descendants(os.getpid()):
        os.kill(pid, signal.SIGKILL)
    with pytest.raises(SandboxError, match="died"):
        await box.bash("true")
    await box.close()
    async with await pool.acquire() as box:
        assert (await box.bash("echo fresh")).text == "fresh\n"


def test_nothing_outlives_its_owner() -> None:
    owner = subprocess.Popen([sys.executable, "-c", OWNER], cwd=ROOT, stdout=subprocess.PIPE, text=True)
    try:
        assert owner.stdout is not None
        assert owner.stdout.readline() == "ready\n"
        time.sleep(0.3)
        alive = descendants(owner.pid)
        assert len(alive) >= 2 * 3 + 2  # two containers: bwrap, PID 1, bash; and what runs in them
    finally:
        owner.kill()
        owner.wait()
        owner.stdout.close()
    deadline = time.monotonic() + 30
    while any(Path(f"/proc/{pid}").exists() for pid in alive):
        assert time.monotonic() < deadline, alive
        time.sleep(0.05)
