"""The first things a model from nothing learns: to copy names, then to do so inside the chat format.

Copying is the bottleneck of small models, and it is learned far sooner where most predicted tokens are copies
(docs/log.md): first bare lists, `<|open|>kiwi oak<|sep|>kiwi oak<|close|>`. Then short chats in the real format: repeat
a list, answer with a key's value, pass names on to a tool (one argument or two), read them back out of a tool's reply.
"""

from __future__ import annotations

from random import Random

from k3rl.chat import Marker, XtmlRenderer
from k3rl.config import StageSection
from k3rl.environments.pools import NUMBERS, WORDS
from k3rl.learner.samples import demonstration
from k3rl.supervised.rendering import render_chat, token_log
from k3rl.types import Message, Sample, Tier, ToolCall

NAMES: tuple[str, ...] = (*WORDS, *map(str, NUMBERS))
SEPARATORS = ("", "", " ", " ", "/", "\n", ", ")
SIDE_BY_SIDE = 0.4  # share of the stage in which nothing stands between names: with separators alone, none are copied


def copy_sample(renderer: XtmlRenderer, rng: Random, key: str, stage: StageSection, progress: float) -> Sample:
    """A bare list and its copy; `key` names it in its batch, `progress` is how much of the stage is done."""
    tokenizer = renderer.tokenizer
    between = tokenizer.encode("" if progress < SIDE_BY_SIDE else rng.choice(SEPARATORS))
    names = [token for name in _names(rng, 2, 12) for token in (*between, *tokenizer.encode(name))][len(between) :]
    given = [tokenizer.id(Marker.OPEN), *names, tokenizer.id(Marker.SEP)]
    log = token_log([(given, False), ([*names, tokenizer.id(Marker.CLOSE)], True)])
    return demonstration(log, key=key, domain="copy", prompt_weight=stage.prompt_weight)


def format_sample(renderer: XtmlRenderer, rng: Random, key: str, stage: StageSection, progress: float) -> Sample:
    """A short chat about names; arguments as in `copy_sample`."""
    kind = rng.choice((repeat, look_up, look_up, call, put, put, relay))
    # The tools are not declared: their declarations would be nine tenths of the tokens.
    log = render_chat(renderer, kind(rng), (), Tier.LOW)
    return demonstration(log, key=key, domain="format", prompt_weight=stage.prompt_weight)


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
    return [
        Message(role="user", content=f"echo {text}"),
        Message(role="assistant", tool_calls=(ToolCall(id="echo:1", name="echo", arguments={"text": text}),)),
        Message(role="tool", name="echo", tool_call_id="echo:1", content="ok"),
        Message(role="assistant", content="done"),
    ]


def put(rng: Random) -> list[Message]:
    """Two names of the prompt, in either order, go into two arguments of a call."""
    place, value = _names(rng, 2, 2)
    wording = rng.choice(
        (f"put {value} in {place}", f"{place} must say {value}", f"{place} becomes {value}", f"{value} goes to {place}")
    )
    arguments = {"place": place, "value": value}
    return [
        Message(role="user", content=wording),
        Message(role="assistant", tool_calls=(ToolCall(id="put:1", name="put", arguments=arguments),)),
        Message(role="tool", name="put", tool_call_id="put:1", content="ok"),
        Message(role="assistant", content="done"),
    ]


def relay(rng: Random) -> list[Message]:
    """What a tool replies for a key goes into the next call."""
    keys = _names(rng, 2, 6)
    values = _names(rng, len(keys), len(keys))
    wanted = rng.randrange(len(keys))
    listing = "\n".join(f"{k} {v}" for k, v in zip(keys, values, strict=True))
    return [
        Message(role="user", content=f"echo list, then echo what stands beside {keys[wanted]}"),
        Message(role="assistant", tool_calls=(ToolCall(id="echo:1", name="echo", arguments={"text": "list"}),)),
        Message(role="tool", name="echo", tool_call_id="echo:1", content=listing),
        Message(role="assistant", tool_calls=(ToolCall(id="echo:1", name="echo", arguments={"text": values[wanted]}),)),
        Message(role="tool", name="echo", tool_call_id="echo:1", content="ok"),
        Message(role="assistant", content="done"),
    ]


def _names(rng: Random, low: int, high: int) -> list[str]:
    return rng.sample(NAMES, rng.randint(low, high))
