"""One live episode: a workbook in a sandbox and the two tools on it."""

from __future__ import annotations

import base64
from collections.abc import Mapping

from k3rl.environments.office.plan import Plan
from k3rl.environments.office.workbook import build
from k3rl.environments.sandbox import JobFailure, Sandbox
from k3rl.environments.tool_environment import ToolEnvironment
from k3rl.errors import SandboxError
from k3rl.types import Json, Task, Tool

BOOK = "book.xlsx"
MAX_BYTES = 1 << 20  # of the file an episode may leave
JOB_SECONDS = 5.0

_TEXT = {"type": "string"}
TOOLS = (
    Tool(
        name="read",
        description="Read cells: B3, A1:C4 or a sheet's name.",
        parameters={"type": "object", "properties": {"range": _TEXT}, "required": ["range"]},
    ),
    Tool(
        name="write",
        description="Write one cell: a value, a =formula or nothing.",
        parameters={"type": "object", "properties": {"cell": _TEXT, "value": _TEXT}, "required": ["cell", "value"]},
    ),
)


class OfficeEnvironment(ToolEnvironment):
    """Every tool call runs openpyxl on the file in the sandbox; nothing of the workbook is kept outside."""

    def __init__(self, task: Task, box: Sandbox) -> None:
        super().__init__(task)
        self._box = box
        self._fresh = True  # until the first job is done: the process that runs them may know another workbook

    @classmethod
    async def start(cls, task: Task, box: Sandbox) -> OfficeEnvironment:
        """Put the task's workbook into the sandbox."""
        await box.write({BOOK: build(Plan.from_json(task.payload).sheets)})
        return cls(task, box)

    async def tool_read(self, range: str) -> str:
        """Cells as text, one row a line."""
        return await self._job("read", {"range": range})

    async def tool_write(self, cell: str, value: str) -> str:
        """Save one changed cell."""
        return await self._job("write", {"cell": cell, "value": value})

    async def _job(self, name: str, arguments: dict[str, str]) -> str:
        argument: dict[str, Json] = {"path": BOOK, "fresh": self._fresh, **arguments}
        reply = await self._run_job(name, argument)
        self._fresh = False
        return reply["text"] if "text" in reply else f"error: {reply['error']}"

    async def _run_job(self, name: str, argument: dict[str, Json]) -> Json:
        """No job runs anything of the agent's, and what it writes is small: a failure is ours."""
        try:
            return await self._box.python(f"sheet_jobs.tools:{name}", argument, seconds=JOB_SECONDS, resident=True)
        except JobFailure as failure:
            raise SandboxError(f"{self.task.id}: {failure}") from failure

    async def artifacts(self) -> Mapping[str, Json]:
        """`{"answer": text, "workbook": base64 of the file}`; "" where the file is gone or too large."""
        if not self._fresh:
            await self._run_job("save", {"path": BOOK})
        files = await self._box.read_tree(limit_bytes=MAX_BYTES)
        return {"answer": self.answer or "", "workbook": base64.b64encode(files.get(BOOK, b"")).decode()}

    async def release(self) -> None:
        """Give the sandbox back."""
        await self._box.close()
