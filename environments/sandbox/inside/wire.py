"""One frame of the control socket: two lengths, a JSON header, raw bytes. Both ends use this file."""

from __future__ import annotations

import json
import socket
import struct
from typing import Any

HEAD = struct.Struct(">II")
LIMIT = 256 * 1024 * 1024


def encode(header: dict[str, Any], blob: bytes = b"") -> bytes:
    """A frame as bytes."""
    text = json.dumps(header, separators=(",", ":")).encode()
    return HEAD.pack(len(text), len(blob)) + text + blob


def sizes(head: bytes) -> tuple[int, int]:
    """Lengths of header and blob; ValueError if they cannot be ours."""
    text, blob = HEAD.unpack(head)
    if text + blob > LIMIT:
        raise ValueError(f"a frame of {text + blob} bytes on the control socket; at most {LIMIT} are allowed")
    return text, blob


def decode(body: bytes, text: int) -> tuple[dict[str, Any], bytes]:
    """Header and blob of a frame's body, of which the first `text` bytes are the header."""
    return json.loads(body[:text]), body[text:]


def receive(channel: socket.socket) -> tuple[dict[str, Any], bytes]:
    """The next frame of a blocking socket. Raises EOFError when the other end is closed."""
    text, blob = sizes(_exactly(channel, HEAD.size))
    return decode(_exactly(channel, text + blob), text)


def _exactly(channel: socket.socket, size: int) -> bytes:
    data = bytearray()
    while len(data) < size:
        part = channel.recv(min(size - len(data), 1 << 20))
        if not part:
            raise EOFError("the other end is closed")
        data += part
    return bytes(data)
