"""Repairing bugs in small generated repositories, judged by real tests and by hidden calls."""

from k3rl.environments.code_repair.domain import CodeRepair

__all__ = ["CodeRepair"]
