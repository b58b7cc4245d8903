"""Write a bash script that prints something of a file; the grader runs it on other contents of that file."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from k3rl.environments.terminal.families.columns import COLUMNS, Sheet, sheet
from k3rl.environments.terminal.puzzle import Content, Draw, Puzzle, Rerun, text

HIDDEN = 2  # other inputs on which the script must be right


def scripts(draw: Draw, level: int) -> Puzzle:
    """1 lines with a word; 2 sorted, or a column; 3 a column by name; 4 of the file that another one names; 5 only of
    rows with a word."""
    return (_lines if level <= 2 else _columns)(draw, level)


def _lines(draw: Draw, level: int) -> Puzzle:
    name, script, word = draw.words(3)
    if level == 1:
        body, wish = f"grep {word} {name}", f"the lines of {name} that contain {word}"
    else:
        body, wish = f"grep {word} {name} | sort", f"the lines of {name} that contain {word}, sorted"

    def make() -> str:
        lines = [f"{a} {word}" if number < 3 else f"{a} {draw.word()}" for number, a in enumerate(draw.words(5))]
        draw.rng.shuffle(lines)
        return text(lines)

    def right(data: str) -> str:
        hits = [line for line in data.splitlines() if word in line]
        return text(hits if level == 1 else sorted(hits))

    files = {name: make(), **draw.others()}
    reruns = [_rerun(script, files, name, make(), right) for _ in range(HIDDEN)]
    prompt = draw.say(f"Write a script {script} that prints {wish}.", f"Make a bash script {script}. It prints {wish}.")
    return _puzzle(draw, prompt, files, script, reruns, [], body)


def _columns(draw: Draw, level: int) -> Puzzle:
    name, script, pointer, word = draw.words(4)
    head, number = draw.words(COLUMNS), draw.rng.randint(1, COLUMNS)
    column = head[number - 1]
    body = f"cut -d, -f{number} {name}"
    wish = f"the column {column} of {name} with its header"
    looks = [f"head -n 1 {name}"]
    if level >= 4:
        looks.insert(0, f"cat {pointer}")
        wish = f"the column {column}, with its header, of the file that {pointer} names"
    if level == 5:
        body = f"grep {word} {name} | cut -d, -f{number}"
        wish = f"the column {column} of the file that {pointer} names, for the rows with {word} alone"

    def make() -> str:
        made = sheet(draw, 4, head)
        mark = 2 if number < COLUMNS else 0  # the word stands in another column than the one that is asked for
        rows = [list(row) for row in made.rows]
        for row in draw.rng.sample(rows, 2):
            row[mark] = word
        return Sheet(head=head, rows=rows).text

    def right(data: str) -> str:
        rows = data.splitlines() if level < 5 else [row for row in data.splitlines() if word in row]
        return text([row.split(",")[number - 1] for row in rows])

    files = {name: make(), **draw.others()}
    if level >= 4:
        files[pointer] = f"{name}\n"
    reruns = [_rerun(script, files, name, make(), right) for _ in range(HIDDEN)]
    return _puzzle(draw, f"Write a script {script} that prints {wish}.", files, script, reruns, looks, body)


def _rerun(script: str, files: dict[str, str], name: str, data: str, right: Callable[[str], str]) -> Rerun:
    return Rerun(script=script, files={**files, name: data}, output=right(data))


def _puzzle(
    draw: Draw,
    prompt: str,
    files: dict[str, str],
    script: str,
    reruns: Sequence[Rerun],
    looks: Sequence[str],
    body: str,
) -> Puzzle:
    before: dict[str, Content] = dict(files)
    return Puzzle(
        prompt=prompt,
        before=draw.shuffled(before),
        after={**before, script: {"any": True}},
        solutions=[[*looks, f"echo '{body}' > {script}"], [*looks, f"echo '{body}' > {script} && bash {script}"]],
        reruns=reruns,
    )
