"""Ray for one command: join a cluster, or start one here and end it with the command."""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator
from contextlib import contextmanager

from k3rl.config import RaySection
from k3rl.errors import InfrastructureError


@contextmanager
def cluster(settings: RaySection) -> Iterator[None]:
    """A connection to Ray while the block runs. A cluster started here dies with this process, however it dies."""
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")
    import ray

    local = {
        "num_cpus": os.cpu_count(),
        "object_store_memory": settings.object_store_mib * 2**20,
        "include_dashboard": False,
    }
    try:
        ray.init(
            address=settings.address or "local",  # without an address Ray would join any cluster it finds
            logging_level=logging.ERROR,
            log_to_driver=True,
            **({} if settings.address else local),
        )
    except (ConnectionError, RuntimeError, ValueError, OSError) as error:
        where = settings.address or "this machine"
        raise InfrastructureError(f"Ray could not start or join at {where}: {' '.join(str(error).split())}") from error
    try:
        yield
    finally:
        ray.shutdown()
