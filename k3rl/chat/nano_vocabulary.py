"""How the tokenizer of the nano models is built from rendered episodes.

A model of a million parameters copies a name only if the name is one token, and learns a phrase the sooner the fewer
tokens it has. So text is cut at line ends and at the names and numbers tasks draw from; what lies between is not cut
at blanks, and is one token if it is a constant of the format or of a task's wording. Everything else falls back to
words and, below them, bytes: any text encodes without loss. The three layers of the vocabulary, after the bytes:

names    each word and number of the pools, wherever it stands, but not inside a longer word or number;
words    byte-pair merges learned inside words only, so that text of unseen families is made of whole words;
phrases  whole pieces between two cuts that stand in many episodes, those that save most tokens first.

Phrases need no merges of their own (the model takes a piece it knows whole), so no half-phrases fill the vocabulary
that training would never see. Markers stand last, as in K3.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers, trainers

from k3rl.chat.markers import Marker
from k3rl.chat.tokenizer import byte_alphabet

_WORD = Regex(r" ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+")
# A header whose number is part of a constant: one token for `call tool="bash" index="1"`.
_NUMBERED = r'(?:call tool|message role="tool" tool)="[a-z_]+" index="[1-9]"'


@dataclass(frozen=True, kw_only=True, slots=True)
class Document:
    """One rendered episode: every text between two markers, and those of them that words are learned from."""

    texts: tuple[str, ...]
    contents: tuple[str, ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class Layers:
    """Size of the whole vocabulary, most merges of words, and in how many documents a word or phrase must stand."""

    size: int = 1536
    words: int = 360
    min_documents: int = 12


def build(documents: Sequence[Document], names: Sequence[str], layers: Layers) -> Tokenizer:
    """The tokenizer of these documents; the same input gives the same bytes. It may come out smaller than `size`."""
    splitter = _splitter(names)
    merges = _word_merges([_segments(splitter, document.contents) for document in documents], set(names), layers)
    vocabulary = [*_alphabet(), *(_spell(name) for name in names), *("".join(merge) for merge in merges)]
    words = _assemble(splitter, vocabulary, merges)
    room = layers.size - len(set(vocabulary)) - len(Marker)
    phrases = _phrases([_segments(splitter, document.texts) for document in documents], words, room, layers)
    tokenizer = _assemble(splitter, [*vocabulary, *map(_spell, phrases)], merges)
    # normalized=False: matched in the raw text, by those who encode whole prompts with the hub's own tools
    tokenizer.add_special_tokens([AddedToken(marker.value, special=True, normalized=False) for marker in Marker])
    return tokenizer


def _alphabet() -> list[str]:
    """The characters of the 256 bytes in byte order, so that a byte's token id is the byte."""
    return sorted(byte_alphabet(), key=byte_alphabet().__getitem__)


def _spell(text: str) -> str:
    """A text in the byte alphabet."""
    return "".join(_alphabet()[byte] for byte in text.encode())


def _splitter(names: Sequence[str]) -> pre_tokenizers.PreTokenizer:
    words = "|".join(name for name in names if name.isalpha())
    numbers = "|".join(sorted((name for name in names if name.isdigit()), key=len, reverse=True))
    name = rf"(?<!\p{{L}})(?:{words})(?!\p{{L}})|(?<!\p{{N}})(?:{numbers})(?!\p{{N}})"
    return pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(r"\n"), "merged_with_previous"),
            pre_tokenizers.Split(Regex(f"{_NUMBERED}|{name}"), "isolated"),
        ]
    )


def _segments(splitter: pre_tokenizers.PreTokenizer, texts: Sequence[str]) -> Counter[str]:
    return Counter(piece for text in texts for piece, _ in splitter.pre_tokenize_str(text))


def _word_merges(documents: Sequence[Counter[str]], names: set[str], layers: Layers) -> list[tuple[str, str]]:
    def pieces() -> Iterator[str]:
        for document in documents:
            yield from (piece for piece in document if piece not in names)

    trainer = trainers.BpeTrainer(
        vocab_size=256 + layers.words,
        min_frequency=layers.min_documents,
        initial_alphabet=_alphabet(),
        show_progress=False,
    )
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Split(_WORD, "isolated"), pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)]
    )
    tokenizer.train_from_iterator(pieces(), trainer)
    return [(left, right) for left, right in json.loads(tokenizer.to_str())["model"]["merges"]]


def _phrases(documents: Sequence[Counter[str]], words: Tokenizer, room: int, layers: Layers) -> list[str]:
    """The pieces of several word tokens that save most tokens over all documents."""
    spread = Counter(piece for document in documents for piece in document)
    total: Counter[str] = sum(documents, Counter())
    saved = {
        piece: (len(words.encode(piece, add_special_tokens=False).ids) - 1) * total[piece]
        for piece, count in spread.items()
        if count >= layers.min_documents
    }
    ranked = sorted((piece for piece, tokens in saved.items() if tokens), key=lambda piece: (-saved[piece], piece))
    return ranked[:room]


def _assemble(
    splitter: pre_tokenizers.PreTokenizer, vocabulary: Sequence[str], merges: list[tuple[str, str]]
) -> Tokenizer:
    ids = {piece: index for index, piece in enumerate(dict.fromkeys(vocabulary))}
    tokenizer = Tokenizer(models.BPE(vocab=ids, merges=merges, ignore_merges=True))
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [splitter, pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)]
    )
    tokenizer.decoder = decoders.ByteLevel()
    return tokenizer
