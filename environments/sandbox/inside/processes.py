"""The container's processes, as PID 1 sees them: reaping, killing, what they use."""

from __future__ import annotations

import os
import resource
import signal
import time
from contextlib import suppress

PAGE = os.sysconf("SC_PAGE_SIZE")
TICKS = os.sysconf("SC_CLK_TCK")


class Reaper:
    """Collects every dead child (orphans come to PID 1) and keeps the status of those that are watched."""

    def __init__(self) -> None:
        self._statuses: dict[int, int | None] = {}

    def watch(self, pid: int) -> None:
        """Keep this child's status until `status` is asked for it."""
        self._statuses[pid] = None

    def reap(self) -> None:
        """Collect whatever is dead now, without waiting."""
        with suppress(ChildProcessError):  # no children at all
            while True:
                pid, status = os.waitpid(-1, os.WNOHANG)
                if pid == 0:
                    return
                if pid in self._statuses:
                    self._statuses[pid] = os.waitstatus_to_exitcode(status)

    def status(self, pid: int) -> int | None:
        """Exit code (negative: signal) of a watched child and forget it, or None while it lives."""
        self.reap()
        if self._statuses.get(pid) is None:
            return None
        return self._statuses.pop(pid)


def others() -> list[int]:
    """Every process of the container but PID 1."""
    return [int(name) for name in os.listdir("/proc") if name.isdigit() and name != "1"]


def kill_all(reaper: Reaper, seconds: float = 5.0) -> bool:
    """Kill everything but PID 1 and wait until it is gone; False if something would not die in time."""
    deadline = time.monotonic() + seconds
    while True:
        with suppress(ProcessLookupError):  # nothing to kill
            os.kill(-1, signal.SIGKILL)  # from PID 1: every process of the namespace but itself, atomically
        reaper.reap()
        if not others():
            return True
        if time.monotonic() > deadline:
            return False
        time.sleep(0.0005)


class Watch:
    """Totals over all processes of one episode: resident memory, CPU seconds, number of files."""

    def __init__(self, *, memory: int, cpu_seconds: float, files: int, folders: tuple[str, ...]) -> None:
        self._memory, self._cpu, self._files, self._folders = memory, cpu_seconds, files, folders
        self._base = 0.0  # CPU seconds of earlier episodes
        self.restart()

    def restart(self) -> None:
        """A new episode: CPU used before it does not count."""
        self._base = _collected_cpu() + _usage()[1]

    def check(self) -> str:
        """Why the episode's processes must stop, or ''."""
        memory, cpu = _usage()
        if memory > self._memory:
            return f"out of memory (over {self._memory >> 20} MiB in all)"
        if cpu + _collected_cpu() - self._base > self._cpu:
            return f"out of CPU time (over {self._cpu:g} s in all)"
        for folder in self._folders:
            use = os.statvfs(folder)
            if use.f_files - use.f_ffree > self._files:
                return f"too many files (over {self._files})"
        return ""


def _collected_cpu() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def _usage() -> tuple[int, float]:
    memory, seconds = 0, 0.0
    for pid in others():
        with suppress(OSError):  # it may end between listing and reading
            with open(f"/proc/{pid}/statm", "rb") as file:
                memory += int(file.read().split()[1]) * PAGE
            seconds += cpu_seconds(pid)
    return memory, seconds


def cpu_seconds(pid: int) -> float:
    """What a process and the children it has collected used. Raises OSError when it is gone."""
    with open(f"/proc/{pid}/stat", "rb") as file:
        fields = file.read().rpartition(b")")[2].split()
    return sum(map(int, fields[11:15])) / TICKS
