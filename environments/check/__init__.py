"""Everything that must hold for a domain, as rows of a table: `rows = await run_check(domain, seeds=200)`."""

from k3rl.environments.check.rows import Row
from k3rl.environments.check.run import run_check

__all__ = ["Row", "run_check"]
