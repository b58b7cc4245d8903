"""Other people's conversations as messages, for supervised training."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TypeAlias

import pyarrow as pa
import pyarrow.parquet as pq

from k3rl.chat.openai import from_openai
from k3rl.errors import UserError
from k3rl.types import Json, Message, Tool

Conversation: TypeAlias = tuple[tuple[Message, ...], tuple[Tool, ...]]
"""Canonical messages, and the tools they call."""


def read_conversations(path: Path) -> Iterator[Conversation]:
    """Rows with a `messages` column, and optionally `tools`, in OpenAI's form (lists, or the same as JSON text).

    `path` is a .jsonl or .parquet file, a folder that `datasets` saved, or a folder of .jsonl and .parquet files. In
    columnar files null is no value: rows of one column share their keys there. Raises UserError with file, row and
    what is wrong; a row without an assistant message is wrong, there is nothing to learn from it.
    """
    if not path.exists():
        raise UserError(f"{path}: no such file or folder")
    found = False
    for where, row in _rows(path):
        found = True
        try:
            yield _conversation(row)
        except UserError as error:
            raise UserError(f"{where}: {error}") from error
    if not found:
        raise UserError(f"{path}: no rows; it needs .jsonl or .parquet files, or a folder saved by `datasets`")


def _conversation(row: Json) -> Conversation:
    if not isinstance(row, Mapping):
        raise UserError(f"must be an object with `messages`, not {type(row).__name__}")
    messages = _decoded(row.get("messages"), "messages")
    if not messages:
        raise UserError(f"no `messages` (its columns: {', '.join(map(str, row)) or 'none'})")
    request = from_openai({"messages": messages, "tools": _decoded(row.get("tools"), "tools")})
    if not any(message.role == "assistant" for message in request.messages):
        raise UserError("no assistant message to learn from")
    return request.messages, request.tools


def _decoded(value: Json, name: str) -> Json:
    if not isinstance(value, str):
        return value
    try:
        return json.loads(value) if value else None
    except ValueError as error:
        raise UserError(f"{name} is text but not JSON ({error})") from error


def _rows(path: Path) -> Iterator[tuple[str, Json]]:
    """(where, row) over whatever lies at `path`."""
    if path.is_dir() and any((path / name).exists() for name in ("dataset_info.json", "dataset_dict.json")):
        yield from _saved_dataset(path)
    elif path.is_dir():
        for file in sorted(file for file in path.rglob("*") if file.suffix in _READERS):
            yield from _READERS[file.suffix](file)
    elif path.suffix in _READERS:
        yield from _READERS[path.suffix](path)
    else:
        raise UserError(f"{path}: {path.suffix or 'no'} ending; it must be .jsonl or .parquet")


def _jsonl(file: Path) -> Iterator[tuple[str, Json]]:
    with file.open("rb") as lines:
        for number, line in enumerate(lines, start=1):
            if line.strip():
                where = f"{file}, row {number}"
                try:
                    row = json.loads(line)
                except ValueError as error:
                    raise UserError(f"{where}: not JSON ({error})") from error
                yield where, row


def _parquet(file: Path) -> Iterator[tuple[str, Json]]:
    try:
        with pq.ParquetFile(file) as source:
            number = 0
            for batch in source.iter_batches(batch_size=256):
                for row in batch.to_pylist():
                    number += 1
                    yield f"{file}, row {number}", _without_nulls(row)
    except (OSError, pa.ArrowInvalid) as error:
        raise UserError(f"{file}: cannot be read as Parquet ({error}); was it cut short?") from error


def _saved_dataset(folder: Path) -> Iterator[tuple[str, Json]]:
    import datasets

    try:
        loaded = datasets.load_from_disk(str(folder))
    except (OSError, ValueError, pa.ArrowInvalid) as error:
        raise UserError(f"{folder}: cannot be loaded by `datasets` ({error})") from error
    parts = loaded if isinstance(loaded, datasets.DatasetDict) else {"": loaded}
    for name, part in parts.items():
        for number, row in enumerate(part, start=1):
            yield f"{folder}{f', {name}' if name else ''}, row {number}", _without_nulls(row)


def _without_nulls(value: Json) -> Json:
    if isinstance(value, dict):
        return {key: _without_nulls(item) for key, item in value.items() if item is not None}
    return [_without_nulls(item) for item in value] if isinstance(value, list) else value


_READERS = {".jsonl": _jsonl, ".parquet": _parquet}
