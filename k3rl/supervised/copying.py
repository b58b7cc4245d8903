"""The first things a model from nothing learns: to copy names, then to do so inside the chat format.

Copying is the bottleneck of small models, and it is learned far sooner where most predicted tokens are copies: first
bare lists, `<|open|>kiwi oak<|sep|>kiwi oak<|close|>`, soon with other tokens around them, for a list that always
stands at the same place is copied by counting. Then short chats in the real format: repeat a list, answer with a key's
value, pass names on to a tool (one argument or two), read them back out of a tool's reply. There too the names alone
count at first. Without either it is a matter of the seed whether a list's first name, which no copied name stands
before, is ever found in a chat (docs/log.md).
"""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache
from random import Random

import numpy as np

from k3rl.chat import Marker, Tokenizer, XtmlRenderer
from k3rl.config import StageSection
from k3rl.environments.pools import NUMBERS, WORDS
from k3rl.learner.samples import demonstration
from k3rl.supervised.rendering import render_chat, token_log
from k3rl.types import Message, Sample, Tier, ToolCall

NAMES: tuple[str, ...] = (*WORDS, *map(str, NUMBERS))
SEPARATORS = ("", "", " ", " ", "/", "\n", ", ")
# Shares of a stage: until when a bare list stands alone, and its names side by side (with separators from the start,
# none are copied); until when the names are all that counts in a chat.
ALONE = 0.25
SIDE_BY_SIDE = 0.4
NAMES_ONLY = 0.4


def copy_sample(renderer: XtmlRenderer, rng: Random, key: str, stage: StageSection, progress: float) -> Sample:
    """A bare list and its copy; `key` names it in its batch, `progress` is how much of the stage is done."""
    tokenizer = renderer.tokenizer
    between = tokenizer.encode("" if progress < SIDE_BY_SIDE else rng.choice(SEPARATORS))
    names = [token for name in _names(rng, 2, 12) for token in (*between, *tokenizer.encode(name))][len(between) :]
    before, after = ([], []) if progress < ALONE else (_others(tokenizer, rng, 8), _others(tokenizer, rng, 16))
    given = [tokenizer.id(Marker.OPEN), *before, *names, tokenizer.id(Marker.SEP), *after]
    log = token_log([(given, False), ([*names, tokenizer.id(Marker.CLOSE)], True)])
    return demonstration(log, key=key, domain="copy", prompt_weight=stage.prompt_weight)


def format_sample(renderer: XtmlRenderer, rng: Random, key: str, stage: StageSection, progress: float) -> Sample:
    """A short chat about names; arguments as in `copy_sample`."""
    kind = rng.choice((repeat, look_up, look_up, call, put, put, relay))
    # The tools are not declared: their declarations would be nine tenths of the tokens.
    log = render_chat(renderer, kind(rng), (), Tier.LOW)
    sample = demonstration(log, key=key, domain="format", prompt_weight=stage.prompt_weight)
    if progress >= NAMES_ONLY:
        return sample
    counts = np.isin(sample.tokens, list(_name_tokens(renderer.tokenizer)))
    return replace(sample, loss_mask=np.where(counts, sample.loss_mask, np.float32(0)))


def repeat(rng: Random) -> list[Message]:
    """`repeat: kiwi 7 oak` is answered with `kiwi 7 oak`; the separator varies."""
    text = rng.choice((" ", "/", ", ", "\n")).join(_names(rng, 2, 12))
    return [Message(role="user", content=f"repeat: {text}"), Message(role="assistant", content=text)]


def look_up(rng: Random) -> list[Message]:
    """Pairs, one per line, then a key: its value is the answer."""
    keys = _names(rng, 3, 9)
    values = _names(rng, len(keys), len(keys))
    joint = rng.choice((" ", ": ", " = ", ","))
    pairs = "\n".join(f"{k}{joint}{v}" for k, v in zip(keys, values, strict=True))
    wanted = rng.randrange(len(keys))
    forward = rng.random() < 0.7
    question, answer = (keys[wanted], values[wanted]) if forward else (values[wanted], keys[wanted])
    return [
        Message(role="user", content=f"{pairs}\n{'value of' if forward else 'key of'} {question}"),
        Message(role="assistant", content=answer),
    ]


def call(rng: Random) -> list[Message]:
    """Names of the prompt go into a tool call."""
    text = rng.choice((" ", "/", ".", ",")).join(_names(rng, 1, 5))
    return [Message(role="user", content=f"Run {text}"), _calls("shell", command=text)]


def put(rng: Random) -> list[Message]:
    """Two names of the prompt, in either order, go into two arguments of a call."""
    place, value = _names(rng, 2, 2)
    wording = rng.choice(
        (f"put {value} in {place}", f"{place} must say {value}", f"{place} becomes {value}", f"copy {value} to {place}")
    )
    return [Message(role="user", content=wording), _calls("write", cell=place, value=value)]


def relay(rng: Random) -> list[Message]:
    """What a tool replies for a key goes into the next call."""
    keys = _names(rng, 2, 6)
    values = _names(rng, len(keys), len(keys))
    wanted = rng.randrange(len(keys))
    listing = "\n".join(f"{k} {v}" for k, v in zip(keys, values, strict=True))
    return [
        Message(role="user", content=f"look up {keys[wanted]} in list"),
        _calls("view", path="list"),
        Message(role="tool", name="view", tool_call_id="view:1", content=listing),
        _calls("shell", command=values[wanted]),
    ]


def _names(rng: Random, low: int, high: int) -> list[str]:
    return rng.sample(NAMES, rng.randint(low, high))


def _calls(tool: str, **arguments: str) -> Message:
    """A call whose tags the tokenizer knows whole: spelled in letters they are thirty tokens around one name."""
    return Message(role="assistant", tool_calls=(ToolCall(id=f"{tool}:1", name=tool, arguments=dict(arguments)),))


def _others(tokenizer: Tokenizer, rng: Random, most: int) -> list[int]:
    """Up to `most` tokens that are no names."""
    return rng.choices(_other_tokens(tokenizer), k=rng.randint(0, most))


@lru_cache(maxsize=4)
def _name_tokens(tokenizer: Tokenizer) -> frozenset[int]:
    return frozenset(token for name in NAMES for token in tokenizer.encode(name))


@lru_cache(maxsize=4)
def _other_tokens(tokenizer: Tokenizer) -> list[int]:
    return sorted(set(range(tokenizer.vocab_size)) - _name_tokens(tokenizer))
