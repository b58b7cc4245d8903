"""Run as an ordinary user by test_sandbox_escape: the whole check of a domain, from the user's own cache folder.

The test lends this process the capability to read everything, as interpreter and code may lie under root's closed
home; it is dropped for children before the first container starts.
"""

import asyncio
import ctypes
import os
import sys

from k3rl.environments.check import run_check
from k3rl.environments.sandbox.runtime import prepare
from k3rl.environments.terminal import Terminal

PR_CAP_AMBIENT, PR_CAP_AMBIENT_CLEAR_ALL = 47, 4


async def main() -> None:
    domain = Terminal(sandboxes=4, graders=1)
    runtime = prepare(domain.sandbox_spec)
    assert all(str(path).startswith(os.environ["HOME"]) for path, _ in runtime.binds), runtime.binds
    assert ctypes.CDLL(None).prctl(PR_CAP_AMBIENT, PR_CAP_AMBIENT_CLEAR_ALL, 0, 0, 0) == 0
    rows = await run_check(domain, seeds=30)
    sys.stdout.write("\n".join(f"{row.name}: {row.value}" for row in rows if not row.ok) or f"{len(rows)} rows hold")


asyncio.run(main())
