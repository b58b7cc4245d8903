"""Ways out of a sandbox, tried from inside: what `k3rl env check` and the tests run for a spec."""

from __future__ import annotations

from k3rl.environments.sandbox.pool import Sandbox
from k3rl.environments.sandbox.spec import MIB, SandboxSpec

ATTACH = "python3 -c 'import ctypes; print(ctypes.CDLL(None).ptrace(16, 1, 0, 0))'"
CONNECT = "python3 -c 'import socket; socket.create_connection((\"192.0.2.1\", 80), 2)' 2>&1 | tail -n 1"
ALLOCATE = "python3 -c 'bytearray({bytes})' 2>&1 | tail -n 1"
HOLD = "for i in {{1..{count}}}; do python3 -c 'import time; x = bytearray({bytes}); time.sleep(30)' & done; wait"


def refused(spec: SandboxSpec) -> dict[str, tuple[str, str]]:
    """By name: a command, and what it must print where everything is closed."""
    folder = spec.work_bytes // MIB
    return {
        "who it is": ("id -u; whoami; hostname; pwd", "1000\nagent\nbox\n/w\n"),
        "no host folder": (
            "ls / | grep -v -E '^(s?bin|lib(32|64|x32)?)$' | tr '\\n' ' '",
            "dev etc opt proc tmp usr w ",
        ),
        "a small /etc": ("ls /etc", "alternatives\ngitconfig\ngroup\nhosts\npasswd\n"),
        "only loopback": ("tail -n +3 /proc/net/dev | cut -d: -f1 | tr -d ' '", "lo\n"),
        "no way out": (CONNECT, "OSError: [Errno 101] Network is unreachable\n"),
        "no other process": ("set -- /proc/[0-9]*; echo $#", "2\n"),  # PID 1 and this bash
        "no nested namespace": ("unshare --user true 2> /dev/null || echo refused", "refused\n"),
        "no nested container": ("bwrap --ro-bind / / true 2> /dev/null || echo refused", "refused\n"),
        "no mount": ("mount -t tmpfs none /tmp 2> /dev/null || echo refused", "refused\n"),
        "no capability": ("grep -c 'Cap...:.0000000000000000' /proc/self/status", "5\n"),
        "read-only outside": (
            "for d in / /usr /usr/bin /etc /opt /opt/box /dev /proc; do touch $d/x 2> /dev/null && echo $d; done",
            "",
        ),
        "PID 1 survives": ("kill -9 1; kill -INT 1; kill -TERM 1; kill -STOP 1; echo $?", "0\n"),
        "PID 1 is closed": (
            "cat /proc/1/environ /proc/1/mem 2> /dev/null || ls /proc/1/fd 2> /dev/null || echo no",
            "no\n",
        ),
        "PID 1 is not traced": (ATTACH, "-1\n"),
        "memory of one process": (ALLOCATE.format(bytes=spec.memory), "MemoryError\n"),
        "size of a file": (
            f"bash -c 'head -c {2 * spec.file_bytes} /dev/zero > big' 2> /dev/null; stat -c %s big; rm big",
            f"{min(spec.file_bytes, spec.work_bytes)}\n",
        ),
        "size of the folder": (
            f"for i in 1 2 3 4; do head -c {spec.work_bytes // 3} /dev/zero > big$i; done 2> /dev/null;"
            " du -s --block-size=1M | cut -f1; rm -f big*",
            f"{folder}\n",
        ),
        "only plain devices": (
            "ls /dev | tr '\\n' ' '",
            "core fd full mqueue null ptmx pts random shm stderr stdin stdout tty urandom zero ",
        ),
    }


def stopped(spec: SandboxSpec) -> dict[str, tuple[str, float, str]]:
    """By name: a command that must be stopped, its time limit in seconds, and the reason that must be given."""
    part = spec.memory // 2
    hold = HOLD.format(count=spec.total_memory // part + 2, bytes=part)
    return {
        "memory of all processes": (hold, 30, "out of memory"),
        "number of files": (f"for i in {{1..{4 * spec.files}}}; do : > f$i; done; sleep 5", 30, "too many files"),
        "output": ("yes", 30, "too much output"),
        "time": ("sleep 60", 1, "out of time"),
    }


async def attempt_all(box: Sandbox, spec: SandboxSpec) -> list[str]:
    """Everything; what went otherwise than it should, one line each."""
    wrong = []
    for name, (command, expected) in refused(spec).items():
        result = await box.bash(command, seconds=20)
        if result.text != expected:
            wrong.append(f"{name}: {result.text!r} instead of {expected!r}")
    for name, (command, seconds, reason) in stopped(spec).items():
        result = await box.bash(command, seconds=seconds)
        await box.bash("rm -rf /w/*")
        if reason not in result.note:
            wrong.append(f"{name}: {result.note!r} {result.text[-200:]!r} does not say {reason!r}")
    await box.bash("x() { x | x & }; x", seconds=2)  # a fork bomb: whatever it answers, the sandbox must live on
    await box.kill()
    result = await box.bash("echo alive")
    if result.text != "alive\n":
        wrong.append(f"after a fork bomb: {result!r}")
    return wrong
