"""Run as an ordinary user by test_sandbox_escape: the whole check of every domain, from the user's own cache folder.

The test lends this process the capability to read everything, as interpreter and code may lie under root's closed
home; it is dropped for children before the first container starts.
"""

import asyncio
import ctypes
import os
import sys

from k3rl.domains import known_domains, make_domain
from k3rl.environments.check import run_check
from k3rl.environments.sandbox.runtime import prepare

PR_CAP_AMBIENT, PR_CAP_AMBIENT_CLEAR_ALL = 47, 4


async def check(name: str, seeds: int) -> str:
    """What fails, or how many rows hold."""
    domain = make_domain(name, known_domains()[name])
    rows = await run_check(domain, seeds=seeds)
    return "\n".join(f"{row.name}: {row.value}" for row in rows if not row.ok) or f"{len(rows)} rows hold"


def main(seeds: int, names: list[str]) -> None:
    for name in names:
        runtime = prepare(make_domain(name, known_domains()[name]).sandbox_spec)  # type: ignore[attr-defined]
        assert all(str(path).startswith(os.environ["HOME"]) for path, _ in runtime.binds), runtime.binds
    assert ctypes.CDLL(None).prctl(PR_CAP_AMBIENT, PR_CAP_AMBIENT_CLEAR_ALL, 0, 0, 0) == 0
    for name in names:
        sys.stdout.write(f"{name}: {asyncio.run(check(name, seeds))}\n")


main(int(sys.argv[1]), sys.argv[2:])
