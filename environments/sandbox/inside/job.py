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
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any

from .guard import Guard
from .processes import Reaper, Watch
from .shell import CHUNK, Output, high_pipe

RESULT_BYTES = 32 * 1024 * 1024


def run(
    request: Mapping[str, Any], control: socket.socket, reaper: Reaper, watch: Watch, config: Mapping[str, Any]
) -> tuple[dict[str, Any], bytes]:
    """The reply: `kind` is value, lines, raised, time, died or flood; the blob is what the kind says, or the output.

    With `lines` the function is given a second argument, `send(value)`, and whatever it may run, itself or through code
    that nobody trusts, the reply is the JSON lines that came, at most `limit` bytes, however the process ended.
    """
    lines = request["lines"]
    results, result_end = high_pipe()
    outputs, output_end = high_pipe()
    pid = os.fork()
    if pid == 0:
        if lines:
            _lines_child(request, result_end, config)
        _child(request, control, result_end, output_end, config)
    os.close(result_end)
    os.close(output_end)
    os.set_blocking(results, False)
    os.set_blocking(outputs, False)
    reaper.watch(pid)
    pidfd = os.pidfd_open(pid)
    result, output = Output(results, request["limit"] if lines else RESULT_BYTES), Output(outputs, request["limit"])
    guard = Guard(control, reaper, watch, request["seconds"])
    try:
        if reason := _wait(pidfd, result, output, guard, to_the_end=not lines):
            return {"kind": "time", "text": reason}, output.kept
        return ({"kind": "lines"}, result.kept) if lines else _verdict(reaper.status(pid), result, output)
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


def _wait(pidfd: int, result: Output, output: Output, guard: Guard, *, to_the_end: bool) -> str:
    """Read until the process is dead (or, unless `to_the_end`, has closed its result or sent enough); or why not."""
    open_fds = {result.fd: result, output.fd: output}
    while True:
        ready, reason = guard.wait([pidfd, *open_fds])
        for fd in ready:
            if fd in open_fds and not open_fds[fd].read():
                del open_fds[fd]
        if pidfd in ready or (not to_the_end and (result.fd not in open_fds or result.total >= result.limit)):
            break
        if reason:
            return reason
    for pipe in open_fds.values():
        pipe.drain(RESULT_BYTES)
    return ""


def _verdict(code: int | None, result: Output, output: Output) -> tuple[dict[str, Any], bytes]:
    if code == 0 and result.total > RESULT_BYTES:
        return {"kind": "flood", "text": f"a result of over {RESULT_BYTES} bytes"}, output.kept
    if code == 0 and result.kept:
        return {"kind": "value"}, result.kept
    if code == 3:
        return {"kind": "raised", "text": result.kept.decode(errors="replace")}, output.kept
    return {"kind": "died", "text": f"signal {-code}" if code and code < 0 else f"status {code}"}, output.kept


def confine(config: Mapping[str, Any]) -> None:
    """Make this forked child an ordinary process of the episode: session, signals, limits, environment, folder."""
    os.setsid()
    for signum in (signal.SIGINT, signal.SIGPIPE, signal.SIGXFSZ):
        signal.signal(signum, signal.SIG_DFL)
    for name, value in config["rlimits"].items():
        resource.setrlimit(getattr(resource, name), (value, value))
    os.environ.clear()
    os.environ.update(config["env"])
    os.chdir("/w")


def _child(
    request: Mapping[str, Any], control: socket.socket, result_end: int, output_end: int, config: Mapping[str, Any]
) -> None:
    """Never returns. Exit status 0: a value was written; 3: the function raised, its last line was written."""
    status = 4
    try:
        control.close()
        os.dup2(os.open("/dev/null", os.O_RDONLY), 0)
        os.dup2(output_end, 1)
        os.dup2(output_end, 2)
        confine(config)
        data, status = json.dumps(_function(request)(request["argument"])).encode(), 0
    except BaseException as error:  # whatever it was, it must be told: this process has no other way out
        data, status = f"{type(error).__name__}: {error}".encode()[:CHUNK], 3
        with suppress(Exception):  # standard error may be closed by the job
            traceback.print_exc()
    with suppress(Exception):  # the same for flushing
        sys.stdout.flush()
        sys.stderr.flush()
    try:
        _write(result_end, data)
    finally:
        os._exit(status)


def _lines_child(request: Mapping[str, Any], result_end: int, config: Mapping[str, Any]) -> None:
    """Never returns. Only the pipe and /dev/null are open, as code may run here that nobody trusts."""
    try:
        null = os.open("/dev/null", os.O_RDWR)
        for fd in (0, 1, 2):
            os.dup2(null, fd)
        pipe = os.dup2(result_end, 3)
        os.closerange(4, 1024)
        confine(config)
        dump, write = json.dumps, _write

        def send(value: Any) -> None:
            write(pipe, dump(value).encode() + b"\n")

        _function(request)(request["argument"], send)
    finally:
        os._exit(0)


def _function(request: Mapping[str, Any]) -> Callable[..., Any]:
    module, _, name = request["target"].partition(":")
    function: Callable[..., Any] = getattr(importlib.import_module(module), name)
    return function


def _write(fd: int, data: bytes) -> None:
    view = memoryview(data)
    while view:
        view = view[os.write(fd, view) :]
