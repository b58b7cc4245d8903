"""Ways out of a sandbox, tried from inside. Used as root by the tests and as an ordinary user by `as_user.py`."""

from __future__ import annotations

from k3rl.environments.sandbox import Sandbox

ATTACH = "python3 -c 'import ctypes; print(ctypes.CDLL(None).ptrace(16, 1, 0, 0))'"
CONNECT = "python3 -c 'import socket; socket.create_connection((\"192.0.2.1\", 80), 2)' 2>&1 | tail -n 1"
ALLOCATE = "python3 -c 'bytearray(4 << 30)' 2>&1 | tail -n 1"
MANY = "for i in 1 2 3 4 5 6; do python3 -c 'import time; x = bytearray(250 << 20); time.sleep(30)' & done; wait"

EXACT: dict[str, tuple[str, str]] = {
    "who it is": ("id -u; whoami; hostname; pwd", "1000\nagent\nbox\n/w\n"),
    "no host folder": ("ls /", "bin\ndev\netc\nlib\nlib64\nopt\nproc\nsbin\ntmp\nusr\nw\n"),
    "a small /etc": ("ls /etc", "alternatives\ngitconfig\ngroup\nhosts\npasswd\n"),
    "only loopback": ("tail -n +3 /proc/net/dev | cut -d: -f1 | tr -d ' '", "lo\n"),
    "no way out": (CONNECT, "OSError: [Errno 101] Network is unreachable\n"),
    "no other process": ("ls /proc | grep -c '^[0-9]'", "4\n"),  # PID 1, bash, ls, grep
    "no nested namespace": ("unshare --user true 2> /dev/null || echo refused", "refused\n"),
    "no nested container": ("bwrap --ro-bind / / true 2> /dev/null || echo refused", "refused\n"),
    "no mount": ("mount -t tmpfs none /tmp 2> /dev/null || echo refused", "refused\n"),
    "no capability": ("grep -c 'Cap...:.0000000000000000' /proc/self/status", "5\n"),
    "read-only outside": (
        "for d in / /usr /usr/bin /etc /opt /opt/box /dev /proc; do touch $d/x 2> /dev/null && echo $d; done; echo end",
        "end\n",
    ),
    "PID 1 survives": ("kill -9 1; kill -INT 1; kill -TERM 1; kill -STOP 1; echo $?", "0\n"),
    "PID 1 is closed": (
        "cat /proc/1/environ /proc/1/mem 2> /dev/null || ls /proc/1/fd 2> /dev/null || echo no",
        "no\n",
    ),
    "PID 1 is not traced": (ATTACH, "-1\n"),
    "memory of one process": (ALLOCATE, "MemoryError\n"),
    "size of a file": (
        "bash -c 'head -c 100000000 /dev/zero > big' 2> /dev/null; stat -c %s big; rm big",
        "16777216\n",
    ),
    "size of the folder": (
        "for i in 1 2 3 4; do head -c 16000000 /dev/zero > big$i; done 2> /dev/null; du -s --block-size=1M | cut -f1;"
        " rm -f big*",
        "32\n",
    ),
    "no device but the plain ones": (
        "ls /dev | tr '\\n' ' '",
        "core fd full mqueue null ptmx pts random shm stderr stdin stdout tty urandom zero ",
    ),
}
STOPPED: dict[str, tuple[str, str]] = {
    "memory of all processes": (MANY, "out of memory"),
    "number of files": ("for i in {1..20000}; do : > f$i; done; sleep 3", "too many files"),
    "output": ("yes", "too much output"),
    "time": ("sleep 60", "out of time"),
}


async def attempt_all(box: Sandbox) -> list[str]:
    """What went otherwise than it should, one line each."""
    wrong = []
    for name, (command, expected) in EXACT.items():
        result = await box.bash(command, seconds=20)
        if result.text != expected:
            wrong.append(f"{name}: {result.text!r} instead of {expected!r}")
    for name, (command, reason) in STOPPED.items():
        result = await box.bash(command, seconds=2 if name == "time" else 30)
        await box.bash("rm -f f*")
        if reason not in result.note:
            wrong.append(f"{name}: {result.note!r} {result.text[-200:]!r} does not say {reason!r}")
    await box.bash("x() { x | x & }; x", seconds=2)  # a fork bomb: whatever it answers, the sandbox must live on
    await box.kill()
    result = await box.bash("echo alive")
    if result.text != "alive\n":
        wrong.append(f"after a fork bomb: {result!r}")
    return wrong
