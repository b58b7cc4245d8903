"""Ray for one command: join a cluster, or start one here and end it with the command."""

from __future__ import annotations

import logging
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from k3rl.config import RaySection
from k3rl.errors import InfrastructureError

REAP_SECONDS = 30.0


@contextmanager
def cluster(settings: RaySection) -> Iterator[None]:
    """A connection to Ray while the block runs. A cluster started here dies with this process, however it dies."""
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")
    os.environ.setdefault("RAY_IGNORE_UNHANDLED_ERRORS", "1")  # a group has two results: its error is told once, by us
    os.environ.setdefault("RAY_worker_niceness", "0")  # Ray's default of 15 lets anything else on the machine go first
    import ray

    try:
        if settings.address:
            _connect(address=settings.address)
            yield
        else:
            with _local(settings):
                yield
    finally:
        ray.shutdown()


@contextmanager
def _local(settings: RaySection) -> Iterator[None]:
    """A cluster of this machine, and a process that ends what is left of it when this one is gone."""
    import ray

    # Its standard input ends when this process does. A session of its own: Ctrl-C must not reach it.
    command = [sys.executable, "-I", str(Path(__file__).with_name("reaper.py"))]
    with subprocess.Popen(command, stdin=subprocess.PIPE, start_new_session=True, text=True) as reaper:
        context = _connect(
            address="local",  # without an address Ray would join any cluster it finds
            num_cpus=os.cpu_count(),
            object_store_memory=settings.object_store_mib * 2**20,
            include_dashboard=False,
        )
        assert reaper.stdin is not None
        reaper.stdin.write(context.address_info["session_dir"])
        reaper.stdin.flush()
        try:
            yield
        finally:
            ray.shutdown()
            reaper.communicate(timeout=REAP_SECONDS)


def _connect(address: str, **settings: Any) -> Any:
    import ray

    terminated = signal.getsignal(signal.SIGTERM)
    try:
        context = ray.init(address=address, logging_level=logging.ERROR, log_to_driver=True, **settings)
        signal.signal(signal.SIGTERM, terminated)  # Ray's own, which it has just put there, prints its inner state
        return context
    except (ConnectionError, RuntimeError, ValueError, OSError) as error:
        where = "this machine" if address == "local" else address
        raise InfrastructureError(f"Ray could not start or join at {where}: {' '.join(str(error).split())}") from error
