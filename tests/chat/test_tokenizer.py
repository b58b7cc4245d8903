"""The shipped tokenizer: lossless, names as one token wherever they stand, and markers that no text can spell."""

from __future__ import annotations

import itertools
import json
import shutil

import pytest
import tokenizers
from hypothesis import given
from hypothesis import strategies as st

from k3rl.chat import NANO_TOKENIZER, Marker, load_tokenizer, nano_tokenizer
from k3rl.chat.tokenizer import byte_alphabet, well_formed
from k3rl.environments.pools import NUMBERS, WORDS
from k3rl.errors import CheckpointError

TOKENIZER = nano_tokenizer()
SPECIAL = {TOKENIZER.id(marker) for marker in Marker}
UNICODE = st.text(st.characters(blacklist_categories=("Cs",)), max_size=60)


def spelled(text: str) -> bytes:
    return b"".join(TOKENIZER.token_bytes(token) or b"?" for token in TOKENIZER.encode(text))


@given(UNICODE)
def test_any_text_survives(text: str) -> None:
    tokens = TOKENIZER.encode(text)
    assert TOKENIZER.decode(tokens) == text
    assert spelled(text) == text.encode()


@given(st.text(max_size=30))
def test_lone_surrogates_become_the_replacement_character(text: str) -> None:
    expected = "".join("\ufffd" if 0xD800 <= ord(c) < 0xE000 else c for c in text)
    if any(0xD800 <= ord(a) < 0xDC00 <= ord(b) < 0xE000 for a, b in itertools.pairwise(text)):
        expected = text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")  # a pair is one character
    assert well_formed(text) == expected
    assert spelled(text) == expected.encode()


def test_every_byte_has_a_token_whose_id_it_is() -> None:
    assert [TOKENIZER.token_bytes(i) for i in range(256)] == [bytes([i]) for i in range(256)]


def test_byte_alphabet_is_the_one_of_the_library() -> None:
    """The library's own byte-level step spells every character of all one- and two-byte sequences alike."""
    level = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    text = "".join(map(chr, range(0x800)))
    ours = {byte: char for char, byte in byte_alphabet().items()}
    assert "".join(p for p, _ in level.pre_tokenize_str(text)) == "".join(ours[b] for b in text.encode())
    assert set(byte_alphabet()) == set(tokenizers.pre_tokenizers.ByteLevel.alphabet())


@pytest.mark.parametrize(
    "frame", ["{}", " {}", "/{}/", '"{}"', "'{}'", "{}.txt", "_{}_", "a {}\n", "({})", "={},", "-{}"]
)
def test_a_name_is_one_token_wherever_it_stands(frame: str) -> None:
    for name in [*WORDS, *map(str, NUMBERS)]:
        tokens = [TOKENIZER.token_bytes(t) for t in TOKENIZER.encode(frame.format(name))]
        assert tokens.count(name.encode()) == 1, (frame, name, tokens)


def test_names_side_by_side_are_two_tokens() -> None:
    assert [TOKENIZER.token_bytes(t) for t in TOKENIZER.encode("fig12_oak")] == [b"fig", b"12", b"_", b"oak"]


@pytest.mark.parametrize("text", ["pineapple", "apples", "éapple", "appleé"])
def test_a_name_is_not_cut_out_of_a_longer_word(text: str) -> None:
    assert b"apple" not in [TOKENIZER.token_bytes(t) for t in TOKENIZER.encode(text)]


@pytest.mark.parametrize("text", ["123", "0125", "1٣"])
def test_a_number_is_not_cut_out_of_a_longer_number(text: str) -> None:
    tokens = [TOKENIZER.token_bytes(t) for t in TOKENIZER.encode(text)]
    assert not {b"12", b"23", b"25"} & set(tokens)


@given(st.lists(st.one_of(st.sampled_from([m.value for m in Marker]), UNICODE)).map("".join))
def test_text_never_becomes_a_marker(text: str) -> None:
    assert not SPECIAL & set(TOKENIZER.encode(text))


def test_markers_stand_at_the_end_in_the_order_of_k3() -> None:
    order = [Marker.BOS, Marker.EOS, Marker.END_OF_MSG, Marker.OPEN, Marker.CLOSE, Marker.SEP, Marker.PAD]
    size = TOKENIZER.vocab_size
    assert [TOKENIZER.id(marker) for marker in order] == list(range(size - 7, size))
    assert [TOKENIZER.marker(TOKENIZER.id(marker)) for marker in order] == order
    assert TOKENIZER.marker(5) is None
    assert [TOKENIZER.token_bytes(t) for t in (size - 1, size, -1)] == [None, None, None]


def test_decode_shows_markers_and_unknown_ids_by_name() -> None:
    tokens = [TOKENIZER.id(Marker.OPEN), *TOKENIZER.encode("fig"), TOKENIZER.id(Marker.PAD), 10**6, 0xC3]
    assert TOKENIZER.decode(tokens) == "<|open|>fig[PAD]<1000000>\ufffd"


def test_the_folder_is_what_the_hub_expects() -> None:
    """transformers reads it, gives the same ids, and keeps markers out of text as well."""
    auto = pytest.importorskip("transformers").AutoTokenizer.from_pretrained(NANO_TOKENIZER)
    text = 'mv apple.txt "fig/12"\nname = <|open|>'
    assert auto.encode(text, add_special_tokens=False) == TOKENIZER.encode(text)
    assert auto.eos_token_id == TOKENIZER.id(Marker.END_OF_MSG)
    assert auto.bos_token_id == TOKENIZER.id(Marker.BOS)
    assert auto.pad_token_id == TOKENIZER.id(Marker.PAD)
    assert len(auto) == TOKENIZER.vocab_size


def test_trouble_is_told_in_one_line(tmp_path) -> None:
    def error() -> str:
        with pytest.raises(CheckpointError) as caught:
            load_tokenizer(tmp_path)
        assert "\n" not in str(caught.value)
        assert "tokenizer.json" in str(caught.value)
        return str(caught.value)

    assert "hub's layout" in error()
    path = tmp_path / "tokenizer.json"
    whole = (NANO_TOKENIZER / "tokenizer.json").read_text(encoding="utf-8")
    path.write_text(whole[: len(whole) // 2], encoding="utf-8")
    assert "not a tokenizer file" in error()
    model = json.loads(whole)
    model["added_tokens"] = [t for t in model["added_tokens"] if t["content"] != "<|sep|>"]
    path.write_text(json.dumps(model), encoding="utf-8")
    assert "<|sep|>" in error()
    model = json.loads(whole)
    del model["model"]["vocab"]["!"]
    model["model"]["merges"] = []
    path.write_text(json.dumps(model), encoding="utf-8")
    assert "0x21" in error()
    model = json.loads(whole)
    model["model"]["vocab"]["a b"] = model["model"]["vocab"].pop("apple")
    path.write_text(json.dumps(model), encoding="utf-8")
    assert "byte alphabet" in error()
    shutil.copytree(NANO_TOKENIZER, tmp_path, dirs_exist_ok=True)
    assert load_tokenizer(tmp_path).encode("fig") == TOKENIZER.encode("fig")
