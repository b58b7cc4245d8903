"""Set modes of files, named or found by their mode or by what they hold."""

from __future__ import annotations

from k3rl.environments.terminal.puzzle import Content, Draw, Puzzle

MODES = (0o600, 0o640, 0o700, 0o755, 0o444)
PLAIN = 0o644


def permissions(draw: Draw, level: int) -> Puzzle:
    """1 one file; 2 two files; 3 the file of a mode; 4 two such files in folders; 5 and one known by a word in it."""
    old, new, extra = draw.rng.sample(MODES, 3)
    if level <= 2:
        names = draw.words(level)
        before: dict[str, Content] = draw.texts(names) | draw.others()
        modes = dict(zip(names, (new, extra), strict=False))
        commands = [f"chmod {mode:o} {name}" for name, mode in modes.items()]
        wishes = " and ".join(f"the mode of {name} to {mode:o}" for name, mode in modes.items())
        solutions = [[" && ".join(commands)], *([commands, [" && ".join(reversed(commands))]] if level == 2 else [])]
        return _puzzle(draw, f"Set {wishes}.", before, {}, modes, solutions)
    if level == 3:
        names = draw.words(4)
        find = f"find . -type f -perm {old:o}"
        wish = draw.say(
            f"Set the mode of the file with mode {old:o} to {new:o}.",
            f"One file has mode {old:o}. Set its mode to {new:o}.",
        )
        solutions = [[find, f"chmod {new:o} ./{names[0]}"], [find, f"chmod {new:o} {names[0]}"]]
        return _puzzle(draw, wish, dict(draw.texts(names)), {names[0]: old}, {names[0]: new}, solutions)
    return _many(draw, level, old, new, extra)


def _many(draw: Draw, level: int, old: int, new: int, extra: int) -> Puzzle:
    folders = draw.words(2)
    paths = [f"{folders[number % 2]}/{name}" for number, name in enumerate(draw.words(5))]
    before: dict[str, Content] = dict(draw.texts(paths))
    found = paths[:2] if level == 4 else paths[:1]
    find = f"find . -type f -perm {old:o}"
    wish = f"Set the mode of {'all files' if level == 4 else 'the file'} with mode {old:o} to {new:o}"
    modes = dict.fromkeys(found, new)
    change = f"chmod {new:o} {' '.join(f'./{path}' for path in found)}"
    if level == 4:
        separate = [f"chmod {new:o} ./{path}" for path in found]
        return _puzzle(draw, f"{wish}.", before, dict.fromkeys(found, old), modes, [[find, change], [find, *separate]])
    word = str(before[paths[3]]).split()[0]
    wish = f"{wish}, and of the file that contains {word} to {extra:o}."
    modes[paths[3]] = extra
    grep, second = f"grep -rl {word}", f"chmod {extra:o} {paths[3]}"
    solutions = [[find, change, grep, second], [find, grep, f"{change} && {second}"]]
    return _puzzle(draw, wish, before, dict.fromkeys(found, old), modes, solutions)


def _puzzle(
    draw: Draw,
    prompt: str,
    before: dict[str, Content],
    modes: dict[str, int],
    changed: dict[str, int],
    solutions: list[list[str]],
) -> Puzzle:
    old = {path: modes.get(path, PLAIN) for path in before}
    return Puzzle(
        prompt=prompt,
        before=draw.shuffled(before),
        after=before,
        solutions=solutions,
        modes=modes,
        modes_after={**old, **changed},
    )
