"""One session: a request with its append-only token list, wherever that lives at the moment."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from k3rl.inference.rows import Record
from k3rl.inference.rules import Sampling
from k3rl.inference.turns import TurnRequest
from k3rl.model import Snapshot


@dataclass(frozen=True, kw_only=True, slots=True)
class Parked:
    """A session without a slot: its token list and the model's state after the processed tokens."""

    record: Record
    snapshot: Snapshot


@dataclass(kw_only=True, eq=False, slots=True)
class Session:
    """Mutable, changed by the engine alone. Exactly one of three places holds the token list: `prompt` (not yet
    admitted: slot and parked are None), the row of `slot`, or `parked`."""

    prompt: NDArray[np.int32]
    seed: int
    sampling: Sampling
    context: int
    group_key: str
    slot: int | None = None
    parked: Parked | None = None
    turn: TurnRequest | None = None  # asked for and not finished
    closed: bool = False

    def __str__(self) -> str:
        return f"session {self.group_key} (seed {self.seed})"
