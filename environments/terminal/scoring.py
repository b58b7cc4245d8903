"""Scoring a terminal episode: the tree that is left against the tree that should be, in containers of our own."""

from __future__ import annotations

import base64
from collections.abc import Mapping

from k3rl.environments.sandbox import SandboxPool
from k3rl.environments.terminal.environment import tree_values
from k3rl.environments.terminal.git_objects import head
from k3rl.errors import AgentFault
from k3rl.rewards.files import difference, same_modes
from k3rl.types import Json, Score

GIT = ".git/"
SECONDS = 5.0


async def score(payload: Mapping[str, Json], artifacts: Mapping[str, Json], graders: SandboxPool) -> Score:
    """Parts, each 0 or 1; the reward is their product. Containers are used only where the rest is right."""
    found = found_tree(artifacts)
    repository = {path.removesuffix("/"): value for path, value in found.items() if path.startswith(GIT)}
    if payload["commit"]:
        found = {path: value for path, value in found.items() if not path.startswith(GIT)}
    archives = [path for path, content in payload["after"].items() if isinstance(content, Mapping) and "tar" in content]
    for path in archives:
        if isinstance(found.get(path), str | bytes):
            found[path] = {"tar": await _members(_bytes(found[path]), graders)}
    parts = difference(payload["after"], found).parts()
    parts["complete"] = float(artifacts["complete"])
    parts["modes"] = same_modes(payload["modes_after"], artifacts["modes"])
    if payload["commit"]:
        parts["commit"] = float(_committed(payload["commit"], {p: _bytes(v) for p, v in repository.items()}))
    if payload["reruns"]:
        right = all(parts.values()) and await _reruns(payload["reruns"], found, graders)
        parts["reruns"] = float(right)
    return Score(reward=float(all(parts.values())), parts=parts)


def found_tree(artifacts: Mapping[str, Json]) -> dict[str, Json]:
    """Artifacts as contents by path, in the form that rewards.files compares."""
    found: dict[str, Json] = {f"{path}/": None for path in artifacts["folders"]}
    for path, value in artifacts["files"].items():
        found[path] = value if isinstance(value, str) else base64.b64decode(value["base64"])
    found |= {path: {"link": target} for path, target in artifacts["links"].items()}
    found |= {path: {"other": True} for path in artifacts["others"]}
    return found


def _bytes(value: Json) -> bytes:
    if isinstance(value, str):
        return value.encode()
    return value if isinstance(value, bytes) else b""


async def _members(data: bytes, graders: SandboxPool) -> Json:
    """What an archive unpacks to; a value that equals nothing expected where it does not unpack."""
    async with await graders.acquire() as box:
        await box.write({"archive": data, "unpacked/": b""})
        result = await box.bash("tar -xf archive -C unpacked", seconds=SECONDS)
        if result.code != 0:
            return {"broken": True}
        await box.kill()
        tree = tree_values(await box.tree("unpacked"))
    members = found_tree(tree)
    return members if tree["complete"] else {"broken": True}


async def _reruns(reruns: list[Json], found: Mapping[str, Json], graders: SandboxPool) -> bool:
    """Whether the agent's script is right on inputs that it has not seen. Each run starts from a clean container."""
    for rerun in reruns:
        script = found[rerun["script"]]
        async with await graders.acquire() as box:
            try:
                await box.write({path: text.encode() for path, text in rerun["files"].items()})
                await box.write({rerun["script"]: script.encode()})
            except AgentFault:
                return False
            limit = len(rerun["output"].encode()) + 1
            result = await box.bash(f"bash {rerun['script']} 2>/dev/null", seconds=SECONDS, limit=limit)
            if result.note or result.text != rerun["output"]:
                return False
    return True


def _committed(expected: Mapping[str, Json], repository: Mapping[str, bytes]) -> bool:
    """Whether HEAD is the expected branch at the expected commit, made directly on the base, and main not moved."""
    try:
        branch, commit = head(repository)
    except ValueError:
        return False
    if branch != expected["branch"]:
        return False
    if not expected["new"]:
        return bool(commit.sha == expected["base"])
    kept = branch == "main" or repository.get(".git/refs/heads/main", b"").strip() == expected["base"].encode()
    right = commit.message == expected["message"] and commit.files == expected["files"]
    return kept and right and commit.parents == (expected["base"],)
