"""The builder of nano's tokenizer on a small corpus of its own."""

from __future__ import annotations

import pytest

from k3rl.chat import Marker, Tokenizer
from k3rl.chat.nano_vocabulary import Document, Layers, build
from k3rl.chat.template import constants

NAMES = ["7", "12", "fig", "oak"]
LAYERS = Layers(size=330, words=40, min_documents=4, min_families=2)


def said(wording: str, repeats: int = 6) -> list[Document]:
    """Episodes in which an agent says the same about different names."""
    texts = [wording.format(name) for name in ("fig", "oak", "7") * (repeats // 3)]
    return [Document(family="a", template=(), prompt=(), said=(text,)) for text in texts]


def asked(wording: str, families: str) -> list[Document]:
    """Tasks of each family (a letter) with the same wording."""
    texts = [(family, wording.format(name)) for family in families for name in ("fig", "oak", "7", "12")]
    return [Document(family=family, template=(), prompt=(text,), said=()) for family, text in texts]


def pieces(tokenizer: Tokenizer, text: str) -> list[str]:
    return [(tokenizer.token_bytes(t) or b"").decode("utf-8", "replace") for t in tokenizer.encode(text)]


def built(corpus: list[Document], layers: Layers = LAYERS) -> Tokenizer:
    return Tokenizer(build(corpus, NAMES, layers), "test")


def test_what_is_said_between_names_is_one_token() -> None:
    tokenizer = built(said("move the file {} to the left."))
    assert pieces(tokenizer, "move the file oak to the left.") == ["move the file ", "oak", " to the left."]


def test_wording_of_one_family_is_words_and_of_several_a_phrase() -> None:
    tokenizer = built([*asked("move the file {}", "ab"), *asked("keep the file {}", "c"), *asked("the file {}", "cd")])
    assert pieces(tokenizer, "move the file fig") == ["move the file ", "fig"]
    assert pieces(tokenizer, "keep the file fig") == ["keep", " the", " file", " ", "fig"]
    assert pieces(tokenizer, "keep the fig") == ["keep", " the", " ", "fig"]  # an unseen wording of known words


def test_idioms_of_code_are_one_token_though_one_family_asks_about_them() -> None:
    assert pieces(built(asked('{}.split("=")[', "a")), 'fig.split("=")[') == ["fig", '.split("=")[']


def test_rare_pieces_make_no_tokens() -> None:
    tokenizer = built([*said("move {} here"), *said("zyxwv qpo {}", repeats=3)])
    assert pieces(tokenizer, "zyxwv qpo fig")[:3] == ["z", "y", "x"]


def test_phrases_that_save_most_come_first_when_room_is_short() -> None:
    corpus = [*said("a b {}"), *said("one two three four five six seven eight {}")]
    full = 256 + len(NAMES) - 1 + len(Marker)  # "7" is a byte's token already
    tokenizer = built(corpus, Layers(size=full + 1, words=0, min_documents=4))
    assert tokenizer.vocab_size == full + 1
    long = "one two three four five six seven eight "
    assert pieces(tokenizer, f"{long}fig") == [long, "fig"]
    assert pieces(tokenizer, "a b fig") == ["a", " ", "b", " ", "fig"]


def test_constants_of_the_format_are_not_cut() -> None:
    """Their numbers and names neither: a header with its index, a declaration, the sentence about effort."""
    header = 'call tool="run_tests" index="1"'
    declaration = '[{"function":{"description":"7 fig","name":"x"},"type":"function"}]'
    effort = next(text for text in constants() if "thinking_effort=low" in text)
    texts = (header, declaration, effort)
    tokenizer = built([Document(family="a", template=texts, prompt=(), said=())] * 5)
    assert [pieces(tokenizer, text) for text in texts] == [[text] for text in texts]
    assert pieces(tokenizer, 'index="12"')[-2:] == ["12", '"']


def test_a_line_of_code_is_the_same_tokens_with_and_without_its_surroundings() -> None:
    corpus = [*said("    return {} + 1\n"), *said("return {} + 1"), *said("if {}:\n        pass\n"), *said("if {}:")]
    tokenizer = built(corpus)
    assert pieces(tokenizer, "    return fig + 1\n") == ["    ", *pieces(tokenizer, "return fig + 1"), "\n"]
    assert pieces(tokenizer, "if fig:\n        pass\n") == [
        *pieces(tokenizer, "if fig:"),
        "\n",
        "        ",
        "pass",
        "\n",
    ]


def test_cells_and_long_numbers_are_one_token() -> None:
    tokenizer = built([*said("{} in B3:C12\n"), *said("mode 755 {}"), *said("mode 644 {}")])
    assert pieces(tokenizer, "mode 755 B3:C12") == ["mode ", "755", " ", "B3", ":", "C12"]


@pytest.mark.parametrize("order", [1, -1])
def test_the_same_corpus_gives_the_same_bytes(order: int) -> None:
    corpus = [*said("move the file {} to the left."), *asked("count the lines of {} now", "ab"), *asked("keep {}", "c")]
    assert build(corpus[::order], NAMES, LAYERS).to_str() == build(corpus, NAMES, LAYERS).to_str()
