"""What this process and those below it use, from /proc."""

from __future__ import annotations

import os
import resource
from contextlib import suppress

TICKS = os.sysconf("SC_CLK_TCK")
PAGE = os.sysconf("SC_PAGE_SIZE")


def descendants() -> dict[int, tuple[float, int]]:
    """CPU seconds (its own and of children that it has waited for) and resident bytes of every living descendant."""
    parents: dict[int, int] = {}
    use: dict[int, tuple[float, int]] = {}
    for name in os.listdir("/proc"):
        if name.isdigit():
            with suppress(OSError), open(f"/proc/{name}/stat") as file:  # it may end meanwhile
                fields = file.read().rpartition(")")[2].split()
                parents[int(name)] = int(fields[1])
                use[int(name)] = (sum(map(int, fields[11:15])) / TICKS, int(fields[21]) * PAGE)
    found = {os.getpid()}
    while more := {pid for pid, parent in parents.items() if parent in found} - found:
        found |= more
    return {pid: use[pid] for pid in found - {os.getpid()}}


def cpu_seconds() -> float:
    """CPU used so far by this process, its living descendants and its dead ones."""
    own = sum(sum(resource.getrusage(who)[:2]) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    return own + sum(cpu for cpu, _ in descendants().values())
