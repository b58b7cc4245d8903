"""Repositories made and read without git, against git itself; and what a commit must be to count."""

import os
import shutil
import subprocess
from pathlib import Path

import pytest

from k3rl.environments.terminal import Terminal
from k3rl.environments.terminal.git_objects import Writer, head, read_commit
from tests.environments.terminal_episodes import run, solved_and

pytestmark = pytest.mark.skipif(
    shutil.which("git") is None or shutil.which("bwrap") is None, reason="git or bubblewrap is not installed"
)
FILES = {"b": "1\n", "a/c": "2\n", "a.x": "3\n", "a/d/e": "", "z": "é\n"}


def git(folder: Path, *arguments: str) -> str:
    env = {"PATH": os.environ["PATH"], "HOME": str(folder), "GIT_CONFIG_NOSYSTEM": "1"}
    who = ["-c", "user.name=x", "-c", "user.email=x@y", "-c", "safe.directory=*"]
    return subprocess.run(
        ["git", *who, *arguments], cwd=folder, env=env, check=True, capture_output=True, text=True
    ).stdout


def written(writer: Writer, folder: Path) -> None:
    for path, data in writer.files.items():
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_bytes(data)


def test_git_accepts_what_is_written(tmp_path: Path) -> None:
    writer = Writer()
    first = writer.commit("main", FILES, "one")
    second = writer.commit("other", {**FILES, "b": "new\n"}, "two", (first,))
    writer.index(FILES)
    written(writer, tmp_path)
    for path, content in FILES.items():
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).write_text(content)
    assert git(tmp_path, "fsck", "--strict", "--full") == ""
    assert git(tmp_path, "status", "--short") == ""
    assert git(tmp_path, "log", "--format=%H %s %an %at", "--topo-order", "other").splitlines() == [
        f"{second} two agent 1735689600",
        f"{first} one agent 1735689600",
    ]
    assert git(tmp_path, "show", "other:b") == "new\n"
    assert set(git(tmp_path, "ls-files").split()) == set(FILES)


def test_what_git_writes_is_read(tmp_path: Path) -> None:
    git(tmp_path, "init", "-q", "-b", "trunk")
    for path, content in FILES.items():
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).write_text(content)
    git(tmp_path, "add", ".")
    git(tmp_path, "commit", "-qm", "words of it")
    base = git(tmp_path, "rev-parse", "HEAD").strip()
    git(tmp_path, "commit", "-q", "--allow-empty", "-m", "again")
    repository = {
        str(path.relative_to(tmp_path)): path.read_bytes() for path in (tmp_path / ".git").rglob("*") if path.is_file()
    }
    branch, commit = head(repository)
    assert (branch, commit.message, commit.parents, commit.files) == ("trunk", "again", (base,), FILES)
    assert read_commit(repository, base).message == "words of it"


def test_forged_and_broken_repositories_are_refused() -> None:
    writer = Writer()
    sha = writer.commit("main", {"a": "1\n"}, "one")
    where = f".git/objects/{sha[:2]}/{sha[2:]}"
    other = Writer()
    forged = other.commit("main", {"a": "2\n"}, "one")
    swapped = other.files[f".git/objects/{forged[:2]}/{forged[2:]}"]
    changes = [
        {where: swapped},
        {where: b"no zlib"},
        {".git/HEAD": b"ref: refs/heads/none\n"},
        {".git/HEAD": b"\xff"},
        {".git/HEAD": sha.encode()},
        {".git/refs/heads/main": b"zz\n"},
    ]
    for change in changes:
        with pytest.raises(ValueError, match=r"not|no branch"):
            head({**writer.files, **change})


def test_a_commit_that_would_never_be_read_to_its_end_is_refused() -> None:
    writer = Writer()
    sha = writer._object("tree", b"")
    for _ in range(7):  # 100 ** 7 folders in seven objects
        sha = writer._object("tree", b"".join(b"40000 %d\0" % n + bytes.fromhex(sha) for n in range(100)))
    bomb = writer._object("commit", f"tree {sha}\n\nboom\n".encode())
    with pytest.raises(ValueError, match="over 1000 files and folders"):
        read_commit(writer.files, bomb)
    treeless = writer._object("commit", b"author x\n\nnothing\n")
    with pytest.raises(ValueError, match="has 0 trees"):
        read_commit(writer.files, treeless)


async def test_a_branch_that_is_no_text_is_no_commit_and_no_fault_of_ours() -> None:
    domain = Terminal(sandboxes=1, graders=1)
    found = (domain.task("train", seed=0, level=level, index=0, family="repositories") for level in range(1, 6))
    task = next(task for task in found if task.payload["commit"]["branch"] != "main")
    try:
        score = await solved_and(domain, task, r"printf '\377' > .git/refs/heads/main")
        assert (score.reward, score.parts["commit"]) == (0.0, 0.0)
    finally:
        await domain.close()


async def test_only_the_asked_commit_counts() -> None:
    domain = Terminal(sandboxes=1, graders=1)
    task = domain.task("train", seed=0, level=1, index=0, family="repositories")
    add, message = task.payload["solutions"][1][0], task.payload["commit"]["message"]
    try:
        for command in (
            "git commit -q --amend -m other",
            "git commit -q --allow-empty -m more",
            "git checkout -qb elsewhere",
            "git checkout -q --detach",
            "rm -rf .git/refs",
            "git init -q /tmp/r && rm -rf .git && cp -r /tmp/r/.git .",
        ):
            score = await solved_and(domain, task, command)
            assert (score.reward, score.parts["commit"]) == (0.0, 0.0), command
        for commands in (
            [add],
            [f"git commit -q --allow-empty -m {message}"],
            [f"{add} && git commit -q --amend -m {message}"],
        ):
            assert (await run(domain, task, *commands))[0].reward == 0.0, commands
        assert (await solved_and(domain, task, "git status; git log; git gc -q --auto")).reward == 1.0
    finally:
        await domain.close()
