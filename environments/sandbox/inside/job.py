"""A Python function in a forked child of PID 1, whose imports are done: limits, a captured output, a JSON result."""

from __future__ import annotations

import importlib
import json
import os
import resource
import signal
import socket
import sys
import time
import traceback
from collections.abc import Mapping
from contextlib import suppress
from typing import Any

from .guard import Guard
from .processes import Reaper, Watch
from .shell import CHUNK, Output, high_pipe

RESULT_BYTES = 32 * 1024 * 1024


def run(
    request: Mapping[str, Any], control: socket.socket, reaper: Reaper, watch: Watch, config: Mapping[str, Any]
) -> tuple[dict[str, Any], bytes]:
    """The reply: `kind` is value, raised, time, died or flood; the blob is the JSON value, or the output."""
    results, result_end = high_pipe()
    outputs, output_end = high_pipe()
    pid = os.fork()
    if pid == 0:
        _child(request, control, result_end, output_end, config)
    os.close(result_end)
    os.close(output_end)
    os.set_blocking(results, False)
    os.set_blocking(outputs, False)
    reaper.watch(pid)
    pidfd = os.pidfd_open(pid)
    result, output = Output(results, RESULT_BYTES), Output(outputs, int(request["limit"]))
    try:
        return _collect(pid, pidfd, result, output, Guard(control, reaper, watch, request["seconds"]), reaper)
    finally:
        _end_group(pid, reaper)
        for fd in (pidfd, results, outputs):
            os.close(fd)


def _end_group(pid: int, reaper: Reaper) -> None:
    """Kill what the job left behind in its process group, and collect it."""
    with suppress(ProcessLookupError):  # the group is empty
        while True:
            os.killpg(pid, signal.SIGKILL)
            reaper.reap()
            time.sleep(0.0005)


def _collect(
    pid: int, pidfd: int, result: Output, output: Output, guard: Guard, reaper: Reaper
) -> tuple[dict[str, Any], bytes]:
    open_fds = {result.fd: result, output.fd: output}
    while True:
        ready, reason = guard.wait([pidfd, *open_fds])
        for fd in ready:
            if fd in open_fds and not open_fds[fd].read():
                del open_fds[fd]
        if pidfd in ready:
            break
        if reason:
            return {"kind": "time", "text": reason}, output.kept
    for pipe in open_fds.values():
        pipe.drain(RESULT_BYTES)
    code = reaper.status(pid)
    if code == 0 and result.total > RESULT_BYTES:
        return {"kind": "flood", "text": f"a result of over {RESULT_BYTES} bytes"}, output.kept
    if code == 0 and result.kept:
        return {"kind": "value"}, result.kept
    if code == 3:
        return {"kind": "raised", "text": result.kept.decode(errors="replace")}, output.kept
    return {"kind": "died", "text": f"signal {-code}" if code and code < 0 else f"status {code}"}, output.kept


def _child(
    request: Mapping[str, Any], control: socket.socket, result_end: int, output_end: int, config: Mapping[str, Any]
) -> None:
    """Never returns. Exit status 0: a value was written; 3: the function raised, its last line was written."""
    status = 4
    try:
        control.close()
        os.setsid()
        os.dup2(os.open("/dev/null", os.O_RDONLY), 0)
        os.dup2(output_end, 1)
        os.dup2(output_end, 2)
        for signum in (signal.SIGINT, signal.SIGPIPE, signal.SIGXFSZ):
            signal.signal(signum, signal.SIG_DFL)
        for name, value in config["rlimits"].items():
            resource.setrlimit(getattr(resource, name), (value, value))
        os.environ.clear()
        os.environ.update(config["env"])
        os.chdir("/w")
        module, _, function = request["target"].partition(":")
        value = getattr(importlib.import_module(module), function)(request["argument"])
        data, status = json.dumps(value).encode(), 0
    except BaseException as error:  # whatever it was, it must be told: this process has no other way out
        data, status = f"{type(error).__name__}: {error}".encode()[:CHUNK], 3
        with suppress(Exception):  # standard error may be closed by the job
            traceback.print_exc()
    with suppress(Exception):  # the same for flushing
        sys.stdout.flush()
        sys.stderr.flush()
    try:
        view = memoryview(data)
        while view:
            view = view[os.write(result_end, view) :]
    finally:
        os._exit(status)
