"""Names of keys among brokers, and the one notation of keys for humans.

A name is a letter and the key: `k` and the key itself; `h` and the SHA-256 of a key over 1,024 bytes; `o` and the
offset of a message that is a key of its own.

The notation is percent-encoding (RFC 3986) of the bytes of the key. Letters, digits and signs of every language stay as
they are. A percent sign, a space, what cannot be printed, and bytes that are no UTF-8 are written as `%` and two
hexadecimal digits: `order%207`, `100%25`, `%00`. Four words stand for what has no such text. No key is written like
one of them, because each has a letter after the `%` that is no hexadecimal digit, or two letters of which one is none:

    %empty                 the key without any byte
    %message:1:4           the message at that offset, which has no key, and so is a key of its own
    %sha256:9f86…          a key over 1,024 bytes, by its SHA-256
    -                      in tables: there is no key. So the key of one hyphen is written %2d

Each key has one such text, each text is that of one key, and a text has no space in it. So what a command shows can be
typed back (ADR 0073).
"""

from __future__ import annotations

import hashlib
import re
from typing import Final

from seriatim_api.ids import OFFSET_MAX, format_offset, parse_offset

KEY_BYTES_MAX: Final = 1_024
"""A longer key is named by its SHA-256."""

NO_KEY: Final = "-"
"""What tables show if a message has no key."""

_EMPTY: Final = "%empty"
_MESSAGE: Final = "%message:"
_SHA256: Final = "%sha256:"
_NAME: Final = "%name:"
_ESCAPED: Final = re.compile(rb"%(?:([0-9A-Fa-f]{2})|)")
_DIGEST: Final = re.compile(r"[0-9a-f]{64}")


def name_of_key(key: bytes) -> bytes:
    """The name of a key."""
    return b"k" + key if len(key) <= KEY_BYTES_MAX else b"h" + hashlib.sha256(key).digest()


def name_of_offset(offset: int) -> bytes:
    """The name of the key of a message that is a key of its own."""
    return b"o" + offset.to_bytes(8, "big")


def key_of_name(name: bytes) -> bytes | None:
    """The key of a name; None if the message has no key, or if the key is too long."""
    return name[1:] if name[:1] == b"k" else None


def offset_of_name(name: bytes) -> int:
    """The offset of the message that is a key of its own; 0 for the names of other keys."""
    return int.from_bytes(name[1:9], "big") if name[:1] == b"o" else 0


def key_to_text(key: bytes) -> str:
    """A key in the notation for humans. `key_from_text` takes it back."""
    if not key:
        return _EMPTY
    if key == NO_KEY.encode():
        return "%2d"
    text = key.decode(errors="surrogateescape")
    if text.isprintable() and " " not in text and "%" not in text:
        return text
    return "".join(letter if letter.isprintable() and letter not in " %" else _percent(letter) for letter in text)


def key_from_text(text: str) -> bytes:
    """The key that a user typed, as `key_to_text` writes it. The empty text is the empty key.

    Raises:
        ValueError: It is no text of a key. The error says what to write.
    """
    if text in ("", _EMPTY):
        return b""
    if text.startswith((_MESSAGE, _SHA256, _NAME)):
        raise ValueError(f"{text} names no key by its bytes; it names a key that waits, in commands about such keys")
    typed = text.encode(errors="surrogateescape")  # an argument of a command may have bytes that are no UTF-8
    for found in _ESCAPED.finditer(typed):
        if found[1] is None:
            raise ValueError("a % comes before two hexadecimal digits; write %25 for the percent sign itself")
    return _ESCAPED.sub(lambda found: bytes.fromhex(found[1].decode()), typed)


def key_shown(key: bytes | None) -> str:
    """A key in a finding or a table for humans: a long one by its SHA-256, and a hyphen if there is none."""
    return NO_KEY if key is None else name_to_text(name_of_key(key))


def name_to_text(name: bytes) -> str:
    """The name of a key in the notation for humans. `name_from_text` takes it back."""
    if name[:1] == b"k" and len(name) <= 1 + KEY_BYTES_MAX:
        return key_to_text(name[1:])
    if name[:1] == b"h" and len(name) == 33:
        return f"{_SHA256}{name[1:].hex()}"
    if name[:1] == b"o" and len(name) == 9 and offset_of_name(name) <= OFFSET_MAX:
        return f"{_MESSAGE}{format_offset(offset_of_name(name))}"
    return f"{_NAME}{name.hex()}"  # of a later version


def name_from_text(text: str) -> bytes:
    """The name of the key that a user typed, as `name_to_text` writes it.

    Raises:
        ValueError: It is no text of a key. The error says what to write.
    """
    if text.startswith(_SHA256):
        digest = text.removeprefix(_SHA256)
        if _DIGEST.fullmatch(digest) is None:
            raise ValueError(f"{_SHA256} comes before the 64 hexadecimal digits of a SHA-256")
        return b"h" + bytes.fromhex(digest)
    if text.startswith(_NAME):
        return bytes.fromhex(text.removeprefix(_NAME))
    if text.startswith(_MESSAGE):
        return name_of_offset(parse_offset(text.removeprefix(_MESSAGE)))
    return name_of_key(key_from_text(text))


def escaped(text: bytes) -> str:
    """Bytes as text, for values and errors: control characters and bytes that are no text are escaped."""
    shown = text.decode(errors="backslashreplace")
    return "".join(letter if letter.isprintable() else letter.encode("unicode_escape").decode() for letter in shown)


def _percent(letter: str) -> str:
    return "".join(f"%{byte:02x}" for byte in letter.encode(errors="surrogateescape"))
