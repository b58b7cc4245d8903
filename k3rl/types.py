"""The data of one sample's way, one type per stage: Task, Message, Turn, TokenLog, Trajectory, Scored, Sample, Batch.

Everything is frozen and keyword-only. Arrays are numpy (no torch here). Shape legend: T tokens of one log, M MoE
layers, K experts per token, D sparse-attention layers, S selected positions, N tokens of a packed batch, B sequences.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Literal, TypeAlias

import numpy as np
from numpy.typing import NDArray

Json: TypeAlias = Any  # whatever json.loads can return
"""A JSON value."""

Role = Literal["system", "user", "assistant", "tool"]
Split = Literal["train", "validation", "test", "test_heldout"]
SPLITS: tuple[Split, ...] = ("train", "validation", "test", "test_heldout")


class Tier(StrEnum):
    """Thinking effort, as the chat template and the engine's budget know it."""

    LOW = "low"
    HIGH = "high"
    MAX = "max"


class StopReason(StrEnum):
    """Why an episode ended."""

    ENDED = "ended"  # the agent gave its final message, or the environment ended the episode
    TURNS = "turns"  # out of turns
    TOKENS = "tokens"  # out of context or of sampled tokens
    SECONDS = "seconds"  # out of wall time
    INFRASTRUCTURE = "infrastructure"  # ours, not the agent's: never trained on
    ENVIRONMENT = "environment"  # the domain's own code raised: never trained on

    @property
    def trainable(self) -> bool:
        """Whether the trajectory says anything about the policy."""
        return self not in (StopReason.INFRASTRUCTURE, StopReason.ENVIRONMENT)

    @property
    def truncated(self) -> bool:
        """Whether a limit ended it."""
        return self in (StopReason.TURNS, StopReason.TOKENS, StopReason.SECONDS)


@dataclass(frozen=True, kw_only=True, slots=True)
class ToolCall:
    """`ToolCall(id="shell:1", name="shell", arguments={"command": "ls"})`; ids are `name:index`, from 1 in a turn."""

    id: str
    name: str
    arguments: Mapping[str, Json]


@dataclass(frozen=True, kw_only=True, slots=True)
class Message:
    """One chat message. `Message(role="tool", name="shell", tool_call_id="shell:1", content="a.txt")`."""

    role: Role
    content: str = ""
    reasoning: str = ""  # assistant only
    tool_calls: tuple[ToolCall, ...] = ()  # assistant only
    name: str = ""  # tool only: the tool's name
    tool_call_id: str = ""  # tool only


@dataclass(frozen=True, kw_only=True, slots=True)
class Tool:
    """A tool's declaration; `parameters` is an OpenAI-style JSON Schema of an object."""

    name: str
    description: str = ""
    parameters: Mapping[str, Json] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True, slots=True)
class Limits:
    """What one episode may use: assistant turns, wall seconds, tokens of context, sampled tokens per turn."""

    turns: int = 8
    seconds: float = 60.0
    context: int = 8192
    turn_tokens: int = 128


@dataclass(frozen=True, kw_only=True, slots=True)
class Task:
    """One task instance: plain data, the same for the same (domain, split, family, level, seed).

    `id` is unique over all splits, e.g. `terminal/train/move/2/17`. `payload` is what environment, scoring and the
    reference solver need and the agent never sees; it holds JSON values only.
    """

    domain: str
    id: str
    split: Split
    family: str
    level: int
    seed: int
    messages: tuple[Message, ...]
    tools: tuple[Tool, ...]
    limits: Limits = Limits()
    tier: Tier = Tier.LOW
    payload: Mapping[str, Json] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True, slots=True)
class Routes:
    """What the rollout's model chose, to be replayed by the learner.

    experts: int16 [T, M, K], -1 where the position was never computed (the last sampled token).
    selected: int32 [T, D, S], positions in the sequence, ascending, padded with -1; a row of -1 alone means all
    causal positions.
    """

    experts: NDArray[np.int16]
    selected: NDArray[np.int32]


@dataclass(frozen=True, kw_only=True, slots=True)
class TokenLog:
    """One append-only token list as the engine saw it; all arrays have length T.

    tokens int32; mask bool (True: sampled by the policy, end marker included); logprobs float32, of the distribution
    really sampled from, 0 where mask is False; entropies float32, nats, likewise; versions int32, the weights that
    sampled the token, -1 where given.
    """

    tokens: NDArray[np.int32]
    mask: NDArray[np.bool_]
    logprobs: NDArray[np.float32]
    entropies: NDArray[np.float32]
    versions: NDArray[np.int32]
    routes: Routes | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class Turn:
    """One assistant turn and what followed it: token range [start, end) in its log, the message as parsed, problems
    of its markup (each was shown to the agent), the observation messages, and thinking tokens sampled."""

    start: int
    end: int
    message: Message
    problems: tuple[str, ...] = ()
    observation: tuple[Message, ...] = ()
    thinking_tokens: int = 0


