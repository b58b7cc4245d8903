"""Run as a script by `k3rl.cluster`: reads a Ray session's folder from its standard input, waits for the end of that,
then ends every process that writes the session's logs/*.out, as all that Ray starts do (and drivers do not).

Most of Ray's processes follow a killed driver at once, but its agents only after a minute, in which they hold memory
that the same command, started again, may need.
"""

from __future__ import annotations

import contextlib
import os
import signal
import stat
import sys
import time
from pathlib import Path

ROUNDS = 50  # what is being killed may be starting more


def writers(session: Path) -> list[int]:
    """Living processes that have one of the session's logs/*.out open for writing."""
    return [int(process.name) for process in Path("/proc").glob("[0-9]*") if _writes(process, session / "logs")]


def _writes(process: Path, logs: Path) -> bool:
    with contextlib.suppress(OSError):  # it ended while we looked, or it is another user's
        for file in (process / "fd").iterdir():
            target = file.readlink()
            if target.parent == logs and target.suffix == ".out" and file.lstat().st_mode & stat.S_IWUSR:
                return True
    return False


def reap(session: Path) -> None:
    """Kill until none is left."""
    for _ in range(ROUNDS):
        left = writers(session)
        if not left:
            return
        for process in left:
            with contextlib.suppress(ProcessLookupError):
                os.kill(process, signal.SIGKILL)
        time.sleep(0.1)


if __name__ == "__main__":
    path = sys.stdin.read()
    if path:  # empty: the driver died before its cluster had begun
        reap(Path(path))
