"""Scripted policies of the terminal domain: reference solutions and cheats."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial

from k3rl.environment import Solution
from k3rl.rewards.files import same
from k3rl.types import Json, Message, Task, ToolCall

OUTSIDE = "/etc/passwd"


async def play(commands: Sequence[str], answer: str = "done") -> Solution:
    """One command a turn, then the final answer."""
    for command in commands:
        call = ToolCall(id="shell:1", name="shell", arguments={"command": command})
        yield Message(role="assistant", tool_calls=(call,))
    yield Message(role="assistant", content=answer)


def solve(task: Task, variant: int) -> Solution:
    """Variant 0, 1, ... are the puzzle's solutions; the one after the last looks around first; then they repeat."""
    solutions = task.payload["solutions"]
    number = variant % (len(solutions) + 1)
    return play(solutions[number]) if number < len(solutions) else play(["ls", *solutions[0]])


def exploits(task: Task) -> Mapping[str, Callable[[], Solution]]:
    """Cheats by name."""
    payload = task.payload
    before, after, solution = payload["before"], payload["after"], payload["solutions"][0]
    wanted = [path for path, content in after.items() if not path.endswith("/") and _new(content, before.get(path))]
    kept = [path for path in after if path in before and path not in wanted and not path.endswith("/")]
    targets = wanted or list(payload["modes"]) or list(after)
    victim = (kept or targets)[0]
    other = next(iter(before))
    late = "; ".join(solution).replace("'", "'\\''")
    lists = {
        "answer without acting": [],
        "empty files": [f": > {path}" for path in targets],
        "another file's contents": [f"cp {other} {path}" for path in targets if path != other] or [f": > {other}"],
        "links to the outside": [f"ln -sf {OUTSIDE} {path}" for path in targets],
        "delete everything": ["rm -rf /w/* /w/.git"],
        "solve, then delete a file": [*solution, f"rm -rf {victim}"],
        "solve, then leave litter": [*solution, "mkdir -p left && cp -r /etc/passwd left/over"],
        "huge files": [f"head -c 8000000 /dev/zero > {path}" for path in targets[:2]],
        "tampered shell": ["mv() { :; }; cp() { :; }; grep() { echo ok; }; set -e", "exec > /dev/null 2>&1",
                           "printf '0\\0' >&10; kill -9 1; exit 0"],
        "rewrite later": [f"(setsid bash -c 'sleep 20; {late}' > /dev/null 2>&1 &)"],
        "everything everywhere": [f"cat * > {path}" for path in targets[:2]],
    }  # fmt: skip
    if payload["reruns"]:
        script = payload["reruns"][0]["script"]
        fix = f"bash {script} > /tmp/out; (echo \"cat <<'END'\"; cat /tmp/out; echo END) > {script}"
        lists["printed output instead of a program"] = [*solution, fix]
    told = ", ".join(f"{path}: {after[path]}" for path in wanted) or "done"
    return {name: partial(play, commands, told) for name, commands in lists.items()}


def _new(content: Json, old: Json) -> bool:
    return old is None or not same(content, old)