@dataclass(frozen=True, kw_only=True, slots=True)
class Score:
    """A reward in [0, 1] and its named parts."""

    reward: float
    parts: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True, slots=True)
class Trajectory:
    """One finished episode. `logs` has one entry unless the past was changed (then one per segment list)."""

    task: Task
    sample: int  # index within the group
    logs: tuple[TokenLog, ...]
    turns: tuple[Turn, ...]
    stop: StopReason
    seconds: float
    error: str = ""  # one line, for infrastructure and environment stops


@dataclass(frozen=True, kw_only=True, slots=True)
class Scored:
    """A trajectory with its score; `score` is None where the stop reason is not trainable."""

    trajectory: Trajectory
    score: Score | None


@dataclass(frozen=True, kw_only=True, slots=True)
class Sample:
    """What the learner trains on: one token log with per-token signals, all of length T.

    loss_mask float32: 1 on tokens that count (fractions are weights, as supervised training of prompts uses);
    advantages float32; logprobs float32, the rollout's; versions int32. The signal at index t is about predicting
    tokens[t] from tokens[:t].
    """

    key: str  # task id and sample index, e.g. "terminal/train/move/2/17#3": the order of a batch
    domain: str
    tokens: NDArray[np.int32]
    loss_mask: NDArray[np.float32]
    advantages: NDArray[np.float32]
    logprobs: NDArray[np.float32]
    entropies: NDArray[np.float32]
    versions: NDArray[np.int32]
    routes: Routes | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class Batch:
    """One micro-batch of one rank: B sequences packed end to end, N tokens, no padding.

    tokens, targets int64 [N] (the target of a sequence's last token is its own, with loss mask 0); loss_mask,
    advantages, logprobs, entropies float32 [N], aligned with the position that predicts the target; versions int32
    [N] of the targets; cu_seqlens int32 [B+1]; domains int32 [N], index into the step's domain list; experts int64
    [N, M, K] and selected int64 [N, D, S] or None.
    """

    tokens: NDArray[np.int64]
    targets: NDArray[np.int64]
    loss_mask: NDArray[np.float32]
    advantages: NDArray[np.float32]
    logprobs: NDArray[np.float32]
    entropies: NDArray[np.float32]
    versions: NDArray[np.int32]
    cu_seqlens: NDArray[np.int32]
    domains: NDArray[np.int32]
    experts: NDArray[np.int64] | None = None
    selected: NDArray[np.int64] | None = None


TRAJECTORY_SCHEMA = 1
"""Version of the Parquet files of trajectories; it grows when a column changes its meaning or goes, not when one is
added. Written as `k3rl.schema` in a file's metadata; observability/trajectories.py writes and reads them."""

TRAJECTORY_FIELDS: Mapping[str, str] = {
    "run": "string: the run's name",
    "step": "int64: the optimizer step the trajectory was trained in",
    "task_id": "string: Task.id",
    "domain": "string",
    "split": "string: train, validation, test or test_heldout",
    "family": "string",
    "level": "int32",
    "seed": "int64: Task.seed",
    "tier": "string: low, high or max",
    "sample": "int32: index within the group of the same task",
    "stop": "string: StopReason",
    "error": "string: one line, empty unless stop is infrastructure or environment",
    "reward": "float64: null where nothing was scored",
    "parts": "map<string, float64>: the reward's named parts",
    "advantage": "float64: what the trajectory's sampled tokens were trained with; null where it was not trained on",
    "tools": "string: JSON list of {name, description, parameters}",
    "messages": "list<{role, content, reasoning, tool_calls, name, tool_call_id}>: the prompt, then every turn and what"
    " followed it, in order; tool_calls is a JSON list of {id, name, arguments}, empty text where there is none",
    "turns": "list<{message, start, end, problems, thinking_tokens}>: which of `messages` each assistant turn is, its"
    " token range [start, end) in its log, problems of its markup",
    "logs": "list<{tokens, mask, logprobs, entropies, versions}>: TokenLog, without routes",
    "seconds": "float64: wall time of the episode",
}
"""Columns of a file of trajectories, one row per trajectory, with Arrow types and meanings."""
