"""Versioned weight publication: full copies, verified after applying."""

from k3rl.sync.manifest import Canary, Entry
from k3rl.sync.publication import Publication, apply, publish

__all__ = ["Canary", "Entry", "Publication", "apply", "publish"]
