"""The engine's synchronous core: sessions over a fixed number of slots, one sampled token per running slot and step.

A row's result is the same whatever other rows a step computes, so that a session's tokens do not depend on its
neighbours, on its slot, or on having been parked. A step is: place waiting sessions, process in every running row what
is next (the token sampled last, or given ones), sample where the list's end was reached.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from k3rl.errors import ConfigError, InfrastructureError, SyncError, UserError
from k3rl.inference.prefix import PrefixCache
from k3rl.inference.rows import Rows
from k3rl.inference.rules import SampledTurn, Sampling, TurnRules, TurnStop
from k3rl.inference.sampler import draw, uniforms
from k3rl.inference.scheduler import Placement, Scheduler
from k3rl.inference.session import Parked, Session
from k3rl.inference.turns import TurnRequest, Turns
from k3rl.model import Model
from k3rl.types import TokenLog

Finished = tuple[Session, SampledTurn]
_CHUNK = 256  # given tokens of a session that one step processes: longer ones do not hold up their neighbours


class Weights(Protocol):
    """A weights version that can be put into a model (k3rl.sync.Publication is one)."""

    @property
    def version(self) -> int: ...

    def apply_to(self, model: Model) -> None:
        """Replace the model's weights and verify what it holds; raises SyncError."""
        ...


