"""What a sandbox may use, and what its operations give back."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

MIB = 1024 * 1024


@dataclass(frozen=True, kw_only=True, slots=True)
class SandboxSpec:
    """`SandboxSpec(packages=("openpyxl",), preload=("openpyxl",), jobs=("k3rl.environments.office.jobs",))`.

    packages: installed distributions (their requirements come along) that Python inside can import.
    preload: modules imported once by PID 1, so that every job starts with them.
    jobs: modules or packages of ours, by dotted name, copied in read-only and importable by their last name
    (`jobs` in the example); they may import only packages, the standard library and each other. Also preloaded.
    env: added to the fixed environment. runtime: where interpreter and packages are kept on the host.
    """

    packages: tuple[str, ...] = ()
    preload: tuple[str, ...] = ()
    jobs: tuple[str, ...] = ()
    env: Mapping[str, str] = field(default_factory=dict)
    memory: int = 512 * MIB  # address space of one process, bytes
    total_memory: int = 768 * MIB  # resident bytes of all processes
    processes: int = 48
    cpu_seconds: float = 30.0  # of all processes over one episode, and of each process
    work_bytes: int = 32 * MIB  # size of /w
    tmp_bytes: int = 16 * MIB  # size of /tmp
    file_bytes: int = 16 * MIB  # size of one file
    files: int = 4096  # in each writable folder
    open_files: int = 256  # per process
    output_bytes: int = MIB  # of one command; more stops it
    uses: int = 500  # episodes before a container is replaced
    runtime: Path | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class BashResult:
    """What one command printed (both streams, at most `limit` bytes), its exit code, and what befell the shell.

    `note` is empty for an ordinary command; else it says that the shell ended or why it was stopped (`code` is then
    its status or -1), and is already appended to `text` in brackets.
    """

    text: str
    code: int
    truncated: bool = False
    timed_out: bool = False
    note: str = ""


@dataclass(frozen=True, kw_only=True, slots=True)
class Entry:
    """One path of a work folder. data: a file's bytes; target: a link's; kind `unread`: no permission or too large."""

    kind: Literal["file", "folder", "link", "other", "unread"]
    mode: int
    data: bytes = b""
    target: str = ""


@dataclass(frozen=True, kw_only=True, slots=True)
class Tree:
    """All paths below a folder, relative to it; `complete` is False when limits or permissions left something out."""

    entries: Mapping[str, Entry]
    complete: bool

    @property
    def files(self) -> dict[str, bytes]:
        """Contents of the plain files alone."""
        return {path: entry.data for path, entry in self.entries.items() if entry.kind == "file"}


def inside_config(spec: SandboxSpec, env: Mapping[str, str], path: tuple[str, ...]) -> dict[str, Any]:
    """The configuration that PID 1 gets, plain JSON."""
    seconds = max(1, int(spec.cpu_seconds))
    return {
        "env": {**env, **spec.env},
        "path": list(path),
        "preload": [*spec.preload, *(name.rpartition(".")[2] for name in spec.jobs)],
        "total_memory": spec.total_memory,
        "cpu_seconds": spec.cpu_seconds,
        "files": spec.files,
        "output_bytes": spec.output_bytes,
        "ulimit": {
            "cpu": seconds,
            "file_kib": spec.file_bytes // 1024,
            "memory_kib": spec.memory // 1024,
            "processes": spec.processes,
            "open_files": spec.open_files,
        },
        "rlimits": {
            "RLIMIT_CORE": 0,
            "RLIMIT_CPU": seconds,
            "RLIMIT_FSIZE": spec.file_bytes,
            "RLIMIT_AS": spec.memory,
            "RLIMIT_NPROC": spec.processes,
            "RLIMIT_NOFILE": spec.open_files,
        },
    }
