"""The episode's bash: one process that lives on between commands, each run by `eval` with its own end marker.

Commands and end markers travel on pipes that the commands themselves do not inherit, so that unclosed quotes, `read`
or `cat` cannot swallow the next command. A command may still break its own shell; then a fresh one is started.
"""

from __future__ import annotations

import fcntl
import os
import signal
import socket
from collections.abc import Mapping
from contextlib import suppress
from typing import Any

from .guard import Guard
from .processes import Reaper, Watch, kill_all

CHUNK = 65536
LIMITS = "ulimit -c 0 -t {cpu} -f {file_kib} -v {memory_kib} -u {processes} -n {open_files}"
LOOP = """cd /w
while IFS= read -r -d '' -u 9 _line; do
eval "$_line" </dev/null 8>&- 9<&-
builtin printf '%d\\0' $? >&8
done"""


def high_pipe() -> tuple[int, int]:
    """A pipe with both ends above the numbers that a child's descriptors are moved to."""
    ends = os.pipe()
    moved = tuple(fcntl.fcntl(end, fcntl.F_DUPFD_CLOEXEC, 32) for end in ends)
    for end in ends:
        os.close(end)
    return moved[0], moved[1]


class Output:
    """The first `limit` bytes that come out of a pipe, and how many came in all."""

    def __init__(self, fd: int, limit: int) -> None:
        self.fd, self.limit, self.total = fd, limit, 0
        self._kept = bytearray()

    def read(self) -> bool:
        """Read once; False when there is nothing now or never again."""
        try:
            data = os.read(self.fd, CHUNK)
        except BlockingIOError:
            return False
        self.total += len(data)
        self._kept += data[: self.limit - len(self._kept)]
        return bool(data)

    def drain(self, most: int) -> None:
        """Read what is there, at most about `most` bytes."""
        stop = self.total + most
        while self.total < stop and self.read():
            pass

    @property
    def kept(self) -> bytes:
        return bytes(self._kept)


class Shell:
    """`run(command)`: output, exit code, and a note when the shell had to be stopped or ended by itself."""

    def __init__(self, control: socket.socket, reaper: Reaper, watch: Watch, config: Mapping[str, Any]) -> None:
        self._control, self._reaper, self._watch, self._config = control, reaper, watch, config
        self._pid = self._pidfd = self._commands = self._status = self._out = -1

    def run(self, command: bytes, seconds: float, limit: int) -> tuple[dict[str, Any], bytes]:
        """Run one command line in the living shell."""
        if self._pid < 0:
            self._start()
        with suppress(BlockingIOError):  # markers that an earlier command forged
            os.read(self._status, CHUNK)
        output = Output(self._out, limit)
        try:
            os.write(self._commands, command + b"\0")
        except (BlockingIOError, BrokenPipeError):
            return self._stopped(output, "the shell did not answer")
        guard = Guard(self._control, self._reaper, self._watch, seconds)
        flood = int(self._config["output_bytes"])
        while True:
            ready, reason = guard.wait([self._out, self._status, self._pidfd])
            if self._out in ready:
                output.read()
            if self._status in ready:
                marker = os.read(self._status, CHUNK)
                if marker:
                    output.drain(flood)
                    return self._answer(output, _code(marker), "")
            if self._pidfd in ready:
                return self._ended(output)
            if output.total > flood:
                reason = f"too much output (over {flood} bytes)"
            if reason:
                return self._stopped(output, reason)

    def stop(self) -> None:
        """Forget the shell (its processes are killed elsewhere)."""
        for fd in (self._pidfd, self._commands, self._status, self._out):
            if fd >= 0:
                os.close(fd)
        self._pid = self._pidfd = self._commands = self._status = self._out = -1

    def _start(self) -> None:
        commands, self._commands = high_pipe()
        self._status, status = high_pipe()
        self._out, out = high_pipe()
        null = os.open("/dev/null", os.O_RDONLY | os.O_CLOEXEC)
        for fd in (self._commands, self._status, self._out):
            os.set_blocking(fd, False)
        moves = [(os.POSIX_SPAWN_DUP2, a, b) for a, b in ((null, 0), (out, 1), (out, 2), (status, 8), (commands, 9))]
        try:
            self._pid = os.posix_spawn(
                "/bin/bash",
                ["bash", "--noprofile", "--norc", "-c", LIMITS.format(**self._config["ulimit"]) + "\n" + LOOP],
                dict(self._config["env"]),
                file_actions=moves,
                setsid=True,
                setsigdef=[signal.SIGPIPE, signal.SIGXFSZ, signal.SIGINT],
            )
        finally:
            for fd in (commands, status, out, null):
                os.close(fd)
        self._reaper.watch(self._pid)
        self._pidfd = os.pidfd_open(self._pid)

    def _answer(self, output: Output, code: int, note: str) -> tuple[dict[str, Any], bytes]:
        return {"code": code, "note": note, "truncated": output.total > output.limit}, output.kept

    def _ended(self, output: Output) -> tuple[dict[str, Any], bytes]:
        output.drain(CHUNK)
        code = self._reaper.status(self._pid)
        self.stop()
        return self._answer(output, -1 if code is None else code, f"the shell ended (status {code}), a new one starts")

    def _stopped(self, output: Output, reason: str) -> tuple[dict[str, Any], bytes]:
        kill_all(self._reaper)
        output.drain(CHUNK)
        self.stop()
        answer, text = self._answer(output, -1, f"stopped: {reason}; a new shell starts")
        return {**answer, "stopped": reason}, text


def _code(marker: bytes) -> int:
    number = marker.split(b"\0")[0]
    return int(number) if number.isdigit() else -1
