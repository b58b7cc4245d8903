"""The terminal domain: a bash in a sandbox, tasks on files, graded by what is left."""

from k3rl.environments.terminal.domain import Terminal

__all__ = ["Terminal"]
