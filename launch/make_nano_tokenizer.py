#!/usr/bin/env python3
"""Makes k3rl/assets/nano_tokenizer from solved training tasks of the domains in conf/environment.

    .venv/bin/python launch/make_nano_tokenizer.py            # all domains
    .venv/bin/python launch/make_nano_tokenizer.py --report   # and a table of tokens per episode

Deterministic: the same tasks give the same bytes. Held-out families are left out of the corpus, as of training.
"""

from __future__ import annotations

import argparse
import asyncio
import json
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import mean

from hydra.utils import instantiate
from omegaconf import OmegaConf
from rich.console import Console
from rich.progress import track
from rich.table import Column, Table
from tokenizers import Tokenizer as Backend

from k3rl.chat import NANO_TOKENIZER, Marker, Tokenizer, XtmlRenderer, canonical
from k3rl.chat.messages import dump
from k3rl.chat.nano_vocabulary import Document, Layers, build
from k3rl.chat.template import message_pieces, preamble, request_options
from k3rl.chat.tokenizer import Piece
from k3rl.environment import Domain, StepResult
from k3rl.environments.pools import NUMBERS, WORDS
from k3rl.types import Message, Task, Tier

CONF = Path(__file__).resolve().parents[1] / "conf" / "environment"
SEED = 0
CONCURRENT = 4  # episodes at once; their order in the corpus is the plan's
VARIANTS = 2  # phrasings of each solution that go into the corpus


@dataclass(frozen=True, kw_only=True)
class Episode:
    """A solved task, with the prompt and tools its environment gave, and everything that was said after the prompt."""

    task: Task
    messages: tuple[Message, ...]


async def solve(domain: Domain, task: Task, variant: int) -> Episode:
    """Play one task with the domain's reference policy."""
    environment = await domain.open(task)
    try:
        said: list[Message] = []
        solution = domain.solve(task, variant)
        message = await anext(solution)
        while True:
            result: StepResult = await environment.step(message)
            said += [message, *result.messages]
            if result.terminated or result.truncated:
                break
            message = await solution.asend(result)
        await solution.aclose()
        return Episode(task=replace(task, messages=environment.messages, tools=environment.tools), messages=tuple(said))
    finally:
        await environment.close()


async def corpus(names: Sequence[str], per_family: int) -> list[Episode]:
    """Solved training tasks of every family and level of the named domains."""
    episodes: list[Episode] = []
    for name in names:
        domain: Domain = instantiate(OmegaConf.load(CONF / f"{name}.yaml"))
        plan = [
            (domain.task("train", seed=SEED, level=level, index=index, family=family), index % VARIANTS)
            for family in domain.families
            for level in range(1, domain.levels + 1)
            for index in range(per_family)
        ]
        gate = asyncio.Semaphore(CONCURRENT)
        try:
            async with asyncio.TaskGroup() as group:
                jobs = [group.create_task(_gated(gate, domain, task, variant)) for task, variant in plan]
                for job in track(jobs, description=f"{name}: solving"):
                    episodes.append(await job)
        finally:
            await domain.close()
    return episodes


async def _gated(gate: asyncio.Semaphore, domain: Domain, task: Task, variant: int) -> Episode:
    async with gate:
        return await solve(domain, task, variant)


def document(episode: Episode) -> Document:
    """An episode's texts, by who wrote them."""
    task = episode.task
    pieces: list[Piece] = [*preamble(task.tools, task.tier)]
    for message in (*task.messages, *episode.messages):
        pieces += message_pieces(canonical(message))
    prompt = tuple(m.content for m in task.messages)
    said = tuple(text for message in episode.messages for text in _own_texts(message))
    template = Counter(_texts(pieces)) - Counter(prompt) - Counter(said)
    return Document(
        family=f"{task.domain}/{task.family}", template=tuple(template.elements()), prompt=prompt, said=said
    )


def template_documents(count: int) -> Iterator[Document]:
    """The format's own options, whether or not a task of the corpus uses them."""
    for tier in Tier:
        pieces = [*preamble((), tier), *request_options("required", {"type": "json_object"})]
        yield from [Document(family="", template=_texts(pieces), prompt=(), said=())] * count


def _own_texts(message: Message) -> Iterator[str]:
    """What a message's author wrote: all but tags."""
    yield from filter(None, (message.reasoning, message.content))
    for call in message.tool_calls:
        yield from map(dump, call.arguments.values())


def _texts(pieces: Sequence[Piece]) -> tuple[str, ...]:
    return tuple(piece for piece in pieces if isinstance(piece, str) and piece)


def write(backend: Backend, folder: Path) -> None:
    """The hub's three tokenizer files."""
    folder.mkdir(parents=True, exist_ok=True)
    roles = {"bos_token": Marker.BOS.value, "eos_token": Marker.END_OF_MSG.value, "pad_token": Marker.PAD.value}
    others = [m.value for m in Marker if m.value not in roles.values()]
    config = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        **roles,
        "additional_special_tokens": others,
        "clean_up_tokenization_spaces": False,
        "split_special_tokens": True,  # text never becomes a marker
    }
    (folder / "tokenizer.json").write_text(backend.to_str(pretty=True) + "\n", encoding="utf-8")
    for name, value in (
        ("tokenizer_config.json", config),
        ("special_tokens_map.json", {**roles, "additional_special_tokens": others}),
    ):
        (folder / name).write_text(json.dumps(value, indent=2) + "\n", encoding="utf-8")


def report(episodes: Sequence[Episode], renderer: XtmlRenderer) -> Table:
    """Mean tokens by domain and level."""
    rows: dict[tuple[str, int], list[tuple[int, int, int, int, int]]] = defaultdict(list)
    for episode in episodes:
        task, said = episode.task, episode.messages
        prompt = len(renderer.prompt(task.messages, task.tools, task.tier))
        user = sum(len(renderer.tokenizer.encode(m.content)) for m in task.messages)
        turns = [len(renderer.assistant(m)) for m in said if m.role == "assistant"]
        total = len(renderer.prompt((*task.messages, *said), task.tools, task.tier))
        rows[task.domain, task.level].append((prompt, user, len(turns), sum(turns), total))
    table = Table(
        Column("domain", no_wrap=True), "level", "prompt", "of it user", "turns", "sampled", "episode", "longest", "n"
    )
    for (name, level), sizes in sorted(rows.items()):
        means = [f"{mean(column):.1f}" for column in zip(*sizes, strict=True)]
        table.add_row(name, str(level), *means, str(max(size[-1] for size in sizes)), str(len(sizes)))
    return table


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("domains", nargs="*", help="names in conf/environment (default: all)")
    parser.add_argument("--per-family", type=int, default=40, help="tasks per family and level (default 40)")
    parser.add_argument("--size", type=int, default=Layers().size, help="vocabulary size at most")
    parser.add_argument("--output", type=Path, default=NANO_TOKENIZER)
    parser.add_argument("--report", action="store_true", help="print tokens per episode")
    options = parser.parse_args()
    names = options.domains or sorted(path.stem for path in CONF.glob("*.yaml"))
    episodes = asyncio.run(corpus(names, options.per_family))
    layers = Layers(size=options.size)
    documents = [*map(document, episodes), *template_documents(layers.min_documents)]
    backend = build(documents, [*map(str, NUMBERS), *WORDS], layers)
    write(backend, options.output)
    console = Console()
    console.print(f"{options.output}: {backend.get_vocab_size()} tokens from {len(documents)} documents")
    if options.report:
        console.print(report(episodes, XtmlRenderer(Tokenizer(backend, str(options.output)))))


if __name__ == "__main__":
    main()
