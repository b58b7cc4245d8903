"""Files of the work folder, in and out, and the emptying between episodes. Links are never followed out of it."""

from __future__ import annotations

import os
import shutil
import stat
from collections.abc import Iterator, Mapping
from typing import Any

WORK = "/w"
FOLDERS = {"/w": 0o755, "/tmp": 0o1777, "/dev/shm": 0o1777}
MTIME = 1735689600  # 2025-01-01: what `ls -l` shows must not depend on the clock
DEPTH = 64


def write(header: Mapping[str, Any], blob: bytes) -> None:
    """`files`: [path, mode, size] in the blob's order; `folders`: paths; `links`: [path, target]. Raises OSError."""
    parents = {os.path.dirname(name) for name, *_ in [*header["files"], *header["links"]]} | set(header["folders"])
    parents = {f"{WORK}/{name}" for name in parents if name}
    for folder in sorted(parents):
        os.makedirs(folder, exist_ok=True)
    start = 0
    for name, mode, size in header["files"]:
        _write_file(f"{WORK}/{name}", mode, memoryview(blob)[start : start + size])
        start += size
    for name, target in header["links"]:
        os.symlink(target, f"{WORK}/{name}")
        os.utime(f"{WORK}/{name}", (MTIME, MTIME), follow_symlinks=False)
    for folder in parents | {WORK}:
        os.utime(folder, (MTIME, MTIME))


def _write_file(path: str, mode: int, data: memoryview) -> None:
    # O_NONBLOCK: the agent may have put a pipe there, whose opening would wait for ever.
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, 0o600)
    try:
        if not stat.S_ISREG(os.fstat(fd).st_mode):
            raise OSError(f"{path} is not a plain file")
        while data:
            data = data[os.write(fd, data) :]
        os.fchmod(fd, mode)
        os.utime(fd, (MTIME, MTIME))
    finally:
        os.close(fd)


def tree(top: str, limit_bytes: int, limit_entries: int) -> tuple[dict[str, Any], bytes]:
    """Entries [path, kind, mode, size or link target] below `top`, sorted by folder; contents in the blob.

    Kinds: file (with contents), folder, link, other (pipes, sockets), unread (no permission, or past the limits).
    `complete` is False when anything was left out.
    """
    entries: list[list[Any]] = []
    blob = bytearray()
    complete = True
    for base, names, folder_fd, cut in _walk(f"{WORK}/{top}" if top else WORK):
        complete &= not cut
        for name in names:
            if len(entries) >= limit_entries:
                return {"entries": entries, "complete": False}, bytes(blob)
            path = f"{base}{name}"
            try:
                info = os.stat(name, dir_fd=folder_fd, follow_symlinks=False)
            except PermissionError:  # the folder may be listed and not entered (mode 0644)
                entries.append([path, "unread", 0, 0])
                complete = False
                continue
            mode = stat.S_IMODE(info.st_mode)
            if stat.S_ISDIR(info.st_mode):
                entries.append([path, "folder", mode, 0])
            elif stat.S_ISLNK(info.st_mode):
                entries.append([path, "link", mode, os.readlink(name, dir_fd=folder_fd)])
            elif not stat.S_ISREG(info.st_mode):
                entries.append([path, "other", mode, 0])
            else:
                data = _read_file(name, folder_fd, limit_bytes - len(blob))
                complete &= data is not None
                entries.append([path, "unread", mode, 0] if data is None else [path, "file", mode, len(data)])
                blob += data or b""
    return {"entries": entries, "complete": complete}, bytes(blob)


def _walk(top: str) -> Iterator[tuple[str, list[str], int, bool]]:
    """(prefix relative to `top`, sorted names, folder descriptor, whether something below was left out)."""
    missed: list[OSError] = []
    for root, folders, others, fd in os.fwalk(top, follow_symlinks=False, onerror=missed.append):
        base = root[len(top) :].lstrip("/")
        names = sorted([*folders, *others])
        cut = base.count("/") >= DEPTH and bool(folders)
        if cut:
            folders.clear()
        folders.sort()
        yield f"{base}/" if base else "", names, fd, cut or bool(missed)
    if missed:
        yield "", [], -1, True


def _read_file(name: str, folder_fd: int, most: int) -> bytes | None:
    try:
        fd = os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, dir_fd=folder_fd)
    except PermissionError:
        return None
    with open(fd, "rb", buffering=0) as file:
        size = os.fstat(fd).st_size
        if size > most:
            return None
        parts = bytearray()
        while len(parts) < size and (data := file.read(size - len(parts))):
            parts += data
        return bytes(parts)


def empty() -> None:
    """Remove everything from every writable folder; OSError or RecursionError if something would not go."""
    for folder, mode in FOLDERS.items():
        os.chmod(folder, mode)
        for name in os.listxattr(folder):
            os.removexattr(folder, name)
        with os.scandir(folder) as entries:
            for entry in entries:
                if entry.is_dir(follow_symlinks=False):
                    _remove_tree(entry.path)
                else:
                    os.unlink(entry.path)
        os.utime(folder, (MTIME, MTIME))


def _remove_tree(path: str) -> None:
    try:
        shutil.rmtree(path)
    except PermissionError:
        os.chmod(path, 0o700)
        for root, folders, _ in os.walk(path):
            for name in folders:
                if not os.path.islink(f"{root}/{name}"):
                    os.chmod(f"{root}/{name}", 0o700)
        shutil.rmtree(path)
