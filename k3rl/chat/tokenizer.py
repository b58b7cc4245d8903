"""A byte-level tokenizer read from a model folder. Text never becomes a marker; markers are ids of their own.

Any text encodes without loss: the vocabulary holds all 256 bytes. What a model sampled is looked at byte by byte
(`token_bytes`), because a token may end in the middle of a character.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import cache
from pathlib import Path
from typing import TypeAlias

import tokenizers

from k3rl.chat.markers import Marker
from k3rl.errors import CheckpointError

Piece: TypeAlias = "str | Marker"
"""What a template is made of: text, or a marker."""

NANO_TOKENIZER = Path(__file__).resolve().parents[1] / "assets" / "nano_tokenizer"
"""The folder of the tokenizer shipped for the nano models, in the hub's layout."""


def byte_alphabet() -> dict[str, int]:
    """The character that stands for each byte in a byte-level vocabulary (GPT-2's convention): printable Latin-1
    stands for itself, the other 68 bytes take the code points from 256 on, in order."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    shifted = [byte for byte in range(256) if byte not in printable]
    return {chr(byte): byte for byte in printable} | {chr(256 + i): byte for i, byte in enumerate(shifted)}


def well_formed(text: str) -> str:
    """`text` as it survives UTF-8: surrogate pairs joined, lone surrogates replaced by U+FFFD."""
    if text.isascii():
        return text
    return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")


class Tokenizer:
    """Text to ids and back. Build it with `load_tokenizer`."""

    def __init__(self, backend: tokenizers.Tokenizer, where: str) -> None:
        backend.encode_special_tokens = True  # marker names inside text are plain text
        self._backend = backend
        self.vocab_size: int = max(backend.get_vocab(with_added_tokens=True).values()) + 1
        special = backend.get_added_tokens_decoder()
        self._bytes = _vocabulary_bytes(backend.get_vocab(with_added_tokens=False), set(special), where)
        ids = {token.content: index for index, token in special.items()}
        missing = [marker.value for marker in Marker if marker.value not in ids]
        if missing:
            raise CheckpointError(f"{where}: the tokenizer has no {', '.join(missing)}; use one of the K3 family")
        self._ids = {marker: ids[marker.value] for marker in Marker}
        self._markers = {index: marker for marker, index in self._ids.items()}
        self._names = {index: token.content for index, token in special.items()}

    def encode(self, text: str) -> list[int]:
        """Ids of plain text; never a marker's, whatever the text says."""
        ids: list[int] = self._backend.encode(well_formed(text), add_special_tokens=False).ids
        return ids

    def encode_pieces(self, pieces: Iterable[Piece]) -> list[int]:
        """Ids of a template's pieces, each text encoded on its own."""
        ids: list[int] = []
        for piece in pieces:
            if isinstance(piece, Marker):
                ids.append(self._ids[piece])
            elif piece:
                ids.extend(self.encode(piece))
        return ids

    def id(self, marker: Marker) -> int:
        """The id of a marker."""
        return self._ids[marker]

    def marker(self, token: int) -> Marker | None:
        """The marker with this id, or None."""
        return self._markers.get(token)

    def token_bytes(self, token: int) -> bytes | None:
        """The bytes of one text token; None for markers, other special tokens and ids outside the vocabulary."""
        return self._bytes.get(token)

    def decode(self, tokens: Sequence[int]) -> str:
        """For people: text with markers by name, broken characters as U+FFFD, unknown ids as `<id>`."""
        parts = (self._bytes.get(t) or self._names.get(t, f"<{t}>").encode() for t in tokens)
        return b"".join(parts).decode("utf-8", "replace")


def _vocabulary_bytes(vocabulary: dict[str, int], special: set[int], where: str) -> dict[int, bytes]:
    alphabet = byte_alphabet()
    missing = [byte for char, byte in alphabet.items() if char not in vocabulary]
    if missing:
        raise CheckpointError(
            f"{where}: {len(missing)} of 256 bytes have no token (first 0x{missing[0]:02x}); a byte-level one is needed"
        )
    table: dict[int, bytes] = {}
    for piece, index in vocabulary.items():
        if index in special:
            continue
        try:
            table[index] = bytes(alphabet[char] for char in piece)
        except KeyError:
            raise CheckpointError(f"{where}: token {index} ({piece!r}) is not written in the byte alphabet") from None
    return table


def load_tokenizer(folder: str | Path) -> Tokenizer:
    """The tokenizer of a model folder (its `tokenizer.json`). Raises CheckpointError in one line on trouble."""
    path = Path(folder) / "tokenizer.json"
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise CheckpointError(f"{path}: no tokenizer to read ({error}); give a folder in the hub's layout") from None
    try:
        backend = tokenizers.Tokenizer.from_str(text)
    except Exception as error:  # the library raises bare Exception on a file it cannot read
        raise CheckpointError(f"{path}: not a tokenizer file ({error}); fetch the folder again") from None
    return Tokenizer(backend, str(path))


@cache
def nano_tokenizer() -> Tokenizer:
    """The shipped tokenizer of the nano models, read once per process."""
    return load_tokenizer(NANO_TOKENIZER)
