"""Run as an ordinary user by test_sandbox_escape: all escapes, and the sandbox's use of the user's own cache folder.

The test lends this process the capability to read everything, as interpreter and code may lie under root's closed
home; it is dropped for children before the first container starts.
"""

import asyncio
import ctypes
import os
import sys

from k3rl.environments.sandbox import SandboxPool, SandboxSpec
from k3rl.environments.sandbox.probes import attempt_all
from k3rl.environments.sandbox.runtime import prepare

PR_CAP_AMBIENT, PR_CAP_AMBIENT_CLEAR_ALL = 47, 4


async def main() -> None:
    spec = SandboxSpec()
    runtime = prepare(spec)
    assert all(str(path).startswith(os.environ["HOME"]) for path, _ in runtime.binds), runtime.binds
    assert ctypes.CDLL(None).prctl(PR_CAP_AMBIENT, PR_CAP_AMBIENT_CLEAR_ALL, 0, 0, 0) == 0
    pool = SandboxPool(spec, size=1)
    async with await pool.acquire() as box:
        wrong = await attempt_all(box, spec)
    await pool.close()
    sys.stdout.write("\n".join(wrong) or "all closed")


asyncio.run(main())
