"""The builder of nano's tokenizer on a small corpus of its own."""

from __future__ import annotations

import pytest

from k3rl.chat import Marker, Tokenizer
from k3rl.chat.nano_vocabulary import Document, Layers, build

NAMES = ["7", "12", "fig", "oak"]
LAYERS = Layers(size=330, words=40, min_documents=4)


def documents(wordings: list[str], repeats: int = 6) -> list[Document]:
    texts = [(wording.format(name),) for wording in wordings for name in ("fig", "oak", "7") * (repeats // 3)]
    return [Document(texts=text, contents=text) for text in texts]


def pieces(tokenizer: Tokenizer, text: str) -> list[str]:
    return [(tokenizer.token_bytes(t) or b"").decode("utf-8", "replace") for t in tokenizer.encode(text)]


def build_wrapped(corpus: list[Document], layers: Layers = LAYERS) -> Tokenizer:
    return Tokenizer(build(corpus, NAMES, layers), "test")


def test_phrases_between_names_are_one_token_and_unseen_ones_are_words() -> None:
    tokenizer = build_wrapped(documents(["move the file {} to the left.\n", "count the lines of {} now\n"]))
    assert pieces(tokenizer, "move the file oak to the left.\n") == ["move the file ", "oak", " to the left.\n"]
    unseen = pieces(tokenizer, "count the file fig now")
    assert "".join(unseen) == "count the file fig now"
    assert {"count", " the", " file", "fig"} <= set(unseen)


def test_rare_pieces_make_no_tokens() -> None:
    rare = [Document(texts=("zyxwv qpo fig",), contents=("zyxwv qpo fig",))] * 3
    tokenizer = build_wrapped([*documents(["move {} here\n"]), *rare])
    assert pieces(tokenizer, "zyxwv qpo fig")[:3] == ["z", "y", "x"]


def test_phrases_that_save_most_come_first_when_room_is_short() -> None:
    corpus = [*documents(["a b {}\n"], 6), *documents(["one two three four five six seven eight {}\n"], 6)]
    full = 256 + len(NAMES) - 1 + len(Marker)  # "7" is a byte's token already
    tokenizer = build_wrapped(corpus, Layers(size=full + 1, words=0, min_documents=4))
    assert tokenizer.vocab_size == full + 1
    assert pieces(tokenizer, "one two three four five six seven eight fig") == [
        "one two three four five six seven eight ",
        "fig",
    ]
    assert pieces(tokenizer, "a b fig") == ["a", " ", "b", " ", "fig"]


def test_headers_keep_their_index() -> None:
    header = 'call tool="run_tests" index="1"'
    corpus = [Document(texts=(header,), contents=())] * 5
    tokenizer = build_wrapped([*corpus, *documents(["x {}\n"])])
    assert pieces(tokenizer, header) == [header]
    assert pieces(tokenizer, 'index="12"')[-2:] == ["12", '"']


@pytest.mark.parametrize("order", [1, -1])
def test_the_same_corpus_gives_the_same_bytes(order: int) -> None:
    corpus = documents(["move the file {} to the left.\n", "count the lines of {} now\n", "keep {}"])
    assert build(corpus[::order], NAMES, LAYERS).to_str() == build(corpus, NAMES, LAYERS).to_str()
