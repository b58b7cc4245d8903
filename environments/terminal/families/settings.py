"""Change settings (key=value lines) in place."""

from __future__ import annotations

from k3rl.environments.terminal.puzzle import Content, Draw, Puzzle, text


def settings(draw: Draw, level: int) -> Puzzle:
    """1 one key; 2 two keys; 3 the file is known by the key; 4 to the value that another key has; 5 both files must be
    found."""
    if level <= 2:
        return _named(draw, level)
    return (_found, _copied, _both)[level - 3](draw)


def _table(draw: Draw, keys: int = 3) -> dict[str, int]:
    return {draw.word(): draw.number() for _ in range(keys)}


def _text(table: dict[str, int]) -> str:
    return text([f"{key}={value}" for key, value in table.items()])


def _set(key: str, value: int, path: str) -> str:
    return f"sed -i 's/{key}=.*/{key}={value}/' {path}"


def _named(draw: Draw, level: int) -> Puzzle:
    name = draw.word()
    table = _table(draw)
    new = {key: draw.number() for key in draw.rng.sample(list(table), level)}
    before: dict[str, Content] = {name: _text(table), **draw.others()}
    wishes = " and ".join(f"{key} to {value}" for key, value in new.items())
    commands = [_set(key, value, name) for key, value in new.items()]
    return Puzzle(
        prompt=draw.say(f"Set {wishes} in {name}.", f"In {name}, set {wishes}."),
        before=draw.shuffled(before),
        after={**before, name: _text({**table, **new})},
        solutions=[[" && ".join(commands)], [commands[0].replace("sed -i", "sed -i -e"), *commands[1:]]],
    )


def _found(draw: Draw) -> Puzzle:
    tables = {name: _table(draw, 2) for name in draw.words(4)}
    name = draw.rng.choice(list(tables))
    key, value = draw.rng.choice(list(tables[name])), draw.number()
    before: dict[str, Content] = {path: _text(table) for path, table in tables.items()}
    return Puzzle(
        prompt=draw.say(f"Set {key} to {value} in the file that has it.", f"One file has {key}. Set it to {value}."),
        before=draw.shuffled(before),
        after={**before, name: _text({**tables[name], key: value})},
        solutions=[[f"grep -rl {key}", _set(key, value, name)]],
    )


def _copied(draw: Draw) -> Puzzle:
    folder, *names = draw.words(4)
    tables = {f"{folder}/{name}": _table(draw, 3) for name in names}
    path, other = draw.rng.sample(list(tables), 2)
    key, source = draw.rng.choice(list(tables[path])), draw.rng.choice(list(tables[other]))
    value = tables[other][source]
    before: dict[str, Content] = {name: _text(table) for name, table in tables.items()}
    return Puzzle(
        prompt=f"One file has {source}. Set {key} in {path} to the same value.",
        before=draw.shuffled(before),
        after={**before, path: _text({**tables[path], key: value})},
        solutions=[
            [f"grep -r {source}", _set(key, value, path)],
            [f"grep -rh {source}", _set(key, value, path)],
        ],
    )


def _both(draw: Draw) -> Puzzle:
    folders, names = draw.words(2), draw.words(4)
    tables = {f"{folders[number % 2]}/{name}": _table(draw, 3) for number, name in enumerate(names)}
    path, other = draw.rng.sample(list(tables), 2)
    key, source = draw.rng.choice(list(tables[path])), draw.rng.choice(list(tables[other]))
    value = tables[other][source]
    before: dict[str, Content] = {name: _text(table) for name, table in tables.items()}
    after = {**before, path: _text({**tables[path], key: value})}
    moved = f"{draw.word()}"
    after[moved] = after.pop(other)
    for folder in folders:
        after.setdefault(f"{folder}/", "")
    change, rename = _set(key, value, path), f"mv {other} {moved}"
    return Puzzle(
        prompt=f"Set {key}, in the file that has it, to the value of {source}. Then move the file that has {source} "
        f"to {moved}.",
        before=draw.shuffled(before),
        after=after,
        solutions=[
            [f"grep -r {source}", f"grep -rl {key}", change, rename],
            [f"grep -rl {key}", f"grep -r {source}", change, rename],
        ],
    )
