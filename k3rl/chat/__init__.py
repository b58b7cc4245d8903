"""Messages to tokens and back: K3's chat format, its parser, and the tokenizer."""

from k3rl.chat.markers import Marker
from k3rl.chat.messages import canonical
from k3rl.chat.openai import ChatRequest, from_openai
from k3rl.chat.parser import ParsedTurn, TurnParser, problem_message
from k3rl.chat.renderer import XtmlRenderer
from k3rl.chat.tokenizer import NANO_TOKENIZER, Tokenizer, load_tokenizer, nano_tokenizer

__all__ = [
    "NANO_TOKENIZER",
    "ChatRequest",
    "Marker",
    "ParsedTurn",
    "Tokenizer",
    "TurnParser",
    "XtmlRenderer",
    "canonical",
    "from_openai",
    "load_tokenizer",
    "nano_tokenizer",
    "problem_message",
]
