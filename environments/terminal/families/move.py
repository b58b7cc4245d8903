"""Move, rename, copy and delete files, named or found by what they hold."""

from __future__ import annotations

from k3rl.environments.terminal.puzzle import Content, Draw, Puzzle


def move(draw: Draw, level: int) -> Puzzle:
    """1 one action; 2 two; 3 the file is known by a word in it; 4 two such files in folders; 5 two such actions."""
    return (_one, _two, _found, _sweep, _both)[level - 1](draw)


class _Action:
    """One drawn action on a named file: its sentence, its command, its effect."""

    def __init__(self, draw: Draw, files: dict[str, Content], name: str) -> None:
        self.name = name
        self.kind = draw.rng.choice(("move", "rename", "copy", "delete"))
        self.to = "" if self.kind == "delete" else draw.word()
        if self.kind == "move":
            files[f"{self.to}/{draw.word()}"] = f"{draw.word()}\n"

    def sentence(self, what: str) -> str:
        tail = {"move": f" into {self.to}", "rename": f" to {self.to}", "copy": f" to {self.to}", "delete": ""}
        return f"{self.kind} {what}{tail[self.kind]}"

    def command(self) -> str:
        verb = {"move": "mv", "rename": "mv", "copy": "cp", "delete": "rm"}[self.kind]
        return f"{verb} {self.name} {self.to}".rstrip()

    def apply(self, files: dict[str, Content]) -> None:
        content = files[self.name] if self.kind == "copy" else files.pop(self.name)
        if self.kind == "move":
            files[f"{self.to}/{self.name.rpartition('/')[2]}"] = content
        elif self.kind != "delete":
            files[self.to] = content


def _one(draw: Draw) -> Puzzle:
    name = draw.word()
    files: dict[str, Content] = draw.texts([name]) | draw.others()
    action = _Action(draw, files, name)
    after = dict(files)
    action.apply(after)
    return Puzzle(
        prompt=_asked(draw, action.sentence(name)),
        before=draw.shuffled(files),
        after=after,
        solutions=[[action.command()]],
    )


def _two(draw: Draw) -> Puzzle:
    names = draw.words(2)
    files: dict[str, Content] = draw.texts(names) | draw.others()
    first, second = (_Action(draw, files, name) for name in names)
    after = dict(files)
    first.apply(after)
    second.apply(after)
    a, b = first.command(), second.command()
    return Puzzle(
        prompt=_asked(draw, f"{first.sentence(names[0])} and {second.sentence(names[1])}"),
        before=draw.shuffled(files),
        after=after,
        solutions=[[f"{a} && {b}"], [f"{b} && {a}"], [a, b]],
    )


def _found(draw: Draw) -> Puzzle:
    names = draw.words(4)
    files: dict[str, Content] = dict(draw.texts(names))
    name = names[0]
    word = str(files[name]).split()[draw.rng.randrange(2)]
    action = _Action(draw, files, name)
    after = dict(files)
    action.apply(after)
    return Puzzle(
        prompt=_asked(draw, action.sentence(f"the file that contains {word}")),
        before=draw.shuffled(files),
        after=after,
        solutions=[[f"grep -rl {word}", action.command()], [f"grep -l -r {word}", action.command()]],
    )


def _sweep(draw: Draw) -> Puzzle:
    folders, names, word, to = draw.words(2), draw.words(5), draw.word(), draw.word()
    files: dict[str, Content] = {}
    for number, name in enumerate(names):
        lines = [draw.word(), word if number < 2 else draw.word()]
        files[f"{folders[number % 2]}/{name}"] = "".join(f"{line}\n" for line in lines)
    files[f"{to}/{draw.word()}"] = f"{draw.word()}\n"
    hits = [f"{folders[number]}/{names[number]}" for number in range(2)]
    after = dict(files)
    for hit in hits:
        after[f"{to}/{hit.rpartition('/')[2]}"] = after.pop(hit)
    for folder in folders:
        after.setdefault(f"{folder}/", "")
    return Puzzle(
        prompt=draw.say(f"Move all files that contain {word} into {to}.", f"Move every file with {word} into {to}."),
        before=draw.shuffled(files),
        after=after,
        solutions=[
            [f"grep -rl {word}", f"mv {hits[0]} {hits[1]} {to}"],
            [f"grep -rl {word}", f"mv {hits[0]} {to}", f"mv {hits[1]} {to}"],
        ],
    )


def _both(draw: Draw) -> Puzzle:
    names = draw.words(5)
    folder = draw.word()
    paths = [names[0], f"{folder}/{names[1]}", *names[2:4], f"{folder}/{names[4]}"]
    files: dict[str, Content] = dict(draw.texts(paths))
    draw.rng.shuffle(paths)
    words = [str(files[path]).split()[0] for path in paths[:2]]
    first, second = (_Action(draw, files, path) for path in paths[:2])
    after = dict(files)
    first.apply(after)
    second.apply(after)
    after.setdefault(f"{folder}/", "")
    sentence = (
        f"{first.sentence(f'the file that contains {words[0]}')} and "
        f"{second.sentence(f'the file that contains {words[1]}')}"
    )
    return Puzzle(
        prompt=_asked(draw, sentence),
        before=draw.shuffled(files),
        after=after,
        solutions=[
            [f"grep -rl {words[0]}", first.command(), f"grep -rl {words[1]}", second.command()],
            [f"grep -rl {words[0]}", f"grep -rl {words[1]}", first.command(), second.command()],
        ],
    )


def _asked(draw: Draw, sentence: str) -> str:
    return draw.say(f"{sentence[0].upper()}{sentence[1:]}.", f"Please {sentence}.")
