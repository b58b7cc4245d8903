"""Supervised data from files that other tools wrote."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from k3rl.errors import UserError
from k3rl.observability.conversations import read_conversations
from k3rl.types import (
    Message,
    Tool,
    ToolCall,
)

PLAIN = {"messages": [{"role": "user", "content": "hi"}, {"role": "assistant", "content": "hello"}]}
AGENT: dict[str, Any] = {
    "messages": [
        {"role": "user", "content": [{"type": "text", "text": "list"}]},
        {
            "role": "assistant",
            "content": None,
            "reasoning_content": "look",
            "tool_calls": [
                {"id": "call_x", "type": "function", "function": {"name": "ls", "arguments": '{"path": "a"}'}}
            ],
        },
        {"role": "tool", "tool_call_id": "call_x", "content": "b"},
        {"role": "assistant", "content": "b"},
    ],
    "tools": [
        {"type": "function", "function": {"name": "ls", "description": "list", "parameters": {"type": "object"}}}
    ],
}
AGENT_MESSAGES = (
    Message(role="user", content="list"),
    Message(
        role="assistant",
        reasoning="look",
        tool_calls=(ToolCall(id="ls:1", name="ls", arguments={"path": "a"}),),
    ),
    Message(role="tool", content="b", name="ls", tool_call_id="ls:1"),
    Message(role="assistant", content="b"),
)
AGENT_TOOLS = (Tool(name="ls", description="list", parameters={"type": "object"}),)


def jsonl(path: Path, *rows: Any) -> Path:
    path.write_text("".join((row if isinstance(row, str) else json.dumps(row)) + "\n" for row in rows))
    return path


def check_both(path: Path) -> None:
    plain, agent = read_conversations(path)
    assert plain == ((Message(role="user", content="hi"), Message(role="assistant", content="hello")), ())
    assert agent == (AGENT_MESSAGES, AGENT_TOOLS)


def test_jsonl(tmp_path: Path) -> None:
    check_both(jsonl(tmp_path / "a.jsonl", PLAIN, AGENT))


def test_columns_as_json_text(tmp_path: Path) -> None:
    texts = [{name: json.dumps(value) for name, value in row.items()} for row in (PLAIN, AGENT)]
    check_both(jsonl(tmp_path / "a.jsonl", *texts))


def test_parquet(tmp_path: Path) -> None:
    agent = json.loads(json.dumps(AGENT))
    agent["messages"][0]["content"] = "list"  # a column has one type
    pq.write_table(pa.Table.from_pylist([{**PLAIN, "tools": None}, agent]), tmp_path / "a.parquet")
    check_both(tmp_path / "a.parquet")


def test_folder_of_both_kinds(tmp_path: Path) -> None:
    jsonl(tmp_path / "a.jsonl", PLAIN)
    (tmp_path / "deep").mkdir()
    jsonl(tmp_path / "deep" / "b.jsonl", AGENT)
    (tmp_path / "README.md").write_text("not data")
    check_both(tmp_path)


def test_folder_saved_by_datasets(tmp_path: Path) -> None:
    # In a process of its own: the library warns about things that are none of ours.
    script = (
        "import datasets, json, sys\n"
        "rows = json.loads(sys.argv[2])\n"
        "data = datasets.Dataset.from_list(rows)\n"
        "datasets.DatasetDict(train=data).save_to_disk(sys.argv[1])\n"
        "import k3rl.observability.conversations as d, pathlib\n"
        "found = [messages[-1].content for messages, _ in d.read_conversations(pathlib.Path(sys.argv[1]))]\n"
        "print(found)\n"
    )
    rows = json.dumps(
        [PLAIN, {"messages": [*PLAIN["messages"], {"role": "user"}, {"role": "assistant", "content": "x"}]}]
    )
    command = [sys.executable, "-c", script, str(tmp_path / "saved"), rows]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "['hello', 'x']"


@pytest.mark.parametrize(
    ("row", "what"),
    [
        ("{oops", "not JSON"),
        ([1], "must be an object with `messages`, not list"),
        ({"prompt": "x", "answer": "y"}, "no `messages` (its columns: prompt, answer)"),
        ({"messages": "[oops"}, "messages is text but not JSON"),
        ({"messages": [{"role": "bot", "content": "x"}]}, "messages[0].role is 'bot'"),
        ({"messages": [{"role": "user", "content": "x"}]}, "no assistant message to learn from"),
        ({"messages": [{"role": "assistant", "tool_calls": [{"function": {}}]}]}, "function.name is missing"),
        ({**PLAIN, "tools": "no"}, "tools is text but not JSON"),
    ],
)
def test_a_bad_row_is_named_in_one_line(tmp_path: Path, row: Any, what: str) -> None:
    file = jsonl(tmp_path / "a.jsonl", PLAIN, row)
    reader = read_conversations(file)
    assert next(reader)[0][-1].content == "hello"
    with pytest.raises(UserError, match=f"^{re.escape(str(file))}, row 2: ") as caught:
        next(reader)
    assert what in str(caught.value)
    assert "\n" not in str(caught.value)


def test_nothing_to_read_is_told(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="no such file"):
        list(read_conversations(tmp_path / "missing"))
    with pytest.raises(UserError, match="no rows"):
        list(read_conversations(tmp_path))
    (tmp_path / "a.csv").write_text("x")
    with pytest.raises(UserError, match=r"\.csv ending"):
        list(read_conversations(tmp_path / "a.csv"))
    (tmp_path / "a.parquet").write_bytes(b"PAR1 cut")
    with pytest.raises(UserError, match="cannot be read as Parquet"):
        list(read_conversations(tmp_path / "a.parquet"))
