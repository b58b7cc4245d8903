"""Build targets with make; at higher levels the target or the makefile must be found or changed."""

from __future__ import annotations

from k3rl.environments.terminal.puzzle import Content, Draw, Puzzle, text


def builds(draw: Draw, level: int) -> Puzzle:
    """1 one target; 2 two targets, or a variable; 3 the target is known by its source; 4 the makefile is in a folder;
    5 first change the source of the target."""
    return (_one, _two, _by_source, _in_folder, _changed)[level - 1](draw)


def _rules(draw: Draw, count: int) -> tuple[dict[str, str], dict[str, str]]:
    """Target to source, and the sources' texts. Every target is its sorted source, and no source is in order, so that
    copying one builds nothing."""
    targets, sources = draw.words(count), draw.words(count)
    return dict(zip(targets, sources, strict=True)), {name: _unsorted(draw) for name in sources}


def _unsorted(draw: Draw) -> str:
    return text(sorted(draw.words(2), reverse=True))


def _makefile(rules: dict[str, str]) -> str:
    return "".join(f"{target}: {source}\n\tsort {source} > {target}\n" for target, source in rules.items())


def _sorted(content: str) -> str:
    return text(sorted(content.splitlines()))


def _one(draw: Draw) -> Puzzle:
    rules, sources = _rules(draw, 2)
    target = draw.rng.choice(list(rules))
    before: dict[str, Content] = {"Makefile": _makefile(rules), **sources}
    return Puzzle(
        prompt=draw.say(f"Build {target} with make.", f"Run make for the target {target}."),
        before=draw.shuffled(before),
        after={**before, target: _sorted(sources[rules[target]])},
        solutions=[[f"make {target}"], [f"make -s {target}"]],
    )


def _two(draw: Draw) -> Puzzle:
    if draw.rng.random() < 0.5:
        rules, sources = _rules(draw, 3)
        a, b = draw.rng.sample(list(rules), 2)
        before: dict[str, Content] = {"Makefile": _makefile(rules), **sources}
        return Puzzle(
            prompt=draw.say(f"Build {a} and {b} with make.", f"Run make for the targets {a} and {b}."),
            before=draw.shuffled(before),
            after={**before, a: _sorted(sources[rules[a]]), b: _sorted(sources[rules[b]])},
            solutions=[[f"make {a} {b}"], [f"make {a}", f"make {b}"]],
        )
    target, variable, old = draw.words(3)
    value = draw.word()
    makefile = f"{variable} = {old}\n{target}:\n\techo $({variable}) > {target}\n"
    before = {"Makefile": makefile, **draw.others()}
    return Puzzle(
        prompt=draw.say(f"Build {target} with {variable} set to {value} for this run of make.",
                        f"Run make for {target} with {variable}={value}."),
        before=draw.shuffled(before),
        after={**before, target: f"{value}\n"},
        solutions=[[f"make {target} {variable}={value}"], [f"make {variable}={value} {target}"]],
    )  # fmt: skip


def _by_source(draw: Draw) -> Puzzle:
    rules, sources = _rules(draw, 3)
    target, source = draw.rng.choice(list(rules.items()))
    before: dict[str, Content] = {"Makefile": _makefile(rules), **sources}
    return Puzzle(
        prompt=draw.say(
            f"Build the target that is made of {source}.", f"One target of the makefile uses {source}. Build it."
        ),
        before=draw.shuffled(before),
        after={**before, target: _sorted(sources[source])},
        solutions=[[f"grep {source} Makefile", f"make {target}"], ["cat Makefile", f"make {target}"]],
    )


def _placed(draw: Draw) -> tuple[dict[str, Content], str, dict[str, str], str]:
    """Two folders with a makefile each; the files, and folder, rules and target of the one that is asked for."""
    before: dict[str, Content] = {}
    for folder in draw.words(2):
        rules, sources = _rules(draw, 2)
        before[f"{folder}/Makefile"] = _makefile(rules)
        before |= {f"{folder}/{name}": content for name, content in sources.items()}
    return before, folder, rules, draw.rng.choice(list(rules))


def _in_folder(draw: Draw) -> Puzzle:
    before, folder, rules, target = _placed(draw)
    made = _sorted(str(before[f"{folder}/{rules[target]}"]))
    return Puzzle(
        prompt=draw.say(
            f"Build {target} where its makefile is.", f"One folder has a makefile for {target}. Build it there."
        ),
        before=draw.shuffled(before),
        after={**before, f"{folder}/{target}": made},
        solutions=[
            [f"grep -rl {target}", f"make -C {folder} {target}"],
            [f"grep -rl {target}", f"cd {folder} && make {target}"],
        ],
    )


def _changed(draw: Draw) -> Puzzle:
    before, folder, rules, target = _placed(draw)
    old, new = rules[target], draw.word()
    before[f"{folder}/{new}"] = _unsorted(draw)
    makefile = f"{folder}/Makefile"
    after = {
        **before,
        makefile: _makefile({**rules, target: new}),
        f"{folder}/{target}": _sorted(str(before[f"{folder}/{new}"])),
    }
    find, edit, build = f"grep -rl {target}", f"sed -i 's/{old}/{new}/g' {makefile}", f"make -C {folder} {target}"
    return Puzzle(
        prompt=f"In the makefile that builds {target}, use {new} instead of {old}. Then build {target} there.",
        before=draw.shuffled(before),
        after=after,
        solutions=[[find, edit, build], [find, f"{edit} && {build}"]],
    )
