"""Warm containers for one event loop: `acquire` lends one for an episode, `close` wipes it and takes it back."""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import Mapping
from typing import Any

from k3rl.environments.sandbox.container import Container
from k3rl.environments.sandbox.runtime import Runtime, prepare
from k3rl.environments.sandbox.spec import BashResult, Entry, SandboxSpec, Tree
from k3rl.errors import AgentFault, ConfigError, EnvironmentFault, SandboxError
from k3rl.time_limit import queueing
from k3rl.types import Json

COMMAND_BYTES = 32768  # below a pipe's capacity, so that PID 1 never waits for the shell
FILE_SECONDS = 10.0


class JobFailure(AgentFault):
    """A Python job did not return: out of time or memory, or its process died. `output` is what it had printed."""

    def __init__(self, text: str, output: str) -> None:
        super().__init__(text)
        self.output = output


class SandboxPool:
    """At most `size` containers, started when first needed; a further `acquire` waits for a `close`.

    Containers die with the thread that started them: keep the event loop in a thread that lives as long as the pool.
    Whoever holds one sandbox and needs a second should take it from another pool, else all may wait for each other.
    """

    def __init__(self, spec: SandboxSpec, size: int) -> None:
        if size < 1:
            raise ConfigError(f"a pool of {size} sandboxes: must be at least 1")
        self.spec, self.size = spec, size
        self._idle: list[Container] = []
        self._free = asyncio.Semaphore(size)
        self._runtime: Runtime | None = None
        self._preparing = asyncio.Lock()
        self._closed = False

    async def acquire(self) -> Sandbox:
        """A clean sandbox, warm if there is one. Raises SandboxError if none can be started."""
        if self._closed:
            raise SandboxError("the sandbox pool is closed")
        with queueing():
            await self._free.acquire()
        try:
            container = self._idle.pop() if self._idle else await self._start()
        except BaseException:
            self._free.release()
            raise
        container.uses += 1
        return Sandbox(self, container)

    async def close(self) -> None:
        """End all idle containers; lent ones end when they are closed."""
        self._closed = True
        idle, self._idle = self._idle, []
        for container in idle:
            await container.discard()

    async def __aenter__(self) -> SandboxPool:
        return self

    async def __aexit__(self, *exc: Any) -> None:
        await self.close()

    async def _start(self) -> Container:
        async with self._preparing:
            if self._runtime is None:
                self._runtime = await asyncio.to_thread(prepare, self.spec)
        return await Container.start(self.spec, self._runtime)

    async def _take_back(self, container: Container) -> None:
        keep = False
        try:
            if not (container.broken or self._closed or container.uses >= self.spec.uses):
                reply, _ = await container.call({"op": "reset"}, seconds=FILE_SECONDS)
                keep = not reply["dirt"] and not self._closed
        except SandboxError:
            keep = False  # a container that cannot be reset is simply replaced
        finally:
            try:
                if keep:
                    self._idle.append(container)
                else:
                    await container.discard()
            finally:
                self._free.release()


