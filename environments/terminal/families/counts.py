"""Count lines into a file (held out of training)."""

from __future__ import annotations

from k3rl.environments.terminal.puzzle import Content, Draw, Puzzle, text


def counts(draw: Draw, level: int) -> Puzzle:
    """1 all lines; 2 lines with a word; 3 of the file that another one names; 4 of the file that has a word; 5 of the
    file that has a word, only the lines with another."""
    target, name, word, mark, pointer = draw.words(5)
    hits, rest = draw.rng.randint(2, 5), draw.rng.randint(1, 4)
    lines = [f"{draw.word()} {word}" for _ in range(hits)] + draw.words(rest)
    draw.rng.shuffle(lines)
    before: dict[str, Content] = {name: text(lines), **draw.others(3)}
    all_lines, with_word = f"wc -l < {name} > {target}", f"grep -c {word} {name} > {target}"
    if level == 1:
        return _puzzle(draw, f"Write the number of lines of {name} to {target}.", before, target, len(lines),
                       [[all_lines], [f"cat {name} | wc -l > {target}"]])  # fmt: skip
    if level == 2:
        return _puzzle(draw, f"Count the lines of {name} that contain {word}. Write the number to {target}.", before,
                       target, hits, [[with_word], [f"grep {word} {name} | wc -l > {target}"]])  # fmt: skip
    if level == 3:
        before[pointer] = f"{name}\n"
        return _puzzle(draw, f"{pointer} names a file. Write its number of lines to {target}.", before, target,
                       len(lines), [[f"cat {pointer}", all_lines]])  # fmt: skip
    before[name] = text([*lines, mark])
    find = f"grep -rl {mark}"
    if level == 4:
        return _puzzle(draw, f"Write the number of lines of the file that contains {mark} to {target}.", before,
                       target, len(lines) + 1, [[find, all_lines]])  # fmt: skip
    return _puzzle(draw, f"In the file that contains {mark}, count the lines that contain {word}. Write the number to "
                   f"{target}.", before, target, hits, [[find, with_word]])  # fmt: skip


def _puzzle(
    draw: Draw, prompt: str, before: dict[str, Content], target: str, number: int, solutions: list[list[str]]
) -> Puzzle:
    after = {**before, target: f"{number}\n"}
    return Puzzle(prompt=prompt, before=draw.shuffled(before), after=after, solutions=solutions)
