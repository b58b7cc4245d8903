"""Git repositories as plain files, made and read without git: cheap, the same bytes every time, nothing is run.

Loose objects only, as git itself writes them until it packs: "kind size\\0content", compressed, named by its SHA-1.
"""

from __future__ import annotations

import hashlib
import struct
import zlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import islice

WHO = "agent <agent@box> 1735689600 +0000"
OBJECT_BYTES = 1 << 20
FOLDERS, ENTRIES = 8, 1000  # depth of a tree, and files and folders in it, that are read
CONFIG = "[core]\n\trepositoryformatversion = 0\n\tfilemode = true\n\tbare = false\n"


@dataclass(frozen=True, kw_only=True, slots=True)
class Commit:
    """What a branch's last commit holds."""

    sha: str
    parents: tuple[str, ...]
    message: str
    files: Mapping[str, str]


class Writer:
    """Collects the files of one repository."""

    def __init__(self) -> None:
        self.files: dict[str, bytes] = {".git/HEAD": b"ref: refs/heads/main\n", ".git/config": CONFIG.encode()}

    def commit(self, branch: str, files: Mapping[str, str], message: str, parents: tuple[str, ...] = ()) -> str:
        """Add a commit of these files (flat or in folders) as the branch's last; returns its name."""
        tree = self._tree({path: content.encode() for path, content in files.items()})
        lines = [f"tree {tree}", *(f"parent {parent}" for parent in parents), f"author {WHO}", f"committer {WHO}"]
        sha = self._object("commit", ("\n".join(lines) + f"\n\n{message}\n").encode())
        self.files[f".git/refs/heads/{branch}"] = f"{sha}\n".encode()
        return sha

    def index(self, files: Mapping[str, str]) -> None:
        """The index of a clean checkout of these files; zero times make git compare contents."""
        body = b"".join(_index_entry(path, content.encode()) for path, content in sorted(files.items()))
        data = struct.pack(">4sII", b"DIRC", 2, len(files)) + body
        self.files[".git/index"] = data + hashlib.sha1(data).digest()

    def _object(self, kind: str, content: bytes) -> str:
        data = f"{kind} {len(content)}\0".encode() + content
        sha = hashlib.sha1(data).hexdigest()
        self.files[f".git/objects/{sha[:2]}/{sha[2:]}"] = zlib.compress(data, 1)
        return sha

    def _tree(self, files: Mapping[str, bytes]) -> str:
        folders: dict[str, dict[str, bytes]] = {}
        entries: list[tuple[str, str, str]] = []
        for path, content in files.items():
            folder, _, rest = path.partition("/")
            if rest:
                folders.setdefault(folder, {})[rest] = content
            else:
                entries.append((path, "100644", self._object("blob", content)))
        entries += [(f"{name}/", "40000", self._tree(inner)) for name, inner in folders.items()]
        body = b"".join(
            f"{mode} {name.rstrip('/')}\0".encode() + bytes.fromhex(sha) for name, mode, sha in sorted(entries)
        )
        return self._object("tree", body)


def _index_entry(path: str, content: bytes) -> bytes:
    sha = hashlib.sha1(f"blob {len(content)}\0".encode() + content).digest()
    name = path.encode()
    # ctime, mtime (two words each), dev, ino, mode, uid, gid, size, sha, flags: name length
    fixed = struct.pack(">10I20sH", 0, 0, 0, 0, 0, 0, 0o100644, 0, 0, 0, sha, len(name))
    entry = fixed + name
    return entry + b"\0" * (8 - len(entry) % 8)


def head(files: Mapping[str, bytes]) -> tuple[str, Commit]:
    """Branch and last commit of a repository's files. ValueError where it is not one that we can read."""
    try:
        reference = files[".git/HEAD"].decode().strip()
        if not reference.startswith("ref: refs/heads/"):
            raise ValueError(f"HEAD is {reference[:60]!r}, no branch")
        branch = reference.removeprefix("ref: refs/heads/")
        return branch, read_commit(files, files[f".git/refs/heads/{branch}"].decode().strip())
    except (KeyError, UnicodeDecodeError, zlib.error) as error:
        raise ValueError(f"not a readable repository: {error!r}") from error


def read_commit(files: Mapping[str, bytes], sha: str) -> Commit:
    """A commit with its whole tree."""
    header, _, message = _read(files, sha, "commit").decode().partition("\n\n")
    fields = [line.partition(" ") for line in header.splitlines()]
    trees = [value for key, _, value in fields if key == "tree"]
    if len(trees) != 1:
        raise ValueError(f"commit {sha[:60]} has {len(trees)} trees")
    entries = list(islice(_walk(files, trees[0], "", FOLDERS), ENTRIES + 1))
    if len(entries) > ENTRIES:  # a few trees that name each other many times hold more than could ever be read
        raise ValueError(f"commit {sha[:60]} has over {ENTRIES} files and folders")
    return Commit(
        sha=sha,
        parents=tuple(value for key, _, value in fields if key == "parent"),
        message=message.strip(),
        files={path: content for path, content in entries if content is not None},
    )


def _walk(files: Mapping[str, bytes], sha: str, prefix: str, depth: int) -> Iterator[tuple[str, str | None]]:
    """(path, content) of every file below a tree, and (path, None) of every folder."""
    if depth == 0:
        raise ValueError("folders too deep")
    data = _read(files, sha, "tree")
    while data:
        entry, _, rest = data.partition(b"\0")
        mode, _, name = entry.partition(b" ")
        path, child, data = prefix + name.decode(), rest[:20].hex(), rest[20:]
        if mode == b"40000":
            yield path, None
            yield from _walk(files, child, f"{path}/", depth - 1)
        else:
            yield path, _read(files, child, "blob").decode(errors="replace")


def _read(files: Mapping[str, bytes], sha: str, kind: str) -> bytes:
    unpacker = zlib.decompressobj()
    data = unpacker.decompress(files[f".git/objects/{sha[:2]}/{sha[2:]}"], OBJECT_BYTES)
    if unpacker.unconsumed_tail or hashlib.sha1(data).hexdigest() != sha:
        raise ValueError(f"object {sha[:60]} is too large or not what its name says")
    head, _, content = data.partition(b"\0")
    if not head.startswith(kind.encode() + b" "):
        raise ValueError(f"object {sha} is no {kind}")
    return content
