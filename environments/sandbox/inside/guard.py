"""Waiting on something the agent runs: until it answers, its time is up, a total is exceeded, or the owner is gone."""

from __future__ import annotations

import os
import select
import socket
import time

from .processes import Reaper, Watch

TICK = 0.1  # seconds between looks at the totals


class Guard:
    """`ready, reason = guard.wait(fds)` in a loop; a non-empty reason means: stop it."""

    def __init__(self, control: socket.socket, reaper: Reaper, watch: Watch, seconds: float) -> None:
        self._control, self._reaper, self._watch, self._seconds = control, reaper, watch, seconds
        self._deadline = time.monotonic() + seconds
        self._next_look = time.monotonic() + TICK

    def wait(self, fds: list[int]) -> tuple[list[int], str]:
        """Those of `fds` that can be read, and the reason to stop, if any."""
        timeout = max(0.0, min(self._next_look, self._deadline) - time.monotonic())
        control = self._control.fileno()
        ready, _, _ = select.select([*fds, control], [], [], timeout)
        if control in ready:
            exit_without_owner(self._control)
            ready.remove(control)
        now = time.monotonic()
        if now >= self._deadline:
            return ready, f"out of time (over {self._seconds:g} s)"
        if now >= self._next_look:
            self._next_look = now + TICK
            self._reaper.reap()  # orphans: the dead count against the limit on processes until they are collected
            return ready, self._watch.check()
        return ready, ""


def exit_without_owner(control: socket.socket) -> None:
    """End the container if the other end of the control socket is closed."""
    if not control.recv(1, socket.MSG_PEEK):
        os._exit(0)
