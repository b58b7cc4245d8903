"""One terminal episode: a bash in a sandbox, and the tree it leaves."""

from __future__ import annotations

import base64
from collections.abc import Mapping

from k3rl.environments.sandbox import Entry, Sandbox, Tree
from k3rl.environments.tool_environment import ToolEnvironment
from k3rl.types import Json, Task

TREE_BYTES = 1 << 20
TREE_ENTRIES = 1000


class TerminalEnvironment(ToolEnvironment):
    """`shell(command)` in a bash that lives as long as the episode."""

    def __init__(self, task: Task, box: Sandbox, *, seconds: float, observation_limit: int) -> None:
        super().__init__(task)
        self.observation_limit = observation_limit
        self._box, self._seconds = box, seconds

    async def tool_shell(self, command: str) -> str:
        """What the command prints, and its exit code where it failed."""
        result = await self._box.bash(command, seconds=self._seconds, limit=4 * self.observation_limit)
        text = result.text.rstrip("\n")
        if result.code != 0 and not result.note:
            text = f"{text}\n(exit {result.code})".lstrip("\n")
        return text or "ok"

    async def artifacts(self) -> Mapping[str, Json]:
        """The work folder after every process was stopped: {files: {path: text, or {"base64": ...}}, modes, links,
        folders, others, complete, answer}."""
        await self._box.kill()
        return {**tree_values(await self._box.tree(limit_bytes=TREE_BYTES, limit_entries=TREE_ENTRIES)),
                "answer": self.answer or ""}  # fmt: skip

    async def release(self) -> None:
        """Give the sandbox back."""
        await self._box.close()


def tree_values(tree: Tree) -> dict[str, Json]:
    """A tree as JSON values."""
    entries = tree.entries
    return {
        "files": {path: _value(entry.data) for path, entry in entries.items() if entry.kind == "file"},
        "modes": {path: entry.mode for path, entry in entries.items() if entry.kind in ("file", "unread")},
        "links": {path: entry.target for path, entry in entries.items() if entry.kind == "link"},
        "folders": _of_kind(entries, "folder"),
        "others": _of_kind(entries, "other", "unread"),
        "complete": tree.complete,
    }


def _of_kind(entries: Mapping[str, Entry], *kinds: str) -> list[str]:
    return [path for path, entry in entries.items() if entry.kind in kinds]


def _value(data: bytes) -> Json:
    try:
        return data.decode()
    except UnicodeDecodeError:
        return {"base64": base64.b64encode(data).decode()}
