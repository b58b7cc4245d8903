"""The inference engine: sessions over fixed slots, results that depend on the request alone."""

from k3rl.inference.async_engine import AsyncEngine, AsyncSession
from k3rl.inference.engine import Engine
from k3rl.inference.rules import SampledTurn, Sampling, TurnRules

__all__ = ["AsyncEngine", "AsyncSession", "Engine", "SampledTurn", "Sampling", "TurnRules"]