class Engine:
    """Not safe for threads: AsyncEngine gives it a thread of its own.

    version: of the weights that `model` holds now; None (nothing to serve yet) refuses sessions until `publish`.
    """

    def __init__(
        self, model: Model, *, slots: int, max_context: int, rules: TurnRules, version: int | None = None
    ) -> None:
        if slots < 1 or max_context < 2:
            raise ConfigError(f"an engine of {slots} slots and {max_context} tokens: at least 1 slot and 2 tokens")
        self.model = model
        self.version = version
        self._max_context = max_context
        self._cache = model.new_cache(slots=slots, max_context=max_context)
        config = model.config
        experts = (len(config.moe_layers), config.moe.experts_per_token)
        selected = (len(config.dsa_layers), config.dsa.top_k if config.dsa is not None else 0)
        self.rows = Rows(slots, max_context, experts, selected)
        self._turns = Turns(slots, rules)
        self._scheduler = Scheduler(slots)
        self.prefixes = PrefixCache(model, capacity=slots)
        self._seeds = np.zeros(slots, np.uint64)
        self._temperatures = np.ones(slots, np.float64)
        self._finished: list[Finished] = []

    @property
    def has_work(self) -> bool:
        """Whether `step` has something to do."""
        return bool(self._turns.running.any() or self._scheduler.waiting or self._finished)

    def open(
        self,
        prompt: Sequence[int],
        *,
        seed: int,
        sampling: Sampling,
        group_key: str,
        context: int | None = None,
    ) -> Session:
        """A new session; its prompt is computed when its first turn gets a slot. `context` bounds the token list (at
        most, and by default, the engine's max_context); `group_key` names the session in errors."""
        context = self._max_context if context is None else context
        if not 2 <= context <= self._max_context:
            raise UserError(f"{group_key}: context of {context} tokens; this engine allows 2 to {self._max_context}")
        if not 1 <= len(prompt) < context:
            raise UserError(f"{group_key}: prompt of {len(prompt)} tokens in a context of {context}: raise the context")
        self._require_version()
        tokens = np.array(prompt, np.int32)
        return Session(prompt=tokens, seed=seed, sampling=sampling, context=context, group_key=group_key)

    def start_turn(
        self, session: Session, given: Sequence[int], *, max_tokens: int, thinking_budget: int | None
    ) -> None:
        """Append `given`, then sample; a later `step` returns the finished turn."""
        self._require_version()
        if session.closed or session.turn is not None:
            raise UserError(f"{session}: a turn was asked for {'after close' if session.closed else 'inside a turn'}")
        request = TurnRequest(given=np.array(given, np.int32), max_tokens=max_tokens, thinking_budget=thinking_budget)
        length = self._length(session)
        if length + len(given) >= session.context:
            self._finished.append((session, SampledTurn(start=length, tokens=(), stop="context")))
            return
        session.turn = request
        if self._scheduler.request(session):
            self._begin(session)

    @torch.no_grad()
    def step(self) -> list[Finished]:
        """At most one new token for every running slot; returns the turns that are finished."""
        prompts = {p.slot: logits for p in self._scheduler.place() if (logits := self._admit(p)) is not None}
        busy = np.flatnonzero(self._turns.running & (self.rows.processed < self.rows.length))
        logits = self._decode(busy) if len(busy) else torch.empty(0)
        due = np.flatnonzero(self._turns.running & (self.rows.processed == self.rows.length))
        if len(due):
            if prompts:
                decoded = iter(logits)
                logits = torch.stack([prompts[row] if row in prompts else next(decoded) for row in due.tolist()])
            self._sample(due, logits)
        finished, self._finished = self._finished, []
        return finished

    def close(self, session: Session) -> TokenLog:
        """End a session between turns and hand over its token list."""
        if session.closed or session.turn is not None:
            raise UserError(f"{session}: close {'was called before' if session.closed else 'inside a turn (abort it)'}")
        if session.slot is not None:
            record = self.rows.take(session.slot)
        elif session.parked is not None:
            record = session.parked.record
        else:
            record = self.prefixes.get(self._require_version(), session.prompt).record
        self._forget(session)
        return record.log()

    def abort(self, session: Session) -> None:
        """End a session at any point and free what it holds; ending it twice is fine."""
        if not session.closed:
            self._forget(session)

    def publish(self, weights: Weights) -> None:
        """Replace the weights between two steps. Live sessions keep their caches, prefixes are dropped. If applying
        fails the model may hold a mixture: the engine serves nothing until a publication succeeds."""
        self.version = None
        self.prefixes.clear()
        weights.apply_to(self.model)
        self.version = weights.version

    def _require_version(self) -> int:
        if self.version is None:
            raise SyncError(
                "the engine holds no verified weights: publish a version before opening sessions "
                "(or give Engine the version of weights read from a folder)"
            )
        return self.version

    def _length(self, session: Session) -> int:
        if session.slot is not None:
            return int(self.rows.length[session.slot])
        return len(session.prompt) if session.parked is None else session.parked.record.length

    def _admit(self, placement: Placement) -> Tensor | None:
        """Load a session into its slot and begin its turn; returns the logits [V] to sample from if no token has to
        be processed first."""
        session, slot, parked = placement.session, placement.slot, placement.parked
        if parked is not None:
            self._park(parked)
        logits = None
        if session.parked is None:
            prefix = self.prefixes.get(self._require_version(), session.prompt)
            record, snapshot, logits = prefix.record, prefix.snapshot, prefix.logits
        else:
            record, snapshot = session.parked.record, session.parked.snapshot
            session.parked = None
        self._cache.load(slot, snapshot)
        self.rows.put(slot, record)
        session.slot = slot
        self._seeds[slot] = session.seed % 2**64
        self._temperatures[slot] = session.sampling.temperature
        self._begin(session)
        return logits if self.rows.processed[slot] == self.rows.length[slot] else None

    def _park(self, session: Session) -> None:
        """Take a session out of its slot, to be loaded into any other one."""
        slot = session.slot
        assert slot is not None
        session.parked = Parked(record=self.rows.take(slot), snapshot=self._cache.snapshot(slot))
        session.slot = None

    def _begin(self, session: Session) -> None:
        slot, request = session.slot, session.turn
        assert slot is not None
        assert request is not None
        self.rows.give(slot, request.given)
        start = int(self.rows.length[slot])
        self._force(slot, self._turns.begin(slot, request, start=start, context=session.context))

    def _force(self, slot: int, tokens: tuple[int, ...]) -> None:
        """Append tokens that close the think channel, as far as the context goes."""
        room = self._turns.room(slot, int(self.rows.length[slot]))
        self.rows.give(slot, np.array(tokens[:room], np.int32))
        if len(tokens) >= room:
            self._turns.running[slot] = False
            self._finish(slot, "context")

    def _decode(self, busy: NDArray[np.int64]) -> Tensor:
        """Process what is next in the slots `busy` [n]; logits [P, V] of those that reached the end of their list."""
        device = self.model.embed.device
        rows, columns = self.rows.pending(busy, _CHUNK)
        ends = np.flatnonzero(columns + 1 == self.rows.length[rows])
        tokens, slots, logits_at = (
            torch.from_numpy(a).to(device) for a in (self.rows.tokens[rows, columns].astype(np.int64), rows, ends)
        )
        out = self.model.decode(tokens, self._cache, slots, logits_at=logits_at)
        self.rows.record(rows, columns, out.experts.cpu().numpy(), out.selected.cpu().numpy())
        return out.logits

    def _sample(self, due: NDArray[np.int64], logits: Tensor) -> None:
        """Sample one token for each row of `due` [n] from logits [n, V]."""
        sampled = draw(logits, self._temperatures[due], uniforms(self._seeds[due], self.rows.length[due]))
        if not np.isfinite(sampled.entropies).all():
            session = self._scheduler.holders[int(due[~np.isfinite(sampled.entropies)][0])]
            raise InfrastructureError(f"{session}: the model gave logits that are not finite (weights {self.version})")
        self.rows.append(due, sampled.tokens, sampled.logprobs, sampled.entropies, self._require_version())
        stops, forced = self._turns.advance(due, sampled.tokens, self.rows.length[due])
        for slot, stop in stops.items():
            self._finish(slot, stop)
        for slot, marker in forced.items():
            self._force(slot, marker)

    def _finish(self, slot: int, stop: TurnStop) -> None:
        session = self._scheduler.holders[slot]
        start, end = int(self._turns.start[slot]), int(self.rows.length[slot])
        tokens = tuple(self.rows.tokens[slot, start:end].tolist())
        session.turn = None
        self._scheduler.end_turn(session)
        self._finished.append((session, SampledTurn(start=start, tokens=tokens, stop=stop)))

    def _forget(self, session: Session) -> None:
        if session.slot is not None:
            self._turns.running[session.slot] = False
        self._scheduler.remove(session)
        session.closed, session.turn, session.parked, session.slot = True, None, None, None
        self._finished = [(other, turn) for other, turn in self._finished if other is not session]
