"""Places to run what an agent writes: bubblewrap containers kept warm in a pool."""

from k3rl.environments.sandbox.pool import JobFailure, Sandbox, SandboxPool
from k3rl.environments.sandbox.spec import BashResult, Entry, SandboxSpec, Tree

__all__ = ["BashResult", "Entry", "JobFailure", "Sandbox", "SandboxPool", "SandboxSpec", "Tree"]
