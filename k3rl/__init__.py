"""k3rl: joint multi-domain reinforcement learning for mixture-of-experts agent models."""

__version__ = "0.1.0"
