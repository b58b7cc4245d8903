"""Read and change values of JSON files with jq."""

from __future__ import annotations

import json

from k3rl.environments.terminal.puzzle import Content, Draw, Puzzle
from k3rl.types import Json


def json_values(draw: Draw, level: int) -> Puzzle:
    """1 a key; 2 a key of a key; 3 the file is known by the key; 4 an entry of a list, in a file to be found; 5 change
    a value in a file to be found and copy another."""
    return (_key, _nested, _found, _entry, _change)[level - 1](draw)


def _record(draw: Draw, keys: int = 3) -> dict[str, Json]:
    return {draw.word(): draw.word() if draw.rng.random() < 0.7 else draw.number() for _ in range(keys)}


def _dump(value: Json) -> str:
    return json.dumps(value) + "\n"


def _key(draw: Draw) -> Puzzle:
    name, target = draw.words(2)
    record = _record(draw)
    key = draw.rng.choice(list(record))
    before: dict[str, Content] = {name: _dump(record), **draw.others()}
    return Puzzle(
        prompt=draw.say(
            f"Write the value of {key} in {name} to {target}.", f"{name} is JSON. Write its {key} to {target}."
        ),
        before=draw.shuffled(before),
        after={**before, target: f"{record[key]}\n"},
        solutions=[[f"jq -r .{key} {name} > {target}"], [f"jq -r '.{key}' {name} > {target}"]],
    )


def _nested(draw: Draw) -> Puzzle:
    name, target = draw.words(2)
    record = {outer: _record(draw, 2) for outer in draw.words(2)}
    outer = draw.rng.choice(list(record))
    inner = draw.rng.choice(list(record[outer]))
    before: dict[str, Content] = {name: _dump(record), **draw.others()}
    return Puzzle(
        prompt=draw.say(
            f"Write the value of {inner} under {outer} in {name} to {target}.",
            f"{name} is JSON. Write {inner} of its {outer} to {target}.",
        ),
        before=draw.shuffled(before),
        after={**before, target: f"{record[outer][inner]}\n"},
        solutions=[[f"jq -r .{outer}.{inner} {name} > {target}"]],
    )


def _found(draw: Draw) -> Puzzle:
    target, *names = draw.words(4)
    records = {name: _record(draw, 2) for name in names}
    name = draw.rng.choice(names)
    key = draw.rng.choice(list(records[name]))
    before: dict[str, Content] = {path: _dump(record) for path, record in records.items()}
    return Puzzle(
        prompt=draw.say(
            f"One file has the key {key}. Write its value to {target}.",
            f"Find the JSON file with the key {key} and write its value to {target}.",
        ),
        before=draw.shuffled(before),
        after={**before, target: f"{records[name][key]}\n"},
        solutions=[[f"grep -rl {key}", f"jq -r .{key} {name} > {target}"]],
    )


def _entry(draw: Draw) -> Puzzle:
    folder, target, key, value, *names = draw.words(7)
    lists = {f"{folder}/{name}": [{key: draw.word(), value: draw.word()} for _ in range(2)] for name in names}
    path = draw.rng.choice(list(lists))
    entry = draw.rng.choice(lists[path])
    before: dict[str, Content] = {name: _dump(entries) for name, entries in lists.items()}
    select = f"jq -r '.[] | select(.{key}==\"{entry[key]}\") | .{value}' {path} > {target}"
    return Puzzle(
        prompt=f"In one file an entry has {key} {entry[key]}. Write the {value} of this entry to {target}.",
        before=draw.shuffled(before),
        after={**before, target: f"{entry[value]}\n"},
        solutions=[
            [f"grep -rl {entry[key]}", select],
            [f"grep -r {entry[key]}", f"echo {entry[value]} > {target}"],
        ],
    )


def _change(draw: Draw) -> Puzzle:
    folder, target, *names = draw.words(5)
    records = {f"{folder}/{name}": _record(draw, 3) for name in names}
    path = draw.rng.choice(list(records))
    key, other = draw.rng.sample(list(records[path]), 2)
    value = draw.number()
    before: dict[str, Content] = {name: _dump(record) for name, record in records.items()}
    after = {**before, path: {"json": {**records[path], key: value}}, target: f"{records[path][other]}\n"}
    look = f"grep -rl {key}"
    change, read = f"jq '.{key}={value}' {path} > tmp && mv tmp {path}", f"jq -r .{other} {path} > {target}"
    return Puzzle(
        prompt=f"In the JSON file with the key {key}, set {key} to {value}. Then write its {other} to {target}.",
        before=draw.shuffled(before),
        after=after,
        solutions=[[look, change, read], [look, read, change]],
    )
