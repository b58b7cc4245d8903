"""The markers of K3's chat format: tokens that no text can spell."""

from __future__ import annotations

from enum import Enum


class Marker(Enum):
    """A marker by its role; the value is its name in the tokenizer's files."""

    BOS = "[BOS]"
    EOS = "[EOS]"
    END_OF_MSG = "<|end_of_msg|>"
    OPEN = "<|open|>"
    CLOSE = "<|close|>"
    SEP = "<|sep|>"
    PAD = "[PAD]"
