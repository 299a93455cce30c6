"""Names of keys among brokers, and how they are shown to people.

A name is a letter and the key: `k` and the key itself; `h` and the SHA-256 of a key over 1,024 bytes; `o` and the
offset of a message that is a key of its own.
"""

from __future__ import annotations

from seriatim_api.ids import OFFSET_MAX, format_offset


def key_of_name(name: bytes) -> bytes:
    """The key of a name; empty if the message has no key, or if the key is too long."""
    return name[1:] if name[:1] == b"k" else b""


def offset_of_name(name: bytes) -> int:
    """The offset of the message that is a key of its own; 0 for the names of other keys."""
    return int.from_bytes(name[1:9], "big") if name[:1] == b"o" else 0


def shown(name: bytes) -> str:
    """The name of a key as text for people and logs: control characters and bytes that are no text are escaped."""
    if name[:1] == b"o" and offset_of_name(name) <= OFFSET_MAX:
        return f"message {format_offset(offset_of_name(name))}"
    if name[:1] == b"h":
        return f"sha256:{name[1:].hex()}"
    return escaped(name[1:])


def escaped(key: bytes) -> str:
    """Bytes as text: control characters and bytes that are no text are escaped."""
    text = key.decode(errors="backslashreplace")
    return "".join(letter if letter.isprintable() else letter.encode("unicode_escape").decode() for letter in text)
