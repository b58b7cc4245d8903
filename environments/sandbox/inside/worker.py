"""Python functions in one process that lives on from job to job and from episode to episode.

A forked job pays milliseconds for the pages it copies; this one pays once. It is only there while nothing of an agent's
can run in the container: PID 1 ends it before it starts a shell or a forked job, and after any failure.
"""

from __future__ import annotations

import importlib
import json
import os
import signal
import socket
import traceback
from collections.abc import Mapping
from contextlib import suppress
from typing import Any

from .guard import Guard
from .job import confine
from .processes import Reaper, Watch, cpu_seconds
from .wire import HEAD, decode, encode, receive, sizes


class Worker:
    """`run(request)` replies as job.run does: `kind` is value, raised, time or died."""

    def __init__(self, control: socket.socket, reaper: Reaper, watch: Watch, config: Mapping[str, Any]) -> None:
        self._control, self._reaper, self._watch, self._config = control, reaper, watch, config
        self._pid = -1
        self._channel: socket.socket | None = None

    def processes(self) -> list[int]:
        """Its process, if it lives: all that `others()` may name."""
        return [self._pid] if self._pid >= 0 else []

    def worn(self) -> bool:
        """Whether so much of its CPU limit is used that the next episode should have a new one."""
        return self._pid >= 0 and cpu_seconds(self._pid) > self._config["cpu_seconds"] / 2

    def run(self, request: Mapping[str, Any]) -> tuple[dict[str, Any], bytes]:
        """One job."""
        channel = self._channel or self._start()
        with suppress(BrokenPipeError, ConnectionResetError):  # it died while idle, which _reply will see
            channel.sendall(encode({"target": request["target"], "argument": request["argument"]}))
        reply, blob = self._reply(channel, Guard(self._control, self._reaper, self._watch, request["seconds"]))
        if reply["kind"] != "value":
            self.stop()  # its state may be halfway between two
        return reply, blob

    def stop(self) -> None:
        """End it, if it lives."""
        if self._channel is None:
            return
        with suppress(ProcessLookupError):  # dead and collected already
            os.kill(self._pid, signal.SIGKILL)
        with suppress(ChildProcessError):  # the same
            os.waitpid(self._pid, 0)
        self._channel.close()
        self._pid, self._channel = -1, None

    def _start(self) -> socket.socket:
        self._channel, theirs = socket.socketpair()
        self._pid = os.fork()
        if self._pid == 0:
            _serve(theirs, self._config)
        theirs.close()
        return self._channel

    def _reply(self, channel: socket.socket, guard: Guard) -> tuple[dict[str, Any], bytes]:
        data = bytearray()
        while True:
            ready, reason = guard.wait([channel.fileno()])
            if ready:
                part = b""
                with suppress(ConnectionResetError):  # it died with a request unread
                    part = channel.recv(1 << 20)
                if not part:
                    return {"kind": "died", "text": "the worker ended"}, b""
                data += part
                if len(data) >= HEAD.size:
                    text, blob = sizes(bytes(data[: HEAD.size]))
                    if len(data) == HEAD.size + text + blob:
                        return decode(bytes(data[HEAD.size :]), text)
            if reason:
                return {"kind": "time", "text": reason}, b""


def _serve(channel: socket.socket, config: Mapping[str, Any]) -> None:
    """Never returns; ends with PID 1's end of the channel."""
    try:
        null = os.open("/dev/null", os.O_RDWR)
        for fd in (0, 1, 2):
            os.dup2(null, fd)
        keep = channel.fileno()
        os.closerange(3, keep)
        os.closerange(keep + 1, 1024)
        confine(config)
        while True:
            channel.sendall(_answer(receive(channel)[0]))
    finally:
        os._exit(0)


def _answer(request: Mapping[str, Any]) -> bytes:
    try:
        module, _, function = request["target"].partition(":")
        value = getattr(importlib.import_module(module), function)(request["argument"])
        return encode({"kind": "value"}, json.dumps(value).encode())
    except BaseException as error:  # whatever it was, it is told to the owner
        return encode({"kind": "raised", "text": f"{type(error).__name__}: {error}"}, traceback.format_exc().encode())
