"""Everyday git: commit, branch, restore, take a file from another branch."""

from __future__ import annotations

from k3rl.environments.terminal.git_objects import Writer
from k3rl.environments.terminal.puzzle import Draw, Puzzle, text
from k3rl.types import Json


def repositories(draw: Draw, level: int) -> Puzzle:
    """1 commit a file; 2 on a new branch, or two files; 3 restore what was changed; 4 take the file with a word from
    another branch; 5 restore what was changed and commit what is new."""
    return (_commit, _commit_more, _restore, _take, _tidy)[level - 1](draw)


def _puzzle(
    draw: Draw,
    prompt: str,
    committed: dict[str, str],
    work: dict[str, str],
    after: dict[str, str],
    solutions: list[list[str]],
    *,
    commit: dict[str, Json] | None = None,
    branches: dict[str, dict[str, str]] | None = None,
) -> Puzzle:
    """`commit`: what the one new commit must be (branch, message, files); None: HEAD must not move."""
    first = draw.word()
    writer = Writer()
    parent = writer.commit("main", committed, first)
    return Puzzle(
        prompt=prompt,
        before=draw.shuffled(work),
        after=after,
        solutions=solutions,
        repository={"message": first, "files": committed, "branches": branches or {}},
        commit={**(commit or {"branch": "main", "message": first, "files": committed}), "base": parent,
                "new": commit is not None},
    )  # fmt: skip


def _commit(draw: Draw) -> Puzzle:
    committed, message = draw.texts(draw.words(2)), draw.word()
    new = draw.word() if draw.rng.random() < 0.5 else draw.rng.choice(list(committed))
    work = {**committed, new: text(draw.words(2))}
    return _puzzle(
        draw,
        draw.say(f"Commit {new} with the message {message}.", f"Commit {new}. The message is {message}."),
        committed,
        work,
        work,
        [[f"git add {new} && git commit -qm {message}"], [f"git add {new}", f"git commit -qm {message}"]],
        commit={"branch": "main", "message": message, "files": work},
    )


def _commit_more(draw: Draw) -> Puzzle:
    committed, message = draw.texts(draw.words(2)), draw.word()
    names, branch = draw.words(2), draw.word()
    work = committed | draw.texts(names)
    if draw.rng.random() < 0.5:
        add = f"git add {names[0]} {names[1]}"
        return _puzzle(
            draw,
            f"Commit {names[0]} and {names[1]} with the message {message}.",
            committed,
            work,
            work,
            [[f"{add} && git commit -qm {message}"], [add, f"git commit -qm {message}"]],
            commit={"branch": "main", "message": message, "files": work},
        )
    switch, commit = f"git checkout -qb {branch}", f"git add {names[0]} && git commit -qm {message}"
    return _puzzle(
        draw,
        f"Commit {names[0]} with the message {message} on a new branch {branch}.",
        committed,
        work,
        work,
        [[f"{switch} && {commit}"], [switch, commit]],
        commit={"branch": branch, "message": message, "files": {**committed, names[0]: work[names[0]]}},
    )


def _restore(draw: Draw) -> Puzzle:
    committed = draw.texts(draw.words(4))
    name = draw.rng.choice(list(committed))
    work = {**committed, name: text(draw.words(2))}
    return _puzzle(
        draw,
        draw.say("One file was changed since the last commit. Restore it.", "Undo the change that is not committed."),
        committed,
        work,
        committed,
        [["git status -s", f"git restore {name}"], ["git diff --name-only", f"git restore {name}"]],
    )


def _take(draw: Draw) -> Puzzle:
    committed, branch = draw.texts(draw.words(3)), draw.word()
    other = draw.texts(draw.words(2))
    name = draw.rng.choice(list(other))
    word = other[name].split()[0]
    return _puzzle(
        draw,
        draw.say(
            f"On the branch {branch}, one file contains {word}. Take this file from there.",
            f"Get the file that contains {word} from the branch {branch}.",
        ),
        committed,
        committed,
        {**committed, name: other[name]},
        [[f"git grep -l {word} {branch}", f"git checkout -q {branch} {name}"],
         [f"git grep -l {word} {branch}", f"git show {branch}:{name} > {name}"]],
        branches={branch: {**committed, **other}},
    )  # fmt: skip


def _tidy(draw: Draw) -> Puzzle:
    committed, message = draw.texts(draw.words(3)), draw.word()
    changed, new = draw.rng.choice(list(committed)), draw.word()
    work = {**committed, changed: text(draw.words(2)), new: text(draw.words(2))}
    after = {**committed, new: work[new]}
    restore, commit = f"git restore {changed}", f"git add {new} && git commit -qm {message}"
    return _puzzle(
        draw,
        f"Undo the change that is not committed. Then commit the new file with the message {message}.",
        committed,
        work,
        after,
        [["git status -s", restore, commit], ["git status -s", f"{restore} && {commit}"]],
        commit={"branch": "main", "message": message, "files": after},
    )
