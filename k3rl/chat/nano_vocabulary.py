"""How the tokenizer of the nano models is built from rendered episodes.

A model of a million parameters copies a name only if the name is one token, and learns a phrase the sooner the fewer
tokens it has. So text is cut at line ends and at what tasks draw: names, numbers, cells of a sheet. What lies between
is not cut at blanks, and is one token if it is a constant of the format or of a task's wording. Everything else falls
back to words and, below them, bytes: any text encodes without loss. The layers of the vocabulary after the bytes:

names    each word and number of the pools, wherever it stands, but not inside a longer word or number;
words    byte-pair merges, inside words only, learned from what is not a phrase;
phrases  whole pieces between two cuts that stand in many episodes, those that save most tokens first. Prose of a task's
         prompt must be common to several families: a family's own wording is left to words, so that training sees the
         words that the wording of an unseen family is made of.

Phrases need no merges of their own (the model takes a piece it knows whole). Markers stand last, as in K3.
"""

from __future__ import annotations

import json
import re
from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers, trainers

from k3rl.chat.markers import Marker
from k3rl.chat.template import constants
from k3rl.chat.tokenizer import byte_alphabet

_WORD = Regex(r" ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+")
_WORDING = re.compile(r"[^\W\d_] +[^\W\d_]")  # two words side by side: prose, not an idiom of code
# Tags and tool declarations may hold names and numbers; they are constants all the same.
_MARKUP = r'(?:call tool|message role="tool" tool)="[a-z_]+" index="[1-9]"|\[\{"function":\{[^\n]*'
# What else is cut out: cells of a sheet, any number, line ends, and the indentation of a line, so that a line of code
# is the same tokens whether it is quoted with its indentation and line end or without.
_CUTS = r"(?<![\p{L}\p{N}])[A-Z][0-9]{1,2}(?![\p{L}\p{N}])|\p{N}+|\n+|(?<![^\n])  +"


@dataclass(frozen=True, kw_only=True, slots=True)
class Document:
    """The texts of one rendered episode: what the template writes, what the task says, what was said after it."""

    family: str
    template: tuple[str, ...]
    prompt: tuple[str, ...]
    said: tuple[str, ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class Layers:
    """Size of the whole vocabulary, most merges of words, in how many documents a word or phrase must stand, and in
    the prompts of how many families a phrase of prompts."""

    size: int = 1408
    words: int = 320
    min_documents: int = 8
    min_families: int = 2


def build(documents: Sequence[Document], names: Sequence[str], layers: Layers) -> Tokenizer:
    """The tokenizer of these documents; the same input gives the same bytes. It may come out smaller than `size`."""
    splitter = _splitter([name for name in names if name.isalpha()])
    common = _common(documents, splitter, layers)
    rest = [piece for d in documents for piece in _pieces(splitter, (*d.prompt, *d.said)) if piece not in common]
    merges = _word_merges(rest, layers)
    vocabulary = [*_alphabet(), *(_spell(name) for name in names), *("".join(merge) for merge in merges)]
    words = _assemble(splitter, vocabulary, merges)
    room = layers.size - len(set(vocabulary)) - len(Marker)
    phrases = [phrase for phrase, _ in _savings(common, words)][:room]
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
    whole = "|".join(re.escape(text) for text in constants())
    pattern = rf"{whole}|{_MARKUP}|(?<!\p{{L}})(?:{'|'.join(names)})(?!\p{{L}})|{_CUTS}"
    return pre_tokenizers.Split(Regex(pattern), "isolated")


def _pieces(splitter: pre_tokenizers.PreTokenizer, texts: Sequence[str]) -> Counter[str]:
    return Counter(piece for text in texts for piece, _ in splitter.pre_tokenize_str(text))


def _word_merges(pieces: Sequence[str], layers: Layers) -> list[tuple[str, str]]:
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
    tokenizer.train_from_iterator(pieces, trainer)
    return [(left, right) for left, right in json.loads(tokenizer.to_str())["model"]["merges"]]


def _common(documents: Sequence[Document], splitter: pre_tokenizers.PreTokenizer, layers: Layers) -> Counter[str]:
    """Pieces that may become phrases, with how often they stand in all documents."""
    total: Counter[str] = Counter()
    spread: Counter[str] = Counter()
    families: dict[str, set[str]] = defaultdict(set)
    for document in documents:
        prompt = _pieces(splitter, document.prompt)
        pieces = prompt + _pieces(splitter, (*document.template, *document.said))
        total.update(pieces)
        spread.update(pieces.keys())
        for piece in prompt:
            families[piece].add(document.family)
    return Counter(
        {
            piece: count
            for piece, count in total.items()
            if spread[piece] >= layers.min_documents
            and (len(families[piece]) >= layers.min_families or not (families[piece] and _WORDING.search(piece)))
        }
    )


def _savings(common: Counter[str], words: Tokenizer) -> list[tuple[str, int]]:
    """Pieces of several word tokens with the tokens they would save, most first."""
    saved = {
        piece: (len(words.encode(piece, add_special_tokens=False).ids) - 1) * count for piece, count in common.items()
    }
    return sorted(((p, n) for p, n in saved.items() if n), key=lambda item: (-item[1], item[0]))


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
