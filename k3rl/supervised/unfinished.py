"""Demonstrators who stop before the work is done, as those of collected data do: what outcomes then have to teach."""

from __future__ import annotations

from collections.abc import Sequence
from random import Random

import numpy as np

from k3rl.supervised.rendering import token_log
from k3rl.types import Message, TokenLog

GIVEN_UP = Message(role="assistant", content="done")
"""What somebody says who stops early: the same as somebody who is done."""


def stop_early(log: TokenLog, ending: Sequence[int], chances: Sequence[float], rng: Random) -> TokenLog:
    """The log up to a drawn end, and there the sampled tokens `ending`.

    Before turn j (from 0; the last turn says that the work is done and is no work) it ends with probability
    `chances[j]`, with the last of them before all later turns. No chances, no early end.
    """
    if not chances:
        return log
    starts = np.flatnonzero(log.mask & ~np.append(False, log.mask[:-1]))
    for turn, start in enumerate(starts[:-1]):
        if rng.random() < chances[min(turn, len(chances) - 1)]:
            return _ended(log, int(start), token_log([(ending, True)]))
    return log


def _ended(log: TokenLog, at: int, ending: TokenLog) -> TokenLog:
    arrays = ("tokens", "mask", "logprobs", "entropies", "versions")
    return TokenLog(**{name: np.append(getattr(log, name)[:at], getattr(ending, name)) for name in arrays})
