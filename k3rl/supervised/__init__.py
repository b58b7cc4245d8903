"""Supervised training: data sources, stages, and the command `k3rl sft`."""
