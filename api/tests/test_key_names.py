"""The notation of keys: what is shown can be typed back, and no two keys look alike."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from seriatim_api.ids import OFFSET_MAX, make_offset
from seriatim_api.key_names import (
    KEY_BYTES_MAX,
    escaped,
    key_from_text,
    key_of_name,
    key_shown,
    key_to_text,
    name_from_text,
    name_of_key,
    name_of_offset,
    name_to_text,
)
from seriatim_api.terminal.safe_text import safe_text

KEYS = st.one_of(st.binary(), st.text().map(str.encode), st.text("%-emptysha256:0 \\\"'").map(str.encode))


@given(KEYS)
def test_a_text_is_typed_back_as_its_key(key: bytes) -> None:
    assert key_from_text(key_to_text(key)) == key


@given(KEYS)
def test_a_text_is_one_word_that_no_terminal_obeys(key: bytes) -> None:
    text = key_to_text(key)
    assert text.isprintable()
    assert text.split() == [text]
    assert safe_text(text) == text
    assert text != "-", "no key at all"


@given(st.one_of(KEYS.map(name_of_key), st.integers(0, OFFSET_MAX).map(name_of_offset), st.binary()))
def test_a_text_is_typed_back_as_its_name(name: bytes) -> None:
    text = name_to_text(name)
    assert name_from_text(text) == name
    assert text.split() == [text]


@pytest.mark.parametrize(
    ("key", "text"),
    [
        (b"order-7", "order-7"),
        ("Über".encode(), "Über"),
        (b"", "%empty"),
        (b"%empty", "%25empty"),
        (b"-", "%2d"),
        (b"--", "--"),
        (b"\0", "%00"),
        (b"\\x00", "\\x00"),
        (b"%00", "%2500"),
        (b"a b", "a%20b"),
        (b"a\x1b[31m\n\xff", "a%1b[31m%0a%ff"),
        ("\u202e\u2028".encode(), "%e2%80%ae%e2%80%a8"),
        (b"message 1:0", "message%201:0"),
        (b"%message:1:0", "%25message:1:0"),
    ],
)
def test_keys_that_look_alike_have_different_texts(key: bytes, text: str) -> None:
    assert (key_to_text(key), key_from_text(text)) == (text, key)


def test_keys_without_a_text_of_their_own_are_named() -> None:
    assert name_to_text(name_of_offset(make_offset(3, 17))) == "%message:3:17"
    longest, longer = b"x" * KEY_BYTES_MAX, b"x" * (KEY_BYTES_MAX + 1)
    assert name_to_text(name_of_key(longest)) == "x" * KEY_BYTES_MAX
    assert name_to_text(name_of_key(longer)) == f"%sha256:{name_of_key(longer)[1:].hex()}"
    assert name_from_text("x" * (KEY_BYTES_MAX + 1)) == name_of_key(longer), "the key itself may be typed too"
    assert name_to_text(b"o" + b"\xff" * 8) == "%name:6fffffffffffffffff"
    assert (key_of_name(b"kx"), key_of_name(b"k"), key_of_name(b"o12345678")) == (b"x", b"", None)
    assert (key_shown(None), key_shown(b""), key_shown(b"-")) == ("-", "%empty", "%2d")


@pytest.mark.parametrize("text", ["100%", "%", "%0", "%zz", "a%x0", "%message:1:0", "%sha256:00", "%name:00", "%none"])
def test_a_text_of_no_key_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"%25|by its bytes"):
        key_from_text(text)


@pytest.mark.parametrize("text", ["100%", "%message:", "%message:1", "%message:9999999:1", "%sha256:00", "%name:0"])
def test_a_text_of_no_name_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"\S"):
        name_from_text(text)


def test_a_key_may_be_typed_in_other_ways() -> None:
    assert key_from_text("") == b"", "what a shell makes of ''"
    assert key_from_text("a b") == b"a b"
    assert key_from_text("%4A%4b") == b"JK"
    assert key_from_text("\udcff") == b"\xff", "an argument of a command that is no UTF-8"


def test_other_texts_are_escaped_for_people() -> None:
    assert escaped(b"a\x1b\xff") == r"a\x1b\xff"
    assert escaped("\u202e\u2028".encode()) == r"\u202e\u2028"
