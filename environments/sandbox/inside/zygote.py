"""PID 1 of a container: a small server on the control socket, immune to every signal from inside.

It does the imports once and forks what the episode asks for: a bash, Python jobs. It cannot be traced or read by the
agent's processes though they have its uid (PR_SET_DUMPABLE 0); no child inherits the control socket.
"""

from __future__ import annotations

import ctypes
import gc
import importlib
import os
import resource
import select
import signal
import socket
import sys
from collections.abc import Mapping
from typing import Any

from . import files, job
from .guard import exit_without_owner
from .processes import Reaper, Watch, kill_all, others
from .shell import Shell
from .wire import encode, receive
from .worker import Worker

PR_SET_DUMPABLE = 4
IDLE_LOOK = 0.25  # seconds between looks at the totals while background processes run between requests


class Zygote:
    """Answers one request after another until the owner closes the socket."""

    def __init__(self, control: socket.socket, config: Mapping[str, Any]) -> None:
        self._control, self._config = control, config
        self._reaper = Reaper()
        self._watch = Watch(
            memory=config["total_memory"],
            cpu_seconds=config["cpu_seconds"],
            files=config["files"],
            folders=tuple(files.FOLDERS),
        )
        self._shell = Shell(control, self._reaper, self._watch, config)
        self._worker = Worker(control, self._reaper, self._watch, config)
        self._foreign = False  # whether something other than resident jobs has run since the last reset
        self._note = ""  # why background processes were stopped between two requests
        self._own_limits, self._keys = own_limits(), keys()

    def serve(self) -> None:
        """Run for ever."""
        while True:
            self._wait_idle()
            try:
                header, blob = receive(self._control)
            except EOFError:
                os._exit(0)
            try:
                reply, data = self._answer(header, blob)
            except Exception as error:  # told to the owner, who discards this container
                reply, data = {"error": f"{type(error).__name__}: {error}"}, b""
            self._control.sendall(encode(reply, data))

    def _answer(self, header: dict[str, Any], blob: bytes) -> tuple[dict[str, Any], bytes]:
        match header["op"]:
            case "bash":
                self._end_worker()
                return self._bash(header, blob)
            case "python" if header["resident"] and not self._foreign:
                return self._worker.run(header)
            case "python":
                self._end_worker()
                return job.run(header, self._control, self._reaper, self._watch, self._config)
            case "write":
                try:
                    files.write(header, blob)
                except OSError as error:
                    return {"fault": f"{error.strerror or error}: {error.filename or ''}".rstrip(": ")}, b""
                return {}, b""
            case "tree":
                return files.tree(header["top"], header["limit_bytes"], header["limit_entries"])
            case "kill":
                self._shell.stop()
                self._worker.stop()
                return {"done": kill_all(self._reaper)}, b""
            case "reset":
                return {"dirt": self._reset()}, b""
        raise ValueError(f"unknown request {header['op']!r}")

    def _end_worker(self) -> None:
        """Whatever runs from now on until the reset may be the agent's: it must not meet the worker."""
        self._foreign = True
        self._worker.stop()

    def _bash(self, header: dict[str, Any], blob: bytes) -> tuple[dict[str, Any], bytes]:
        note, self._note = self._note, ""
        reply, text = self._shell.run(blob, header["seconds"], header["limit"])
        if note:
            reply["note"] = f"{note}; {reply['note']}".rstrip("; ")
        return reply, text

    def _wait_idle(self) -> None:
        """Wait for a request; meanwhile collect the dead and stop background processes that exceed the totals."""
        while True:
            self._reaper.reap()
            busy = len(others()) > 1  # more than a waiting shell
            ready, _, _ = select.select([self._control], [], [], IDLE_LOOK if busy else None)
            if ready:
                return exit_without_owner(self._control)
            if reason := self._watch.check():
                self._shell.stop()
                kill_all(self._reaper)
                self._note = f"background processes stopped: {reason}"

    def _reset(self) -> str:
        """Make the container as new; what is left that should not be, or ''."""
        self._shell.stop()
        self._note = ""
        if self._foreign or self._worker.worn() or others() != self._worker.processes():
            self._worker.stop()
        if not self._worker.processes() and not kill_all(self._reaper):
            return f"processes {others()} would not die"
        try:
            files.empty()
        except (OSError, RecursionError) as error:
            return f"files would not go: {error}"
        if left := leftovers():
            return left
        if own_limits() != self._own_limits:
            return "the limits of PID 1 were changed"
        if keys() - self._keys:
            return "keys in the kernel's key store"
        self._watch.restart()
        self._foreign = False
        return ""


def own_limits() -> tuple[Any, ...]:
    """What a process of the same uid may change of PID 1 from outside it."""
    names = [name for name in dir(resource) if name.startswith("RLIMIT_")]
    limits = tuple(resource.getrlimit(getattr(resource, name)) for name in names)
    return (*limits, os.getpriority(os.PRIO_PROCESS, 0), frozenset(os.sched_getaffinity(0)), os.sched_getscheduler(0))


def keys() -> frozenset[str]:
    """Serial numbers in the kernel's key store, which outlives processes and which any program may write to."""
    if not os.path.exists("/proc/keys"):
        return frozenset()
    with open("/proc/keys") as file:
        return frozenset(line.split()[0] for line in file)


def leftovers() -> str:
    """Files and System V or POSIX objects that outlive processes; '' if there are none."""
    for folder in (*files.FOLDERS, "/dev/mqueue"):
        if names := os.listdir(folder):
            return f"{folder} holds {names[:3]}"
    for kind in ("shm", "sem", "msg"):
        with open(f"/proc/sysvipc/{kind}") as file:
            if len(file.readlines()) > 1:
                return f"System V {kind} objects"
    return ""


def main(fd: int) -> None:
    """Start serving on the inherited descriptor: harden, import, tell that it is ready."""
    control = socket.socket(fileno=fd)
    control.set_inheritable(False)
    if ctypes.CDLL(None).prctl(PR_SET_DUMPABLE, 0, 0, 0, 0) != 0:
        raise OSError("PR_SET_DUMPABLE was refused")
    signal.signal(signal.SIGINT, signal.SIG_DFL)  # for PID 1 the default is: not delivered
    config, _ = receive(control)
    sys.path[:0] = config["path"]
    try:
        for name in config["preload"]:
            importlib.import_module(name)
    except Exception as error:
        control.sendall(encode({"error": f"preloading failed: {type(error).__name__}: {error}"}))
        os._exit(1)
    gc.freeze()  # forked children do not copy the pages of what is imported
    os.chdir("/")
    control.sendall(encode({"ready": True}))
    Zygote(control, config).serve()
