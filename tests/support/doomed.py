"""`doomed.py MODULE NAME CALL WHEN train ...`: the k3rl command, in a process that kills itself.

The function or method NAME (`Class.method`) of MODULE kills the process by SIGKILL `before` or `after` its CALL-th call
(WHEN), or `during` it: a moment after it began, in a thread of its own.
"""

from __future__ import annotations

import functools
import importlib
import itertools
import os
import signal
import sys
import threading


def doom(module: str, name: str, call: int, when: str) -> None:
    """Wrap the named function."""
    *path, last = name.split(".")
    owner = functools.reduce(getattr, path, importlib.import_module(module))
    original = getattr(owner, last)
    calls = itertools.count(1)

    @functools.wraps(original)
    def wrapped(*arguments, **named):
        mine = next(calls) == call
        if mine and when == "before":
            die()
        if mine and when == "during":
            threading.Timer(0.01, die).start()
        result = original(*arguments, **named)
        if mine:
            die()
        return result

    setattr(owner, last, wrapped)


def die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


if __name__ == "__main__":
    module, name, call, when, *arguments = sys.argv[1:]
    doom(module, name, int(call), when)
    from k3rl.cli import main

    sys.exit(main(arguments))
