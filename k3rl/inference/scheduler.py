"""Who holds which slot. Turns are served in the order in which they were asked for.

A session keeps its slot between turns, while its environment works; when turns wait for a slot, the session that has
been between turns longest gives its slot up (it is parked) and gets another one with its next turn.
"""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass

from k3rl.inference.session import Session


@dataclass(frozen=True, kw_only=True, slots=True)
class Placement:
    """Give `slot` to `session`, after parking `parked` (None: the slot was free)."""

    session: Session
    slot: int
    parked: Session | None


class Scheduler:
    """Slots, the sessions in them, and the queue of sessions whose turn waits for a slot."""

    def __init__(self, slots: int) -> None:
        self._free = list(range(slots))  # a heap: the lowest first, so that torch decodes few rows
        self._between_turns: dict[Session, None] = {}  # slot holders that may be parked, longest idle first
        self._waiting: deque[Session] = deque()
        self.holders: dict[int, Session] = {}

    @property
    def waiting(self) -> int:
        """Sessions whose turn waits for a slot."""
        return len(self._waiting)

    def request(self, session: Session) -> bool:
        """A turn of `session` begins: True if it holds a slot already, else it is queued."""
        if session.slot is None:
            self._waiting.append(session)
            return False
        del self._between_turns[session]
        return True

    def end_turn(self, session: Session) -> None:
        """The session's turn ended; it keeps its slot until another needs it."""
        self._between_turns[session] = None

    def place(self) -> Iterator[Placement]:
        """Placements for waiting sessions, as many as free slots and sessions between turns allow."""
        while self._waiting and (self._free or self._between_turns):
            parked = None
            if self._free:
                slot = heapq.heappop(self._free)
            else:
                parked = next(iter(self._between_turns))
                del self._between_turns[parked]
                assert parked.slot is not None
                slot = parked.slot
            session = self._waiting.popleft()
            self.holders[slot] = session
            yield Placement(session=session, slot=slot, parked=parked)

    def remove(self, session: Session) -> None:
        """Forget a session, wherever it is; its slot is free again."""
        if session.slot is not None:
            self._between_turns.pop(session, None)
            del self.holders[session.slot]
            heapq.heappush(self._free, session.slot)
        elif session in self._waiting:
            self._waiting.remove(session)
