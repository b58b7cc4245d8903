"""Symbolic links (held out of training)."""

from __future__ import annotations

from k3rl.environments.terminal.puzzle import Content, Draw, Puzzle


def links(draw: Draw, level: int) -> Puzzle:
    """1 one link; 2 two links; 3 to the file with a word; 4 to two such files in folders; 5 turn a link to the file
    that has a word."""
    if level <= 2:
        names = draw.words(level)
        made = dict(zip(draw.words(level), names, strict=True))
        before: dict[str, Content] = draw.texts(names) | draw.others()
        wishes = " and ".join(f"{link} to {name}" for link, name in made.items())
        commands = [f"ln -s {name} {link}" for link, name in made.items()]
        return _puzzle(draw, f"Make a symbolic link {wishes}.", before, made, [[" && ".join(commands)], commands])
    return (_found, _two_found, _turned)[level - 3](draw)


def _found(draw: Draw) -> Puzzle:
    names, link = draw.words(4), draw.word()
    before: dict[str, Content] = dict(draw.texts(names))
    word = str(before[names[0]]).split()[0]
    return _puzzle(
        draw,
        f"Make a symbolic link {link} to the file that contains {word}.",
        before,
        {link: names[0]},
        [[f"grep -rl {word}", f"ln -s {names[0]} {link}"]],
    )


def _two_found(draw: Draw) -> Puzzle:
    folder, *names = draw.words(5)
    paths = [f"{folder}/{name}" for name in names]
    before: dict[str, Content] = dict(draw.texts(paths))
    words = [str(before[path]).split()[0] for path in paths[:2]]
    made = dict(zip(draw.words(2), paths[:2], strict=True))
    one, two = made
    commands = [f"ln -s {path} {link}" for link, path in made.items()]
    return _puzzle(
        draw,
        f"Make symbolic links: {one} to the file that contains {words[0]}, {two} to the file that contains {words[1]}.",
        before,
        made,
        [[f"grep -rl {words[0]}", commands[0], f"grep -rl {words[1]}", commands[1]]],
    )


def _turned(draw: Draw) -> Puzzle:
    folder, link, *names = draw.words(6)
    paths = [f"{folder}/{name}" for name in names]
    before: dict[str, Content] = dict(draw.texts(paths))
    word = str(before[paths[1]]).split()[0]
    before[link] = {"link": paths[0]}
    return _puzzle(
        draw,
        f"The symbolic link {link} must lead to the file that contains {word}. Change it.",
        before,
        {link: paths[1]},
        [
            [f"grep -rl {word}", f"ln -sf {paths[1]} {link}"],
            [f"grep -rl {word}", f"rm {link}", f"ln -s {paths[1]} {link}"],
        ],
    )


def _puzzle(
    draw: Draw, prompt: str, before: dict[str, Content], made: dict[str, str], solutions: list[list[str]]
) -> Puzzle:
    after = {**before, **{link: {"link": target} for link, target in made.items()}}
    return Puzzle(prompt=prompt, before=draw.shuffled(before), after=after, solutions=solutions)
