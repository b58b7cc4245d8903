"""One episode: the repository as the agent sees it, and its tools `view`, `edit` and `test`.

The files are plain values of the episode; only `test` needs a sandbox, for as long as it runs.
"""

from __future__ import annotations

import posixpath
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from k3rl.environments.code_repair.runs import Runs
from k3rl.environments.sandbox import JobFailure
from k3rl.environments.tool_environment import ToolEnvironment
from k3rl.errors import AgentFault
from k3rl.types import Json, Task, Tool

TREE_BYTES = 65536
SUITE = "suite_jobs.runner:suite"


def _tool(name: str, description: str, *arguments: str) -> Tool:
    properties = {argument: {"type": "string"} for argument in arguments}
    parameters: dict[str, Json] = {"type": "object", "properties": properties, "required": list(arguments)}
    return Tool(name=name, description=description, parameters=parameters)


TOOLS = (
    _tool("view", "Show a file.", "path"),
    _tool("edit", "Replace text that is in a file once.", "path", "old", "new"),
    _tool("test", "Run the tests."),
)


class Workspace(ToolEnvironment):
    """`runs` runs the tests."""

    def __init__(self, task: Task, runs: Runs) -> None:
        super().__init__(task)
        self.files: dict[str, str] = dict(task.payload["files"])
        self._runs = runs

    async def artifacts(self) -> Mapping[str, Json]:
        """The files as they are now."""
        return {"files": dict(self.files)}

    async def tool_view(self, path: str) -> str:
        """A file's text, or the names in a folder."""
        path = posixpath.normpath(path)
        if path in self.files:
            return self.files[path].rstrip("\n")
        prefix = "" if path == "." else f"{path}/"
        names = {name[len(prefix) :].split("/")[0] for name in self.files if name.startswith(prefix)}
        if not names:
            raise AgentFault(f"no file {path}")
        return "\n".join(sorted(names))

    async def tool_edit(self, path: str, old: str, new: str) -> str:
        """Replace `old`, which must be in the file exactly once."""
        path = posixpath.normpath(path)
        if path not in self.files:
            raise AgentFault(f"no file {path}")
        count = self.files[path].count(old) if old else 0
        if count != 1:
            raise AgentFault("old must not be empty" if not old else f"old is in {path} {count} times, not once")
        text = self.files[path].replace(old, new)
        if sum(map(len, self.files.values())) - len(self.files[path]) + len(text) > TREE_BYTES:
            raise AgentFault(f"the files would be larger than {TREE_BYTES} characters")
        self.files[path] = text
        return "ok"

    async def tool_test(self) -> str:
        """Run pytest on the files as they are."""
        try:
            return report(record(await self._runs.lines(SUITE, self.files)))
        except JobFailure as failure:
            return f"the tests did not end: {failure}"


@dataclass(kw_only=True, slots=True)
class Record:
    """What the suite said of itself: outcomes and one-line notes by test id, errors by file, whether it ended."""

    outcomes: dict[str, str] = field(default_factory=dict)
    notes: dict[str, str] = field(default_factory=dict)
    errors: dict[str, str] = field(default_factory=dict)
    finished: bool = False


def record(lines: Sequence[Json]) -> Record:
    """The suite's lines (see suite_jobs/runner.py); what has another form was not sent by us and is left out."""
    found = Record()
    for line in lines:
        match line:
            case ["test", str(name), str(outcome), str(note)]:
                found.outcomes[name], found.notes[name] = outcome, note
            case ["error", str(name), str(note)]:
                found.errors[name] = note
            case ["finished"]:
                found.finished = True
    return found


def report(record: Record) -> str:
    """Failures line by line, then the counts.

    tests/test_oak.py::test_fig: assert fig(1) == 2
    1 failed, 3 passed
    """
    failed = [test for test, outcome in record.outcomes.items() if outcome != "passed"]
    lines = [f"{test}: {record.notes[test]}" for test in failed]
    lines += [f"{file}: {error}" for file, error in record.errors.items()]
    if not record.finished:
        lines.append("the run broke off")
    bad, good = len(failed) + len(record.errors), len(record.outcomes) - len(failed)
    counts = [f"{bad} failed"] * bool(bad) + [f"{good} passed"] * bool(good)
    return "\n".join([*lines, ", ".join(counts) or "no tests ran"])
