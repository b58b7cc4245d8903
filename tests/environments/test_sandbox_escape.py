"""Nothing inside a sandbox reaches outside, as root and as an ordinary user."""

import asyncio
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from k3rl.environments.sandbox import SandboxPool, SandboxSpec
from k3rl.environments.sandbox.probes import attempt_all

pytestmark = pytest.mark.skipif(shutil.which("bwrap") is None, reason="bubblewrap is not installed")
ROOT = Path(__file__).parents[2]
NOBODY = 65534


async def test_no_way_out_as_this_user() -> None:
    spec = SandboxSpec()
    async with SandboxPool(spec, size=1) as pool, await pool.acquire() as box:
        assert await attempt_all(box, spec) == []


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user")
def test_every_domain_holds_as_an_ordinary_user() -> None:
    domains = ["code_repair", "office", "terminal"]
    assert domains == sorted(path.stem for path in (ROOT / "conf/environment").glob("*.yaml"))
    home = tempfile.mkdtemp(dir="/var/tmp")
    try:
        os.chown(home, NOBODY, NOBODY)
        become = ["setpriv", "--reuid", str(NOBODY), "--regid", str(NOBODY), "--clear-groups"]
        become += ["--inh-caps", "+dac_read_search", "--ambient-caps", "+dac_read_search"]
        done = subprocess.run(
            [*become, sys.executable, "-m", "tests.environments.as_user", "24", *domains],
            cwd=ROOT,
            env={"HOME": home, "PATH": os.environ["PATH"], "PYTHONDONTWRITEBYTECODE": "1"},
            capture_output=True,
            text=True,
            timeout=280,
            check=False,
        )
        said = done.stdout.splitlines()
        assert [line.split(":")[0] for line in said] == domains, done.stdout + done.stderr
        assert all(line.endswith(" rows hold") for line in said), done.stdout + done.stderr
    finally:
        shutil.rmtree(home)


async def test_two_sandboxes_do_not_see_each_other() -> None:
    async with SandboxPool(SandboxSpec(), size=2) as pool, await pool.acquire() as one, await pool.acquire() as two:
        await one.write({"secret": b"x"})
        await one.bash("cp secret /tmp; cp secret /dev/shm; (exec -a visible sleep 60) &")
        seen = await two.bash("ls /w /tmp /dev/shm; cat /proc/[0-9]*/cmdline | tr '\\0' ' '")
        assert "secret" not in seen.text
        assert "visible" not in seen.text
        await asyncio.gather(one.bash("kill -9 -1"), two.bash("true"))
        assert (await two.bash("echo $$")).code == 0
