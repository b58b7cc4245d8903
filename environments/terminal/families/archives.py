"""Pack and unpack tar archives, whole and by member."""

from __future__ import annotations

from k3rl.environments.terminal.puzzle import Content, Draw, Puzzle


def archives(draw: Draw, level: int) -> Puzzle:
    """1 pack a file or unpack an archive; 2 two files, or into a folder; 3 the archive is known by a member; 4 only
    this member, into a folder; 5 unpack it and pack it with another file."""
    if level <= 2:
        return (_pack if draw.rng.random() < 0.5 else _unpack)(draw, level)
    return _by_member(draw, level)


def _pack(draw: Draw, level: int) -> Puzzle:
    archive, *names = f"{draw.word()}.tar", *draw.words(level)
    before: dict[str, Content] = draw.texts(names) | draw.others()
    packed = {"tar": {name: before[name] for name in names}}
    return Puzzle(
        prompt=draw.say(f"Pack {' and '.join(names)} into {archive}.", f"Make {archive} of {' and '.join(names)}."),
        before=draw.shuffled(before),
        after={**before, archive: packed},
        solutions=[[f"tar -cf {archive} {' '.join(names)}"], [f"tar cf {archive} {' '.join(names)}"]],
    )


def _unpack(draw: Draw, level: int) -> Puzzle:
    archive, folder = f"{draw.word()}.tar", draw.word()
    members = draw.texts(draw.words(2))
    before: dict[str, Content] = {archive: {"tar": members}, **draw.others()}
    if level == 2:
        before[f"{folder}/{draw.word()}"] = f"{draw.word()}\n"
    place, option, end = (f"{folder}/", f" -C {folder}", f" into {folder}") if level == 2 else ("", "", "")
    return Puzzle(
        prompt=draw.say(f"Unpack {archive}{end}.", f"Extract {archive}{end}."),
        before=draw.shuffled(before),
        after={**before, **{f"{place}{name}": content for name, content in members.items()}},
        solutions=[[f"tar -xf {archive}{option}"], [f"tar xf {archive}{option}"]],
    )


def _by_member(draw: Draw, level: int) -> Puzzle:
    names = [f"{name}.tar" for name in draw.words(3)]
    members = {name: draw.texts(draw.words(2)) for name in names}
    archive = draw.rng.choice(names)
    member, content = draw.rng.choice(list(members[archive].items()))
    before: dict[str, Content] = {name: {"tar": held} for name, held in members.items()}
    find = f"grep -rl {member}"
    if level == 3:
        prompt = draw.say(f"Unpack the archive that holds {member}.", f"One archive holds {member}. Unpack it.")
        return Puzzle(
            prompt=prompt,
            before=draw.shuffled(before),
            after={**before, **members[archive]},
            solutions=[[find, f"tar -xf {archive}"], [f"grep -l {member} *", f"tar -xf {archive}"]],
        )
    if level == 4:
        folder, old = draw.words(2)
        before[f"{folder}/{old}"] = f"{draw.word()}\n"
        return Puzzle(
            prompt=draw.say(
                f"One archive holds {member}. Unpack only {member} into {folder}.",
                f"Unpack only {member}, from the archive that holds it, into {folder}.",
            ),
            before=draw.shuffled(before),
            after={**before, f"{folder}/{member}": content},
            solutions=[[find, f"tar -xf {archive} -C {folder} {member}"]],
        )
    other, new = draw.word(), f"{draw.word()}.tar"
    before[other] = f"{draw.word()}\n"
    extract, pack = f"tar -xf {archive} {member}", f"tar -cf {new} {member} {other}"
    return Puzzle(
        prompt=f"Unpack only {member}, from the archive that holds it. Then pack {member} and {other} into {new}.",
        before=draw.shuffled(before),
        after={**before, member: content, new: {"tar": {member: content, other: before[other]}}},
        solutions=[[find, extract, pack], [find, f"{extract} && {pack}"]],
    )
