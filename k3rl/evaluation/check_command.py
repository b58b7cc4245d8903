"""`k3rl env list` and `k3rl env check`."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict
from pathlib import Path

from rich.console import Console
from rich.table import Table

from k3rl.chat import XtmlRenderer, load_tokenizer
from k3rl.domains import known_domains, make_domain
from k3rl.environment import Domain, StepResult
from k3rl.environments.check import Row, run_check
from k3rl.errors import InfrastructureError, UserError
from k3rl.model_folder import model_folder, tokenizer_folder
from k3rl.observability.progress import Bar
from k3rl.rollout.episode import EpisodeLimits, run_episode
from k3rl.rollout.group import GroupSpec
from k3rl.types import Message, Task, Tier

CONTEXT = 1024
SLOTS = 8


def list_domains() -> None:
    """A table of every domain there is."""
    table = Table("domain", "levels", "training families", "held out")
    for name, settings in known_domains().items():
        domain = make_domain(name, settings)
        table.add_row(name, str(domain.levels), ", ".join(domain.families), ", ".join(domain.heldout))
    Console().print(table)


def check_domain(name: str, *, seeds: int, model: str, as_json: bool) -> bool:
    """Run every check of domain `name` and print the table; whether all hold. Raises UserError for an unknown one.

    `model` plays the weak policy of the level curve; "none" leaves it out.
    """
    if seeds < 1:
        raise UserError(f"--seeds {seeds}: must be at least 1")
    known = known_domains()
    if name not in known:
        raise UserError(f"no domain {name!r}; there are {', '.join(sorted(known))}")
    domain = make_domain(name, known[name])
    folder = None if model == "none" else model_folder(model)
    renderer = XtmlRenderer(load_tokenizer(folder or tokenizer_folder("nano")))
    policy = None if folder is None else _weak_policy(domain, folder, renderer)

    def tokens(task: Task, steps: Sequence[tuple[Message, StepResult]]) -> int:
        return _length(renderer, task, steps)

    with _bars() as tick:
        rows = asyncio.run(run_check(domain, seeds, policy, tokens=tokens, progress=tick))
    _print(name, rows, as_json)
    return all(row.ok for row in rows)


@contextmanager
def _bars() -> Iterator[Callable[[str, int, int], None]]:
    """A bar for one check after another: call it with the check's name, how much is done, and of how much."""
    with ExitStack() as open_bar:
        now: list[tuple[str, Bar]] = []

        def tick(what: str, done: int, total: int) -> None:
            if not now or now[-1][0] != what:
                open_bar.close()
                now.append((what, open_bar.enter_context(Bar(what, total))))
            bar = now[-1][1]
            bar.advance(done - bar.done)

        yield tick


def _weak_policy(domain: Domain, folder: Path, renderer: XtmlRenderer) -> Callable[[Task], Awaitable[float]]:
    from k3rl.rollout.local_policy import LocalPolicy  # loads torch, which a check without a model does not need

    policy = LocalPolicy.load(folder, renderer, slots=SLOTS, max_context=CONTEXT)
    limits = EpisodeLimits(context=CONTEXT, thinking=dict.fromkeys(Tier, 64))

    async def play(task: Task) -> float:
        spec = GroupSpec(
            domain=task.domain, split=task.split, level=task.level, index=0, samples=1, seed=task.seed, temperature=1.0
        )
        seed = spec.sample_seed(0)
        scored = await run_episode(domain, task, policy, renderer, limits, sample=0, seed=seed)
        if scored.score is None:  # a 0 would pass for the policy's
            raise InfrastructureError(f"the weak policy could not play {task.id}: {scored.trajectory.error}")
        return scored.score.reward

    return play


def _length(renderer: XtmlRenderer, task: Task, steps: Sequence[tuple[Message, StepResult]]) -> int:
    prompt = len(renderer.prompt(task.messages, task.tools, task.tier))
    turns = sum(len(renderer.assistant(message)) for message, _ in steps)
    return prompt + turns + sum(len(renderer.observation(result.messages)) for _, result in steps[:-1])


def _print(name: str, rows: Sequence[Row], as_json: bool) -> None:
    console = Console()
    if as_json:
        console.print_json(json.dumps({"domain": name, "rows": [asdict(row) for row in rows]}))
        return
    table = Table("", "check", "found", title=name, title_justify="left")
    for row in rows:
        table.add_row("[green]ok[/]" if row.ok else "[bold red]FAILED[/]", row.name, row.value)
    console.print(table)
