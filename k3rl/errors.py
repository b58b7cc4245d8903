"""Errors by whose fault they are.

A policy's bad output is never an exception: it is an observation in the trajectory. What is left are the user's
mistakes (refused at once, one line), broken environments, and infrastructure that failed (retried, then told).
"""


class K3rlError(Exception):
    """Root of everything k3rl raises on purpose; its text says what, where and what to do."""


class UserError(K3rlError, ValueError):
    """Something the user can put right: a config key, a path, a missing package. Exit status 2."""


class ConfigError(UserError):
    """A configuration that cannot be run, with the arithmetic or the unknown key in the text."""


class CheckpointError(UserError):
    """A checkpoint that is missing, truncated, corrupt or of another architecture."""


class AgentFault(K3rlError):
    """What the agent did makes an operation impossible (a full disk, a folder in a file's place): the environment
    turns it into an observation, or scoring into a 0."""


class EnvironmentFault(K3rlError):
    """A domain's own code failed (a bug in the task, the tools or the scoring): told, never scored."""


class InfrastructureError(K3rlError):
    """Something beneath us failed (a dead process, a full disk): retried, then told."""


class SandboxError(InfrastructureError):
    """A sandbox could not start, died, or stopped answering."""


class PolicyLostError(InfrastructureError):
    """The process that samples died. Not for an episode to retry: its group is run again with a new process."""


class SyncError(InfrastructureError):
    """A weight publication did not arrive or did not verify after applying."""


class DeadlineError(InfrastructureError):
    """A wait ran past its time limit; the text names what was waited for."""
