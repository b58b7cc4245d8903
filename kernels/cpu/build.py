"""The C++ decode step and sampler, compiled on first use for this machine and kept in the user's cache folder."""

from __future__ import annotations

import ctypes
import hashlib
import os
import platform
import subprocess
import tempfile
import warnings
from functools import cache
from pathlib import Path

from k3rl.errors import InfrastructureError

FLAGS = ("-O3", "-march=native", "-std=c++17", "-fopenmp", "-fPIC", "-shared", "-Wall")
FOLDER = Path(__file__).parent


@cache
def library() -> ctypes.CDLL | None:
    """The compiled library; None, with one warning, where there is no working compiler.

    Processes that come at the same time each compile; the file takes its place whole, so any of them will do.
    """
    try:
        return ctypes.CDLL(str(_compiled()))
    except (InfrastructureError, OSError) as error:
        warnings.warn(f"decoding falls back to torch, several times slower: {error}", RuntimeWarning, stacklevel=2)
        return None


def _compiled() -> Path:
    compiler = os.environ.get("CXX", "g++")
    target = _cache_folder() / f"decode-{_fingerprint(compiler)}.so"
    if target.exists():
        return target
    target.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=target.parent) as scratch:
        fresh = Path(scratch) / target.name
        _run([compiler, *FLAGS, *map(str, sorted(FOLDER.glob("*.cpp"))), "-o", str(fresh)])
        fresh.replace(target)
    return target


def _fingerprint(compiler: str) -> str:
    """Of the sources, the compiler, and the instructions that -march=native stands for here."""
    digest = hashlib.sha256(" ".join(FLAGS).encode())
    digest.update(_run([compiler, "-march=native", "-E", "-v", "-x", "c++", os.devnull, "-o", os.devnull]).encode())
    digest.update(platform.machine().encode())
    for source in sorted([*FOLDER.glob("*.h"), *FOLDER.glob("*.cpp")]):
        digest.update(source.read_bytes())
    return digest.hexdigest()[:16]


def _run(command: list[str]) -> str:
    """What a command said on stderr; raises InfrastructureError if it cannot run or fails."""
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise InfrastructureError(f"{command[0]}: {error}; install g++ or set CXX") from error
    if done.returncode:
        raise InfrastructureError(f"{command[0]} failed: {done.stderr.strip()[-500:]}")
    return done.stderr


def _cache_folder() -> Path:
    base = os.environ.get("XDG_CACHE_HOME")
    return (Path(base) if base else Path.home() / ".cache") / "k3rl"