class Sandbox:
    """One lent container. Paths are relative to its work folder /w."""

    def __init__(self, pool: SandboxPool, container: Container) -> None:
        self._pool, self._container = pool, container
        self._closed = False

    async def write(
        self,
        files: Mapping[str, bytes],
        *,
        modes: Mapping[str, int] | None = None,
        links: Mapping[str, str] | None = None,
    ) -> None:
        """Write files (and their folders; a path ending in "/" is an empty folder), modes 0644 unless given, and
        symbolic links {path: target}. Raises AgentFault where what the agent left forbids it."""
        modes, links = modes or {}, links or {}
        plain = {path: data for path, data in files.items() if not path.endswith("/")}
        for path in (*files, *links):
            confined(path.rstrip("/"))
        header = {
            "op": "write",
            "files": [[path, modes.get(path, 0o644), len(data)] for path, data in plain.items()],
            "folders": [path.rstrip("/") for path in files if path.endswith("/")],
            "links": [[path, target] for path, target in links.items()],
        }
        reply, _ = await self._container.call(header, b"".join(plain.values()), seconds=FILE_SECONDS)
        if "fault" in reply:
            raise AgentFault(f"cannot write: {reply['fault']}")

    async def tree(self, top: str = "", *, limit_bytes: int = 1 << 20, limit_entries: int = 2000) -> Tree:
        """All paths below a folder, with modes, link targets and (up to the limits) contents; no link is followed."""
        if top:
            confined(top)
        header = {"op": "tree", "top": top, "limit_bytes": limit_bytes, "limit_entries": limit_entries}
        reply, blob = await self._container.call(header, seconds=FILE_SECONDS)
        entries: dict[str, Entry] = {}
        start = 0
        for path, kind, mode, value in reply["entries"]:
            size = value if kind == "file" else 0
            target = value if kind == "link" else ""
            entries[path] = Entry(kind=kind, mode=mode, data=blob[start : start + size], target=target)
            start += size
        return Tree(entries=entries, complete=reply["complete"])

    async def read_tree(self, limit_bytes: int = 1 << 20, top: str = "") -> dict[str, bytes]:
        """Contents of the plain files below a folder, up to the limit; see `tree` for what else there is."""
        return (await self.tree(top, limit_bytes=limit_bytes)).files

    async def bash(self, command: str, *, seconds: float = 5.0, limit: int = 4096) -> BashResult:
        """Run a command in the episode's bash, whose folder, variables and background jobs live on."""
        data = command.encode(errors="replace")
        if b"\0" in data or len(data) > COMMAND_BYTES:
            return BashResult(text="[the command holds a NUL byte or is too long]", code=2)
        header = {"op": "bash", "seconds": seconds, "limit": limit}
        reply, blob = await self._container.call(header, data, seconds=seconds)
        text, note = blob.decode(errors="replace"), reply["note"]
        return BashResult(
            text=f"{text}[{note}]" if note else text,
            code=reply["code"],
            truncated=reply["truncated"],
            timed_out=reply.get("stopped", "").startswith("out of time"),
            note=note,
        )

    async def python(
        self, target: str, argument: Json = None, *, seconds: float = 5.0, limit: int = 4096, resident: bool = False
    ) -> Json:
        """Call "module:function" of the spec's jobs with one JSON argument, in a forked child whose imports are done.

        resident: in a process that lives on between such calls, over episodes too, as long as nothing but resident
        calls is asked of the container; for functions that run nothing of the agent's, at a fraction of the cost.
        Raises JobFailure when it did not return (time, memory, death: what the agent left may cause that), and
        EnvironmentFault when the function raised.
        """
        reply, blob = await self._job(target, argument, seconds, limit, resident=resident)
        if reply["kind"] == "value":
            return json.loads(blob)
        output = blob.decode(errors="replace")
        text = f"{target}: {reply['text']}"
        if reply["kind"] == "raised" and not reply["text"].startswith("MemoryError"):
            raise EnvironmentFault(f"{text}\n{output}".rstrip())
        raise JobFailure(text, output)

    async def lines(
        self, target: str, argument: Json = None, *, seconds: float = 5.0, limit: int = 1 << 18
    ) -> list[Json]:
        """Call "module:function" as `function(argument, send)` where code may run that nobody trusts: the JSON values
        that were sent (`limit` bytes at most), whether it returned, exited or crashed; lines that are no JSON are left
        out. That code can send whatever it likes. Raises JobFailure when it was stopped (time, memory, files)."""
        reply, blob = await self._job(target, argument, seconds, limit, lines=True)
        if reply["kind"] == "lines":
            return [value for line in blob.splitlines() if (value := _parsed(line)) is not None]
        raise JobFailure(f"{target}: {reply['text']}", "")

    async def _job(
        self, target: str, argument: Json, seconds: float, limit: int, *, resident: bool = False, lines: bool = False
    ) -> tuple[dict[str, Any], bytes]:
        header = {"op": "python", "target": target, "argument": argument, "seconds": seconds, "limit": limit}
        return await self._container.call({**header, "resident": resident, "lines": lines}, seconds=seconds)

    async def kill(self) -> None:
        """Stop every process of the episode (shell and background jobs), so that files cannot change any more."""
        reply, _ = await self._container.call({"op": "kill"}, seconds=FILE_SECONDS)
        if not reply["done"]:
            raise SandboxError("processes of the sandbox would not die")

    async def close(self) -> None:
        """Give it back; safe to call twice."""
        if not self._closed:
            self._closed = True
            await self._pool._take_back(self._container)

    async def __aenter__(self) -> Sandbox:
        return self

    async def __aexit__(self, *exc: Any) -> None:
        await self.close()


def confined(path: str) -> str:
    """The path, if it is relative and stays below the work folder. Raises AgentFault."""
    normal = os.path.normpath(path)
    if not path or path.startswith("/") or normal.startswith("..") or "\0" in path:
        raise AgentFault(f"the path {path!r} is not inside the work folder")
    return normal


def _parsed(line: bytes) -> Json:
    """A line's value; None where untrusted code wrote something else."""
    try:
        return json.loads(line)
    except (ValueError, RecursionError):
        return None
