"""Write the lines of a file that hold a word into another file."""

from __future__ import annotations

from k3rl.environments.terminal.puzzle import Content, Draw, Puzzle, text


def search(draw: Draw, level: int) -> Puzzle:
    """1 lines with a word; 2 sorted, or lines without it; 3 another file names the file; 4 the file is known by a word
    in it; 5 a file names the folder, a word the file, and the lines are sorted."""
    word, target = draw.word(), draw.word()
    lines = _lines(draw, word)
    hits = [line for line in lines if word in line]
    if level == 1:
        return _done(draw, f"Write the lines of {{}} that contain {word} to {target}.", lines, target, hits,
                     [[f"grep {word} {{}} > {target}"], [f"cat {{}} | grep {word} > {target}"]])  # fmt: skip
    if level == 2:
        if draw.rng.random() < 0.5:
            rest = [line for line in lines if word not in line]
            return _done(draw, f"Write the lines of {{}} without {word} to {target}.", lines, target, rest,
                         [[f"grep -v {word} {{}} > {target}"]])  # fmt: skip
        return _done(draw, f"Write the lines of {{}} that contain {word}, sorted, to {target}.", lines, target,
                     sorted(hits), [[f"grep {word} {{}} | sort > {target}"]])  # fmt: skip
    return (_pointed, _held, _deep)[level - 3](draw, word, lines, target)


def _lines(draw: Draw, word: str) -> list[str]:
    lines = [f"{a} {word}" if number < 2 else f"{a} {draw.word()}" for number, a in enumerate(draw.words(4))]
    draw.rng.shuffle(lines)
    return lines


def _done(
    draw: Draw, prompt: str, lines: list[str], target: str, result: list[str], solutions: list[list[str]]
) -> Puzzle:
    name = draw.word()
    before: dict[str, Content] = {name: text(lines), **draw.others()}
    return Puzzle(
        prompt=prompt.format(name),
        before=draw.shuffled(before),
        after={**before, target: text(result)},
        solutions=[[command.format(name) for command in solution] for solution in solutions],
    )


def _pointed(draw: Draw, word: str, lines: list[str], target: str) -> Puzzle:
    pointer, name, other = draw.words(3)
    before: dict[str, Content] = {pointer: f"{name}\n", name: text(lines), other: text(_lines(draw, word))}
    return Puzzle(
        prompt=draw.say(
            f"{pointer} names a file. Write its lines that contain {word} to {target}.",
            f"Read {pointer}: it names a file. Write the lines of that file that contain {word} to {target}.",
        ),
        before=draw.shuffled(before),
        after={**before, target: text([line for line in lines if word in line])},
        solutions=[[f"cat {pointer}", f"grep {word} {name} > {target}"]],
    )


def _held(draw: Draw, word: str, lines: list[str], target: str) -> Puzzle:
    folder, mark, *names = draw.words(6)
    hit = draw.rng.choice(names)
    before: dict[str, Content] = {f"{folder}/{name}": text(_lines(draw, word)) for name in names}
    before[f"{folder}/{hit}"] = text([*lines, mark])
    found = f"{folder}/{hit}"
    return Puzzle(
        prompt=draw.say(
            f"In the file that contains {mark}, find the lines that contain {word}. Write them to {target}.",
            f"Write the lines that contain {word} of the file that contains {mark} to {target}.",
        ),
        before=draw.shuffled(before),
        after={**before, target: text([line for line in lines if word in line])},
        solutions=[[f"grep -rl {mark}", f"grep {word} {found} > {target}"]],
    )


def _deep(draw: Draw, word: str, lines: list[str], target: str) -> Puzzle:
    pointer, folder, decoy, mark, *names = draw.words(7)
    hit = draw.rng.choice(names)
    before: dict[str, Content] = {pointer: f"{folder}\n"}
    for name in names:
        before[f"{folder}/{name}"] = text(_lines(draw, word))
        before[f"{decoy}/{name}"] = text([*_lines(draw, word), mark][-3:])
    before[f"{folder}/{hit}"] = text([*lines, mark])
    return Puzzle(
        prompt=f"{pointer} names a folder. Of its file that contains {mark}, write the lines that contain {word}, "
        f"sorted, to {target}.",
        before=draw.shuffled(before),
        after={**before, target: text(sorted(line for line in lines if word in line))},
        solutions=[
            [f"cat {pointer}", f"grep -rl {mark} {folder}", f"grep {word} {folder}/{hit} | sort > {target}"],
        ],
    )
